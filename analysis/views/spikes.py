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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.compare.error_table import ErrorTable
from analysis.load.files.measurements import STEP
from analysis.load.records import Run
from analysis.render import pages
from analysis.render.pages import NONE, Cell, Page, Row, Table
from attention import table as variants

LOSS = "loss"
# A trial that failed stopped for a reason outside of training, at any step.
STATES = ("done", "diverged")
WINDOW, LEAST, DEVIATIONS = 30, 16, 7.0
WARMUP = 0.05
# Of normal values the standard deviation is this times the median absolute deviation.
NORMAL_MAD = 1.4826
# Losses are logged in single precision: equal ones differ by this share.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Spikes:
    """One run's spikes: how many, the highest loss in one and its step (nan without a spike), how
    many logged losses were `judged`, and how many of them were not finite."""

    seed: int
    count: int
    worst: float
    worst_step: float
    judged: int
    not_finite: int


def find(losses: np.ndarray) -> np.ndarray:
    """Returns whether each of `losses` [n] is in a spike, bool [n], by the rule above.

    Multiplying all losses by a positive number changes nothing.
    """
    finite = np.where(np.isfinite(losses), losses, np.nan)
    padded = np.concatenate([np.full(WINDOW, np.nan), finite])
    before = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[: len(losses)]
    middle = _median(before)
    spread = NORMAL_MAD * _median(np.abs(before - middle[:, None]))
    known = np.isfinite(before).sum(axis=1) >= LEAST
    floor = np.maximum(spread, ROUNDING * np.abs(middle))
    with np.errstate(invalid="ignore"):
        return known & (finite - middle > DEVIATIONS * floor)


def _median(windows: np.ndarray) -> np.ndarray:
    """Returns the median of the finite values of each row of [n, k], nan without any. As
    np.nanmedian, which takes a Python call for each row."""
    ordered = np.sort(windows, axis=1)  # nan last
    counts = np.isfinite(ordered).sum(axis=1)
    last = np.maximum(counts, 1)
    ends = np.stack([(last - 1) // 2, last // 2], axis=1)
    return np.take_along_axis(ordered, ends, axis=1).mean(axis=1)


def of_run(run: Run) -> Spikes | None:
    """Returns the spikes of one run, None where it logged no training loss after warm-up."""
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
    spiking = find(losses)
    highest = int(np.argmax(np.where(spiking, losses, -np.inf)))
    return Spikes(
        seed=run.seed,
        count=int(np.sum(np.diff(spiking.astype(int), prepend=0) == 1)),
        worst=float(losses[highest]) if spiking.any() else math.nan,
        worst_step=float(steps[highest]) if spiking.any() else math.nan,
        judged=int(losses.size),
        not_finite=int((~np.isfinite(losses)).sum()),
    )


def of_variants(table: ErrorTable) -> dict[str, tuple[Spikes, ...]]:
    """Returns the spikes of every variant's trials at its chosen point that are done or diverged,
    by seed; only variants with a logged loss."""
    found: dict[str, tuple[Spikes, ...]] = {}
    for row in table.rows:
        runs = sorted(table.runs(row, STATES), key=lambda run: run.seed)
        of_seeds = [of_run(run) for run in runs]
        if known := tuple(each for each in of_seeds if each is not None):
            found[row.variant] = known
    return found


def page(table: ErrorTable) -> Page | None:
    """Returns spikes per variant with the rule in the notes, None where no trial of the table
    logged its training loss."""
    found = of_variants(table)
    if not found:
        return None
    columns = pages.columns(
        *("Variant", "Seeds", "Spikes\n(median)", "Range"),
        *("Worst loss\nin a spike", "at step", "Not finite"),
    )
    rows = tuple(_cells(variant, seeds) for variant, seeds in found.items())
    return Page(
        title=f"{table.study.name}: training spikes on {table.workload}, stage {table.stage}",
        tables=(Table("Spikes of the logged training loss, over seeds", columns, (rows,)),),
        notes=tuple(_notes(found.values(), table)),
        problems=(),
    )


def _cells(variant: str, seeds: Sequence[Spikes]) -> Row:
    counts = [each.count for each in seeds]
    worst = max(seeds, key=lambda each: -math.inf if math.isnan(each.worst) else each.worst)
    step = NONE if math.isnan(worst.worst) else Cell(f"{worst.worst_step:,.0f}")
    return (
        Cell(variants.label(variant)),
        Cell(str(len(seeds))),
        Cell(f"{np.median(counts):g}"),
        Cell(f"{min(counts)} to {max(counts)}"),
        pages.number(worst.worst),
        step,
        Cell(str(sum(each.not_finite for each in seeds))),
    )


def _notes(found: Iterable[Sequence[Spikes]], table: ErrorTable) -> Iterable[str]:
    judged = sorted({each.judged for seeds in found for each in seeds})
    of_each = f"{judged[0]:,}" + (f" to {judged[-1]:,}" if judged[1:] else "")
    yield (
        f"Spike: a logged training loss more than {DEVIATIONS:g} robust deviations (1.4826 MAD) "
        f"above the median of the {WINDOW} logged losses before it (at least {LEAST}); losses "
        "that follow each other are one spike; warm-up is left out. Seven deviations: the spike "
        "score of OLMo 2 (arXiv:2501.00656)."
    )
    yield (
        f"Only what was logged can be seen: {of_each} losses per trial after "
        "warm-up, where the loss falls steeply large spikes alone. Not finite: losses that were "
        "nan or infinite, all seeds together."
    )
    if judged[0] <= LEAST:
        yield f"A trial with {LEAST} or fewer logged losses can show no spike."
