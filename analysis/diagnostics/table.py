"""The table of diagnostics: each variant's last record beside what the paper says of its own."""

import csv
from collections.abc import Callable, Iterable

import numpy as np

from analysis.diagnostics import records
from analysis.diagnostics.records import SHARES, Diagnostics
from analysis.documents import grid, variants
from analysis.documents.grid import Cell, Column, Document, Grid
from analysis.paper import paper
from analysis.results.error_table import ErrorTable

CLAIMS = "claims.csv"
CLAIMED = {
    "share_below_1e-3": "attention probabilities < 1e-3",
    "share_below_1e-7": "attention probabilities < 1e-7",
}
# Quantity to (heading, how one number is made of the layers').
_Reduce = Callable[[np.ndarray], np.floating]


def _root_sum_square(values: np.ndarray) -> np.floating:
    return np.sqrt(np.sum(np.square(values)))


PROBABILITIES: dict[str, tuple[str, _Reduce]] = {
    "share_below_1e-3": ("Below\n1e-3", np.mean),
    "share_below_1e-7": ("Below\n1e-7", np.mean),
    "entropy": ("Entropy\n(nats)", np.mean),
    "entropy_share": ("Entropy /\nln(keys)", np.mean),
    "jacobian_mean": ("Jacobian\nmean", np.mean),
    "jacobian_max": ("Jacobian\nmax", np.max),
}
GRADIENTS_AND_VALUES: dict[str, tuple[str, _Reduce]] = {
    "logit_grad_norm": ("Gradient\non logits", _root_sum_square),
    "query_grad_norm": ("on W_Q", _root_sum_square),
    "key_grad_norm": ("on W_K", _root_sum_square),
    "value_grad_norm": ("on W_V", _root_sum_square),
    "value_range_median": ("Range of V\nmedian", np.mean),
    "value_range_max": ("Range of V\nmax", np.max),
    "floored_channels": ("Floored\nchannels", np.sum),
    "channels": ("of", np.sum),
}


def document(table: ErrorTable) -> Document | None:
    """Returns the table of the last records, None where no trial of the table has diagnostics.

    Per variant: layers reduced to one number (the notes say how), median over seeds, at the last
    step that all its seeds have.
    """
    found = records.of_table(table)
    said = records.problems(table)
    if not found and not said:
        return None
    grids = (
        _grid("Attention probabilities in the last record", PROBABILITIES, found, _paper_section()),
        _grid("Gradients and values in the last record", GRADIENTS_AND_VALUES, found, ()),
    )
    return Document(
        title=f"{table.study.name}: attention on {table.workload}, stage {table.stage}",
        grids=grids if found else (),
        notes=tuple(_notes(found)) if found else (),
        problems=tuple(said),
    )


def _grid(
    caption: str,
    quantities: dict[str, tuple[str, _Reduce]],
    found: dict[str, dict[int, Diagnostics]],
    foot: tuple[tuple[tuple[Cell, ...], ...], ...],
) -> Grid:
    columns = (
        Column("Variant", numeric=False),
        *(Column(heading) for heading in ("n", "Step", "Layers")),
        *(Column(heading) for heading, _ in quantities.values()),
    )
    groups: dict[str, list[tuple[Cell, ...]]] = {}
    for variant, seeds in found.items():
        groups.setdefault(variants.group(variant), []).append(_row(variant, seeds, quantities))
    return Grid(caption, columns, (*(tuple(rows) for rows in groups.values()), *foot))


def _row(
    variant: str, seeds: dict[int, Diagnostics], quantities: dict[str, tuple[str, _Reduce]]
) -> tuple[Cell, ...]:
    step = last_step(seeds.values())
    layers = max(len(one.layers) for one in seeds.values())
    head = (Cell(variants.label(variant)), Cell(str(len(seeds))))
    place = (Cell(grid.NOTHING if step is None else f"{step}"), Cell(f"{layers}"))
    cells = (_cell(name, seeds, step, reduce) for name, (_, reduce) in quantities.items())
    return (*head, *place, *cells)


def last_step(of: Iterable[Diagnostics]) -> int | None:
    """Returns the last step that all have, None where they share none."""
    shared = set.intersection(*(set(one.steps.tolist()) for one in of))
    return max(shared, default=None)


def _cell(name: str, seeds: dict[int, Diagnostics], step: int | None, reduce: _Reduce) -> Cell:
    if step is None:
        return Cell(grid.NOTHING)
    reduced = []
    for one in seeds.values():
        at = one.values[name][one.steps == step][0]
        known = at[np.isfinite(at)]
        if known.size:
            reduced.append(float(reduce(known)))
    return _number(name, float(np.median(reduced))) if reduced else Cell(grid.NOTHING)


def _number(name: str, value: float) -> Cell:
    if name in SHARES:
        return Cell(f"{100 * value:.1f}%")
    if name in ("channels", "floored_channels"):
        return Cell(f"{value:g}")
    return Cell(f"{value:.3g}")


def _paper_section() -> tuple[tuple[tuple[Cell, ...], ...], ...]:
    claimed = paper_shares()
    cells = [
        Cell(f"{100 * claimed[name]:g}%") if name in claimed else Cell(grid.NOTHING)
        for name in PROBABILITIES
    ]
    head = (Cell("paper, decoder of 2.2B"), *[Cell(grid.NOTHING)] * 3)
    return (((*head, *cells),),)


def paper_shares() -> dict[str, float]:
    """Returns the fractions of attention probabilities that the paper states, by quantity."""
    with (paper.DIRECTORY / CLAIMS).open(encoding="utf-8", newline="") as lines:
        claims = {row["dataset_or_metric"]: row["value"] for row in csv.DictReader(lines)}
    return {name: float(claims[words]) / 100 for name, words in CLAIMED.items()}


def _notes(found: dict[str, dict[int, Diagnostics]]) -> Iterable[str]:
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
