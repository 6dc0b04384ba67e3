"""What attention did while it trained: each variant's last record beside what the paper says of its
own, and a plot of each quantity."""

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from analysis.compare import diagnostics
from analysis.compare.diagnostics import Found, last_step
from analysis.compare.error_table import ErrorTable
from analysis.load import paper
from analysis.load.files.diagnostics import SHARES, Diagnostics
from analysis.render import pages
from analysis.render.pages import NONE, Cell, Page, Row, Table
from analysis.render.pictures import Plot
from analysis.views.diagnostics import lines, maps
from analysis.views.diagnostics.lines import Panel, root_sum_square
from attention import table as variants

CLAIMED = {
    "share_below_1e-3": "attention probabilities < 1e-3",
    "share_below_1e-7": "attention probabilities < 1e-7",
}
# Quantity to (heading, how one number is made of the layers').
_Reduce = Callable[[np.ndarray], np.floating | np.ndarray]
_NORM = partial(root_sum_square, axis=0)
PROBABILITIES: dict[str, tuple[str, _Reduce]] = {
    "share_below_1e-3": ("Below\n1e-3", np.mean),
    "share_below_1e-7": ("Below\n1e-7", np.mean),
    "entropy": ("Entropy\n(nats)", np.mean),
    "entropy_share": ("Entropy /\nln(keys)", np.mean),
    "jacobian_mean": ("Jacobian\nmean", np.mean),
    "jacobian_max": ("Jacobian\nmax", np.max),
}
GRADIENTS_AND_VALUES: dict[str, tuple[str, _Reduce]] = {
    "logit_grad_norm": ("Gradient\non logits", _NORM),
    "query_grad_norm": ("on W_Q", _NORM),
    "key_grad_norm": ("on W_K", _NORM),
    "value_grad_norm": ("on W_V", _NORM),
    "value_range_median": ("Range of V\nmedian", np.mean),
    "value_range_max": ("Range of V\nmax", np.max),
    "floored_channels": ("Floored\nchannels", np.sum),
    "channels": ("of", np.sum),
}

MEAN, LARGEST = np.nanmean, np.nanmax

SMALL = tuple(
    Panel(f"probabilities below {limit}, {how}", f"share_below_{limit}", reduce, "share")
    for limit in ("1e-3", "1e-7")
    for how, reduce in (("mean over layers", MEAN), ("last record", None))
)
ENTROPY = (
    Panel("entropy (nats), mean over layers", "entropy", MEAN, "zero"),
    Panel("entropy (nats), last record", "entropy", None, "zero"),
    Panel("entropy / ln(visible keys), mean over layers", "entropy_share", MEAN, "share"),
    Panel("entropy / ln(visible keys), last record", "entropy_share", None, "share"),
)
GRADIENTS = tuple(
    Panel(f"gradient on {name}, norm over all layers", quantity, root_sum_square, "log")
    for quantity, name in maps.GRADIENT_TITLES.items()
)
GRADIENTS_BY_LAYER = tuple(
    Panel(f"gradient on {name}, last record", quantity, None, "log")
    for quantity, name in maps.GRADIENT_TITLES.items()
)
VALUES = (
    Panel("range of V, largest channel of all layers", "value_range_max", LARGEST, "log"),
    Panel("range of V, largest channel, last record", "value_range_max", None, "log"),
    Panel("range of V, median channel, mean over layers", "value_range_median", MEAN, "log"),
    Panel("floored channels, share", "floored_channels", MEAN, "share", of="channels"),
)
JACOBIAN = (
    Panel("softmax Jacobian, mean over rows and layers", "jacobian_mean", MEAN, "zero"),
    Panel("softmax Jacobian, mean over rows, last record", "jacobian_mean", None, "zero"),
    Panel("softmax Jacobian, largest of all rows", "jacobian_max", LARGEST, "zero"),
    Panel("softmax Jacobian, largest row, last record", "jacobian_max", None, "zero"),
)


def page(table: ErrorTable) -> Page | None:
    """Returns the table of the last records, None where no trial of the table has diagnostics.

    Per variant: layers reduced to one number (the notes say how), median over seeds, at the last
    step that all its seeds have.
    """
    found = diagnostics.of_table(table)
    said = diagnostics.problems(table)
    if not found and not said:
        return None
    tables = (
        _table(
            "Attention probabilities in the last record", PROBABILITIES, found, _paper_section()
        ),
        _table("Gradients and values in the last record", GRADIENTS_AND_VALUES, found, ()),
    )
    return Page(
        title=f"{table.study.name}: attention on {table.workload}, stage {table.stage}",
        tables=tables if found else (),
        notes=tuple(_notes(found)) if found else (),
        problems=tuple(said),
    )


def _table(
    caption: str,
    quantities: dict[str, tuple[str, _Reduce]],
    found: Found,
    foot: tuple[tuple[Row, ...], ...],
) -> Table:
    headings = (heading for heading, _ in quantities.values())
    columns = pages.columns("Variant", "n", "Step", "Layers", *headings)
    groups: dict[str, list[Row]] = {}
    for variant, seeds in found.items():
        groups.setdefault(variants.group(variant), []).append(_row(variant, seeds, quantities))
    return Table(caption, columns, (*(tuple(rows) for rows in groups.values()), *foot))


