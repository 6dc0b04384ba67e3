"""Measurements inside the attention layers: the last records as a table, and two figures."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare import frames
from analysis.compare.error_table import ErrorTable
from analysis.load import diagnostics, paper
from analysis.load.records import Problem
from analysis.render import charts
from analysis.render.pages import Page, Table
from attention import table as variants

CLAIMS = {
    "share_below_1e-3": "attention probabilities < 1e-3",
    "share_below_1e-7": "attention probabilities < 1e-7",
}
PAPER = "paper, decoder of 2.2B"


def _norm(values: pd.Series) -> float:
    return float(np.sqrt((values**2).sum(min_count=1)))


_total = functools.partial(pd.Series.sum, min_count=1)

# Quantity to its heading, its format, and how layers are reduced to one number.
COLUMNS: dict[str, tuple[str, str, str | Callable[[pd.Series], float]]] = {
    "share_below_1e-3": ("Below\n1e-3", ".1%", "mean"),
    "share_below_1e-7": ("Below\n1e-7", ".1%", "mean"),
    "entropy": ("Entropy\n(nats)", ".3g", "mean"),
    "entropy_share": ("Entropy /\nln(keys)", ".3g", "mean"),
    "jacobian_mean": ("Jacobian\nmean", ".3g", "mean"),
    "jacobian_max": ("Jacobian\nmax", ".3g", "max"),
    "logit_grad_norm": ("Gradient\non logits", ".3g", _norm),
    "query_grad_norm": ("on W_Q", ".3g", _norm),
    "key_grad_norm": ("on W_K", ".3g", _norm),
    "value_grad_norm": ("on W_V", ".3g", _norm),
    "value_range_median": ("Range of V\nmedian", ".3g", "mean"),
    "value_range_max": ("Range of V\nmax", ".3g", "max"),
    "floored_channels": ("Floored\nchannels", "g", _total),
    "channels": ("of", "g", _total),
}
# Of counts alone the heading and the format.
COUNTS = {"n": ("n", ".0f"), "step": ("Step", ".0f"), "layers": ("Layers", ".0f")}
REDUCE = {name: how for name, (_, _, how) in COLUMNS.items()}
# Panels of the figure over training.
PANELS = {
    "share_below_1e-3": "probabilities below 1e-3",
    "share_below_1e-7": "probabilities below 1e-7",
    "entropy_share": "entropy / ln(visible keys)",
    "jacobian_mean": "softmax Jacobian, mean of rows",
    "logit_grad_norm": "gradient on logits, all layers",
    "value_grad_norm": "gradient on W_V, all layers",
}
WEIGHTS = dict(zip(diagnostics.GRADIENTS, ("logits", "W_Q", "W_K", "W_V"), strict=True))
WIDTH, HEIGHT = 290, 150


@functools.lru_cache(maxsize=8)
def records(table: ErrorTable) -> pd.DataFrame:
    """Returns one row per counted trial, recorded step and layer (from 0): variant, label, seed,
    trial, step, layer, QUANTITIES, and its histogram: the `share` of its probabilities in each of
    the half decades from `low` (log10; the first stands apart and holds all smaller ones). Empty
    where no trial recorded a whole step."""
    parts = []
    for run, recorded in _recorded(table):
        steps, depth = recorded.steps, len(recorded.layers)
        counts = recorded.histogram.reshape(-1, len(recorded.edges))
        place = {
            "variant": run.variant,
            "label": variants.label(run.variant),
            "seed": run.seed,
            "trial": run.name,
            "step": np.repeat(steps, depth),
            "layer": np.tile(np.arange(depth), len(steps)),
            "low": [[recorded.edges[0] - 1.5, *recorded.edges[:-1]]] * len(counts),
            "share": [*(counts / counts.sum(axis=1, keepdims=True))],
        }
        values = {name: recorded.values[name].ravel() for name in diagnostics.QUANTITIES}
        parts.append(pd.DataFrame(place | values))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _recorded(table: ErrorTable) -> list[tuple[Any, diagnostics.Diagnostics]]:
    runs = [run for row in table.rows for run in frames.counted(table, row)]
    return [
        (run, recorded)
        for run in runs
        if (recorded := diagnostics.of_trial(run.path)) is not None and recorded.steps.size
    ]


def shared(measured: pd.DataFrame) -> pd.DataFrame:
    """Returns the records at steps that all seeds of their variant have."""
    seeds = measured.groupby("variant")["seed"].transform("nunique")
    return measured[measured.groupby(["variant", "step"])["seed"].transform("nunique") == seeds]


def last(measured: pd.DataFrame) -> pd.DataFrame:
    """Returns the records at the last step that all seeds of their variant have."""
    rows = shared(measured)
    return rows[rows["step"] == rows.groupby("variant")["step"].transform("max")]


def medians(measured: pd.DataFrame) -> pd.DataFrame:
    """Returns one row per variant, its index: n, step, layers, and each quantity of COLUMNS at the
    last shared step, layers reduced to one number, median over seeds."""
    ends = last(measured).groupby(["variant", "seed"], sort=False)
    by_variant = measured.groupby("variant", sort=False)
    counts = {"n": by_variant["seed"].nunique(), "layers": by_variant["layer"].max() + 1}
    reduced = ends.agg({"step": "max"} | REDUCE).groupby("variant", sort=False).median()
    return pd.DataFrame(counts).join(reduced)


def paper_shares() -> dict[str, float]:
    """Returns the fractions of attention probabilities that the paper states, by quantity."""
    claims = {row["dataset_or_metric"]: row["value"] for row in paper.lines("claims.csv")}
    return {name: float(claims[words]) / 100 for name, words in CLAIMS.items()}


def page(table: ErrorTable) -> Page | None:
    """Returns the table of the last records, None if no trial has diagnostics."""
    runs = table.study.stage(table.stage)
    files = {run.name: diagnostics.of_trial(run.path) for run in runs}
    problems = [
        dataclasses.replace(problem, trial=name)
        for name, file in files.items()
        for problem in (file.problems if file else ())
    ]
    if any(file is not None for file in files.values()):
        done = [run.name for run in runs if run.state == "done" and files[run.name] is None]
        problems += [Problem("missing", name, "", f"no {diagnostics.FILE}") for name in done]
    measured = records(table)
    if measured.empty and not problems:
        return None
    title = f"{table.study.name}: attention on {table.workload}, stage {table.stage}"
    if measured.empty:
        return Page(title, (), problems=tuple(problems))
    rows = medians(measured)
    lines = pd.concat([rows, pd.DataFrame([paper_shares()], index=[PAPER])])
    lines["variant"] = [*map(variants.label, rows.index), PAPER]
    printed: dict[str, tuple[Any, ...]] = {"variant": ("Variant", ""), **COUNTS, **COLUMNS}
    headings = {name: heading for name, (heading, *_) in printed.items()}
    shown = Table(
        "Attention in the last record",
        lines[[*headings]].rename(columns=headings).reset_index(drop=True),
        {heading: form for heading, form, *_ in printed.values() if form},
        group=[*map(variants.group, rows.index), PAPER],
    )
    examples = " or ".join(sorted({str(record.examples or 0) for _, record in _recorded(table)}))
    notes = (
        "Median over seeds at the last step that all seeds of the variant have, on "
        f"{examples} examples. Over layers: mean of shares, entropy, Jacobian mean and median "
        "range; root of the sum of squares of gradient norms; largest Jacobian and range; sum of "
        "channels.",
        f"paper: {paper.SOURCE}, text: about 80 % and 20 % of the probabilities of a decoder of "
        "2.2 B lie below 1e-3 and 1e-7. The paper does not say how it counted; here masked "
        "entries are left out. Shares grow with the number of keys.",
        "Jacobian: Frobenius norm of diag(a) - a aT per row of probabilities a: 0.5 at two equal "
        "ones, 0 where one key has all. Floored channels: channels of V whose range needs LASER's "
        "floored form, counted for every variant.",
    )
    return Page(title, (shown,), notes, tuple(problems), data=lambda: measured)


def histograms(table: ErrorTable) -> pd.DataFrame:
    """Returns the last shared record's probabilities: one row per variant, layer and half decade
    from `low` to `high` (log10), with the mean over seeds of its `share`."""
    bins = last(records(table)).explode(["low", "share"]).astype({"low": float, "share": float})
    places = ["variant", "label", "layer", "low"]
    shares = bins.dropna(subset="share").groupby(places, sort=False)["share"].mean().reset_index()
    return shares.assign(high=shares["low"] + 0.5)


def probabilities(table: ErrorTable) -> charts.Chart | None:
    """Returns the map of the last record's probabilities, a panel for each variant, None without
    histograms."""
    shares = histograms(table)
    if shares.empty:
        return None
    least = shares["low"].min() + 1.5
    labels = f"datum.value < {least} ? '<1e{least:g}' : datum.value == 0 ? '1' : '1e' + datum.value"
    axis = {"values": [least - 1.25, -7, -3, 0], "labelExpr": labels, "grid": False}
    share = charts.channel(
        "share:Q",
        title="share of the layer's probabilities",
        scale={"type": "sqrt", "scheme": "cividis", "domain": [0, shares["share"].max()]},
        legend={"format": ".0%"},
    )
    encoding = {
        "x": charts.channel(
            "low:Q", title="attention probability", axis=axis, scale={"nice": False}
        ),
        "x2": {"field": "high"},
        "y": charts.channel("layer:O", title="layer"),
        "color": share,
        "tooltip": ["label:N", "layer:O", "low:Q", "high:Q", "share:Q"],
    }
    limits = [charts.reference_line("x", low, "white", name=f"1e{low}") for low in (-7, -3)]
    depth = shares["layer"].max() + 1
    size = {"width": WIDTH, "height": float(min(160, max(60, 14 * depth)))}
    panels = [
        {"layer": [charts.marks("rect", of_variant, encoding), *limits], "title": label, **size}
        for label, of_variant in shares.groupby("label", sort=False)
    ]
    title = f"{table.study.name}: attention probabilities in the last record"
    return {"concat": panels, "columns": 3, "title": title}


def curves(measured: pd.DataFrame) -> pd.DataFrame:
    """Returns one row per trial, shared step and quantity of PANELS, with its `value`: layers
    reduced to one number."""
    keys = ["variant", "label", "seed", "trial", "state", "step"]
    per_seed = shared(measured).assign(state="done").groupby(keys, sort=False)
    long = per_seed.agg({name: REDUCE[name] for name in PANELS})
    return long.melt(var_name="panel", ignore_index=False).dropna(subset="value").reset_index()


def over_training(table: ErrorTable) -> charts.Chart | None:
    """Returns the chart of PANELS over training, None without numbers."""
    lines = curves(records(table))
    if lines.empty:
        return None
    lines = lines.assign(seconds=np.nan, flops=np.nan)
    middles = frames.medians(lines)
    claims = paper_shares()
    panels = []
    for quantity, heading in PANELS.items():
        of_panel = lines[lines["panel"] == quantity]
        if of_panel.empty:
            continue
        form = {"format": "%" if quantity in CLAIMS else "~g", "tickCount": 5}
        scale: charts.Chart = {"zero": quantity not in WEIGHTS}
        if quantity in WEIGHTS:
            scale, form = charts.around(of_panel["value"].to_numpy())
        layers = charts.seed_lines(
            of_panel,
            middles[middles["panel"] == quantity],
            charts.channel("step:Q", title=None, axis={"format": "~s", "tickCount": 4}),
            charts.channel("value:Q", title=None, scale=scale, axis=form),
            list(lines["variant"].unique()),
        )
        if quantity in claims:
            layers.append(charts.reference_line("y", claims[quantity], name=PAPER))
        panels.append({"layer": layers, "title": heading, "width": WIDTH, "height": HEIGHT})
    title = {
        "text": f"{table.study.name}: attention by training step",
        "subtitle": "dashed grey: the paper's shares",
    }
    return {"concat": panels, "columns": 3, "title": title}


def _alt_text(table: ErrorTable, quantity: str, what: str) -> str:
    """Returns every variant's number in the last record."""
    _, form, _ = COLUMNS[quantity]
    values = medians(records(table))[quantity]
    texts = "; ".join(f"{variants.label(name)} {value:{form}}" for name, value in values.items())
    return f"{what} In the last record, median over seeds: {texts}."


def _plot(
    file: str, draw: Callable[[ErrorTable], charts.Chart | None], quantity: str, what: str, how: str
) -> charts.FigureSpec[ErrorTable]:
    return charts.FigureSpec(
        file=file,
        draw=draw,
        alt_text=functools.partial(_alt_text, quantity=quantity, what=what),
        absent="the completed trials recorded no such numbers",
        caption=f"{what} {how}",
        applies=lambda table: not records(table).empty,
    )


PLOTS = (
    _plot(
        "attention_probabilities",
        probabilities,
        "share_below_1e-7",
        "Attention probabilities by layer, in half decades, masked entries left out.",
        "Dashed: 1e-7 and 1e-3; the strip on the left holds everything smaller.",
    ),
    _plot(
        "attention_training",
        over_training,
        "entropy_share",
        "Small probabilities, entropy, softmax Jacobian and gradients over training.",
        charts.SEED_LINES,
    ),
)
