"""Lays scaling out: losses by size, the fits, the parameters saved, and what to know about them."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from analysis.documents import grid, variants
from analysis.documents.grid import Cell, Column, Document, Grid
from analysis.paper import paper
from analysis.scaling import power_law, savings
from analysis.scaling.power_law import PowerLaw
from analysis.scaling.savings import Saving

if TYPE_CHECKING:
    from analysis.scaling.scaling import Scaling, Size

NONE = Cell(grid.NOTHING)
PAPER_SHARE = paper.printed(
    "text_scaling_law.csv",
    "decoder-LM {234M,300M,435M,1.1B,2.2B}, 167B tokens",
    "fewer parameters to reach test loss 2.347",
    "LASER vs Standard",
)
WORDS = Column("Variant", numeric=False)
# Whether fits are paired to what their intervals are worth; measured in `savings.between`.
PAIRING = {
    True: (
        "Paired: both variants have the same seeds at every size, so the intervals take the "
        "covariance of the two fits' residuals into account; of simulated studies they hold the "
        "true share in 94 to 96 % with five sizes and in 96 to 99 % with three."
    ),
    False: (
        "Not paired (seeds are not the same at every size): the two fits count as independent. Of "
        "simulated studies the bootstrap's interval holds the true share in 98 to 100 %, the delta "
        "method's in 96 to 97 %, and both in 99 to 100 % where the variants' losses vary together."
    ),
}


def document(found: "Scaling") -> Document:
    """Returns the sizes, the fits, and the savings where there are any."""
    grids = [_sizes(found)]
    grids += [_fits(found)] if found.fits else []
    grids += [_savings(found)] if found.savings or found.without else []
    return Document(
        title=f"{', '.join(found.names)}: {found.split} loss by number of parameters",
        grids=tuple(grids),
        notes=tuple(_notes(found)),
        problems=found.problems,
    )


def _sizes(found: "Scaling") -> Grid:
    has_paper = any(size.paper for size in found.sizes)
    columns = (
        Column("Workload", numeric=False), Column("Parameters"), WORDS, Column("n"),
        *((Column("Loss\npaper"),) if has_paper else ()),
        Column("Loss\nmeasured" if has_paper else "Loss"),
    )  # fmt: skip
    rows = tuple(_size_cells(size, has_paper) for size in found.sizes)
    return Grid("Geometric mean over seeds", columns, (rows,))


def _size_cells(size: "Size", has_paper: bool) -> tuple[Cell, ...]:
    return (
        Cell(size.workload),
        Cell(f"{size.parameters:,}"),
        Cell(variants.label(size.variant)),
        Cell(str(len(size.values))),
        *((Cell(size.paper or grid.NOTHING),) if has_paper else ()),
        grid.number(size.mean),
    )


def _fits(found: "Scaling") -> Grid:
    headings = ("a", "b", "95% interval\nof b (t)", "Sizes", "from", "to")
    rows = tuple((Cell(variants.label(name)), *_fit_cells(law)) for name, law in found.fits.items())
    columns = (WORDS, *(Column(heading) for heading in headings))
    return Grid("Power law f(n) = a n^b", columns, (rows,))


def _fit_cells(law: PowerLaw) -> tuple[Cell, ...]:
    return (
        Cell(f"{law.a:.4g}"),
        grid.number(law.b, 5),
        _bounds(law.low, law.high, 5),
        Cell(str(law.sizes)),
        Cell(f"{law.smallest:.4g}"),
        Cell(f"{law.largest:.4g}"),
    )


def _bounds(low: float, high: float, digits: int, unit: str = "") -> Cell:
    if math.isnan(low):
        return Cell("none (2 sizes)")
    return Cell(f"[{low:.{digits}f}, {high:.{digits}f}]{unit}")


def _savings(found: "Scaling") -> Grid:
    headings = (
        "Parameters\nbaseline", "Parameters\nvariant", "Fewer", "95% interval\n(bootstrap)",
        "95% interval\n(delta)", "Paper",
    )  # fmt: skip
    columns = (WORDS, *(Column(heading) for heading in headings))
    rows = tuple(
        _saving_cells(name, found.savings.get(name))
        for name in found.fits
        if name in found.savings or name in found.without
    )
    return Grid(f"Parameters to reach {found.split} loss {found.loss:.4g}", columns, (rows,))


def _saving_cells(name: str, saving: Saving | None) -> tuple[Cell, ...]:
    if saving is None:
        return (Cell(variants.label(name)), NONE, NONE, Cell("none (see notes)"), NONE, NONE, NONE)
    mark = "†" if saving.is_extrapolated else ""
    return (
        Cell(variants.label(name)),
        Cell(f"{saving.baseline:.4g}"),
        Cell(f"{saving.variant:.4g}"),
        Cell(f"{100 * saving.share:.2f} %{mark}"),
        _bounds(100 * saving.low, 100 * saving.high, 1, " %"),
        _bounds(100 * saving.delta_low, 100 * saving.delta_high, 1, " %"),
        Cell(f"{PAPER_SHARE.text} %") if PAPER_SHARE and name == "laser" else NONE,
    )


def _notes(found: "Scaling") -> Iterable[str]:
    yield (
        "Loss: at each trial's step that validation chose, as in `table`; parameters: as counted "
        "by the trials, all of them, the embedding included."
    )
    if not found.fits:
        yield "Fewer than two sizes of any variant: no power law."
        return
    yield (
        "f(n) = a n^b by least squares on the logs, each size weighted by its seeds; no "
        "irreducible loss is fitted: these few sizes do not determine one."
    )
    if any(law.sizes < power_law.LEAST_SIZES for law in found.fits.values()):
        yield f"Fewer than {power_law.LEAST_SIZES} sizes: no residual, so no interval."
    for name, why in found.without.items():
        yield f"No share of parameters for {variants.label(name)}: {why}."
    if found.savings:
        yield from _saving_notes(found)


def _saving_notes(found: "Scaling") -> Iterable[str]:
    yield (
        f"Fewer: 1 - n of the variant / n of {variants.label(found.baseline)}, each with "
        f"f(n) = {found.loss:.4g} ({found.source}). Bootstrap: parametric, "
        f"{savings.RESAMPLES:,} draws of (log a, b); delta: on the log ratio. Below 0 the "
        "variant needs more parameters."
    )
    kinds = {saving.is_paired for saving in found.savings.values()}
    yield from (note for is_paired, note in PAIRING.items() if is_paired in kinds)
    if any(saving.is_extrapolated for saving in found.savings.values()):
        yield "†: extrapolated, a size lies outside of those that were fitted."
    if "laser" in found.savings:
        yield (
            f"paper: {paper.SOURCE}, text on the scaling law, test loss 2.347. Its 15.65 % cannot "
            "be recomputed: the losses of the fit at 1.1 B and 2.2 B are not printed. Refits of "
            "what is printed give 23.2 % (three sizes) or about 13 % (with the 2.2 B row of "
            "tab:bf16), with intervals that hold 0 in both."
        )