def _row(
    variant: str, seeds: dict[int, Diagnostics], quantities: dict[str, tuple[str, _Reduce]]
) -> Row:
    step = last_step(seeds.values())
    layers = max(len(one.layers) for one in seeds.values())
    head = (Cell(variants.label(variant)), Cell(str(len(seeds))))
    place = (NONE if step is None else Cell(f"{step}"), Cell(f"{layers}"))
    cells = (_cell(name, seeds, step, reduce) for name, (_, reduce) in quantities.items())
    return (*head, *place, *cells)


def _cell(name: str, seeds: dict[int, Diagnostics], step: int | None, reduce: _Reduce) -> Cell:
    if step is None:
        return NONE
    reduced = []
    for one in seeds.values():
        at = one.values[name][one.steps == step][0]
        known = at[np.isfinite(at)]
        if known.size:
            reduced.append(float(reduce(known)))
    return _number(name, float(np.median(reduced))) if reduced else NONE


def _number(name: str, value: float) -> Cell:
    if name in SHARES:
        return Cell(f"{100 * value:.1f}%")
    if name in ("channels", "floored_channels"):
        return Cell(f"{value:g}")
    return Cell(f"{value:.3g}")


def _paper_section() -> tuple[tuple[Row, ...], ...]:
    claimed = paper_shares()
    cells = [
        Cell(f"{100 * claimed[name]:g}%") if name in claimed else NONE for name in PROBABILITIES
    ]
    head = (Cell("paper, decoder of 2.2B"), *[NONE] * 3)
    return (((*head, *cells),),)


def paper_shares() -> dict[str, float]:
    """Returns the fractions of attention probabilities that the paper states, by quantity."""
    claims = {row["dataset_or_metric"]: row["value"] for row in paper.lines("claims.csv")}
    return {name: float(claims[words]) / 100 for name, words in CLAIMED.items()}


def _notes(found: Found) -> Iterable[str]:
    examples = sorted({one.examples or 0 for seeds in found.values() for one in seeds.values()})
    yield (
        "Median over seeds at the last step that all seeds of the variant have, on "
        f"{' or '.join(map(str, examples))} examples. Over layers: mean of shares, entropy, "
        "Jacobian mean and median range; root of the sum of squares of gradient norms; largest "
        "Jacobian and range; sum of channels."
    )
    yield (
        f"paper: {paper.SOURCE}, text: about 80 % and 20 % of the probabilities of a decoder of "
        "2.2 B lie below 1e-3 and 1e-7. It does not say how it counted; here what a mask hides is "
        "left out. Shares grow with the number of keys."
    )
    yield (
        "Jacobian: Frobenius norm of diag(a) - a aT per row of probabilities a: 0.5 at two equal "
        "ones, 0 where one key has all. Floored channels: those of V whose range needs "
        "LASER's floored form; asked of every variant."
    )


def _plot(file: str, draw: Callable[[ErrorTable], Figure | None], words: str) -> Plot:
    return Plot(
        file=file,
        draw=draw,
        words=lambda table: f"{words} Variants: {', '.join(r.label for r in table.rows if r.n)}.",
        absent="the diagnostics of the trials that are done have no such numbers",
        caption=words,
        applies=lambda table: bool(diagnostics.of_table(table)),
    )


_BAND = "Line: median over seeds. Band: smallest to largest seed."
PLOTS = (
    _plot(
        "attention_probabilities.png",
        maps.histogram,
        "Histogram of attention probabilities by layer, in half decades, hidden entries left out. "
        "Dashed: 1e-7 and 1e-3; the strip on the left holds everything smaller.",
    ),
    _plot(
        "attention_shares.png",
        partial(
            lines.draw,
            title="small attention probabilities",
            panels=SMALL,
            lines=paper_shares(),
        ),
        f"Shares of attention probabilities below 1e-3 and 1e-7. {_BAND} Dashed: the paper's "
        "80 % and 20 %, of another model with more keys.",
    ),
    _plot(
        "attention_entropy.png",
        partial(lines.draw, title="entropy of attention", panels=ENTROPY),
        f"Entropy of attention's rows, and as a share of the greatest possible. {_BAND}",
    ),
    _plot(
        "attention_gradients.png",
        partial(lines.draw, title="gradient norms", panels=GRADIENTS),
        f"Gradient norms on the logits and the projections, all layers together. {_BAND}",
    ),
    _plot(
        "attention_gradients_by_layer.png",
        partial(lines.draw, title="gradient norms by layer", panels=GRADIENTS_BY_LAYER),
        f"Gradient norms by layer in the last record. {_BAND}",
    ),
    _plot(
        "attention_gradient_maps.png",
        maps.gradients,
        "Gradient norms by layer and step, mixers side by side under one colour scale. "
        "Grey: 0, as below a layer that starts at 0. A column is a record, its step in the middle.",
    ),
    _plot(
        "attention_values.png",
        partial(lines.draw, title="values", panels=VALUES),
        "Range of V's channels over the visible keys, and the share of channels that need LASER's "
        f"floored form (asked of every variant). {_BAND}",
    ),
    _plot(
        "attention_jacobian.png",
        partial(lines.draw, title="size of the softmax Jacobian (Frobenius)", panels=JACOBIAN),
        "Frobenius norm of the softmax Jacobian diag(a) - a aT: what a row lets through to its "
        f"logits. {_BAND}",
    ),
)
