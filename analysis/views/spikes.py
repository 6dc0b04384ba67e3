"""Training spikes: how often the logged training loss jumps up, by a rule that is stated.

Rule: a logged loss is in a spike where it lies more than DEVIATIONS robust standard deviations
(1.4826 times the median absolute deviation) above the median of the WINDOW logged losses before
it, given at least LEAST of them. Spiking losses that follow each other are one spike. Warm-up is
left out (the trial's warmup_factor of its steps, else WARMUP of them), both as a place of spikes
and as history. Losses that are not finite are no spikes and are counted apart.

Seven deviations from a rolling mean are the "spike score" of "2 OLMo 2 Furious" (OLMo team, 2025,
arXiv:2501.00656), which takes the last 1,000 steps; median and MAD take the place of mean and
standard deviation here because a trial logs every `log_every` steps only: of 30 values one spike
moves the latter. Of 640,000 simulated losses with normal noise 5 were called a spike, with noise of
Student's t of 5 degrees of freedom 390. A spike between two logged steps cannot be seen, and where
the loss falls steeply within a window its fall counts as spread: only large spikes are seen there.
"""

import math
import warnings

import numpy as np
import pandas as pd

from analysis.compare.error_table import ErrorTable
from analysis.load.measurements import STEP
from analysis.load.records import Run
from analysis.render.pages import Page, Table
from attention import table as variants

LOSS = "loss"
# A trial that failed stopped for a reason outside of training, at any step.
STATES = ("done", "diverged")
WINDOW, LEAST, DEVIATIONS = 30, 16, 7.0
WARMUP = 0.05
# Losses are logged in single precision: equal ones differ by this share.
ROUNDING = 1e-6
SPIKES, WORST = "Spikes\n(median)", "Worst loss\nin a spike"


def find(losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns whether each of `losses` [n] is in a spike by the rule above, bool [n], and whether
    enough losses before it are logged to judge that, bool [n].

    Multiplying all losses by a positive number changes nothing.
    """
    finite = np.where(np.isfinite(losses), losses, np.nan)
    padded = np.concatenate([np.full(WINDOW, np.nan), finite])
    before = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[: len(losses)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice")
        middle = np.nanmedian(before, axis=1)
        # Of normal values the standard deviation is this times the median absolute deviation.
        spread = 1.4826 * np.nanmedian(np.abs(before - middle[:, None]), axis=1)
    known = np.isfinite(before).sum(axis=1) >= LEAST
    floor = np.maximum(spread, ROUNDING * np.abs(middle))
    return known & (finite - middle > DEVIATIONS * floor), known


def of_run(run: Run) -> dict[str, float] | None:
    """Returns a line of `of_table` for one run: its seed; how many logged losses were `judged`;
    the `count` of its spikes, nan if none was; the `worst` loss in one and its `worst_step` (nan
    without a spike); how many logged losses were `not_finite`. None if it logged no training
    loss after warm-up."""
    trains = run.losses()
    if LOSS not in trains:
        return None
    # An evaluation's row may hold no training loss, which is no nan.
    others = [np.isfinite(values) for name, values in trains.items() if "/" in name]
    evaluated = np.any([np.zeros(trains[STEP].size, bool), *others], axis=0)
    logged = ~np.isnan(trains[LOSS]) | ~evaluated
    steps, losses = trains[STEP][logged], trains[LOSS][logged]
    warmup = float(run.hyperparameters.get("warmup_factor", WARMUP))
    late = steps >= warmup * (run.step_hint or run.steps or int(steps.max(initial=0)))
    steps, losses = steps[late], losses[late]
    if not losses.size:
        return None
    spiking, judged = find(losses)
    highest = int(np.argmax(np.where(spiking, losses, -np.inf)))
    return dict(
        seed=run.seed,
        count=np.sum(np.diff(spiking.astype(int), prepend=0) == 1) if judged.any() else np.nan,
        worst=float(losses[highest]) if spiking.any() else np.nan,
        worst_step=float(steps[highest]) if spiking.any() else np.nan,
        judged=int(judged.sum()),
        not_finite=int((~np.isfinite(losses)).sum()),
    )


def of_table(table: ErrorTable) -> pd.DataFrame:
    """Returns the line of `of_run` and the variant of each trial at its variant's chosen point that
    is done or diverged and has logged a loss."""
    rows = [
        {"variant": row.variant} | spikes
        for row in table.rows
        for run in table.runs(row, STATES)
        if (spikes := of_run(run))
    ]
    return pd.DataFrame(rows)


def page(table: ErrorTable) -> Page | None:
    """Returns spikes per variant with the rule in the notes, a sentence if there is none; None if
    no trial of the table logged its training loss."""
    spikes = of_table(table)
    if spikes.empty:
        return None
    title = f"{table.study.name}: training spikes on {table.workload}, stage {table.stage}"
    if not spikes[["count", "not_finite"]].fillna(0).any(axis=None):
        judged = f"{spikes['judged'].sum():,} of its values follow the {LEAST} that the rule needs"
        return Page(title, (), (f"No spike of the logged training loss; {judged}.",))
    of_variants = spikes.groupby("variant", sort=False)
    counts = of_variants["count"].agg(["size", "median", "min", "max"])
    # The highest loss of a variant is in its first row.
    ordered = spikes.sort_values(["worst", "seed"], ascending=[False, True])
    worst = ordered.groupby("variant").first().loc[counts.index]
    frame = pd.DataFrame(
        {
            "Variant": counts.index.map(variants.label),
            "Seeds": counts["size"],
            SPIKES: counts["median"],
            "Range": [
                None if math.isnan(low) else f"{low:.0f} to {high:.0f}"
                for low, high in zip(counts["min"], counts["max"], strict=True)
            ],
            WORST: worst["worst"],
            "at step": worst["worst_step"],
            "Not finite": of_variants["not_finite"].sum(),
        }
    )
    formats = {SPIKES: "g", "Range": "", WORST: ".4f", "at step": ",.0f"}
    return Page(
        title=title,
        tables=(Table("Spikes of the logged training loss, over seeds", frame, formats),),
        notes=(
            f"Spike: a logged training loss more than {DEVIATIONS:g} robust deviations (1.4826 "
            f"MAD) above the median of the {WINDOW} logged losses before it (at least {LEAST}; a "
            "trial with fewer has a dash). Spiking losses that follow each other are one "
            "spike. Warm-up is left out. Seven deviations: the spike score of OLMo 2 "
            "(arXiv:2501.00656).",
            f"Logged losses judged: {spikes['judged'].min():,} or more of each trial; a spike "
            "between two of them is not seen. Where the loss falls steeply, only large spikes are "
            "seen. Not finite: losses that were nan or infinite, over all seeds.",
        ),
        data=lambda: spikes.assign(study=table.study.name, workload=table.workload),
    )
