"""Lays scaling out: losses by size, the fits, the parameters saved, and what to know about them."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from analysis import grid, paper, power_law, variants
from analysis.grid import Cell, Column, Document, Grid
from analysis.power_law import PowerLaw, Saving

if TYPE_CHECKING:
    from analysis.scaling import Scaling, Size

NONE = Cell(grid.NOTHING)
PAPER_SHARE = paper.printed(
    "text_scaling_law.csv",
    "decoder-LM {234M,300M,435M,1.1B,2.2B}, 167B tokens",
    "fewer parameters to reach test loss 2.347",
    "LASER vs Standard",
)
WORDS = Column("Variant", numeric=False)


def document(found: "Scaling") -> Document:
    """Returns the sizes, the fits, and the savings where there are any."""
    grids = [_sizes(found)]
    grids += [_fits(found)] if found.fits else []
    grids += [_savings(found)] if found.savings else []
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
        Cell(str(law.freedom + 2)),
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
    rows = tuple(_saving_cells(name, saving) for name, saving in found.savings.items())
    return Grid(f"Parameters to reach {found.split} loss {found.loss:.4g}", columns, (rows,))


def _saving_cells(name: str, saving: Saving) -> tuple[Cell, ...]:
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
    if any(law.freedom == 0 for law in found.fits.values()):
        yield f"Fewer than {power_law.LEAST_SIZES} sizes: no residual, so no interval."
    if found.savings:
        yield from _saving_notes(found)


def _saving_notes(found: "Scaling") -> Iterable[str]:
    yield (
        f"Fewer: 1 - n of the variant / n of {variants.label(found.baseline)}, each with "
        f"f(n) = {found.loss:.4g} ({found.source}). Bootstrap: parametric, "
        f"{power_law.RESAMPLES:,} draws of (log a, b); delta: on the log ratio. Below 0 the "
        "variant needs more parameters."
    )
    if any(saving.is_extrapolated for saving in found.savings.values()):
        yield "†: extrapolated, a size lies outside of those that were fitted."
    if "laser" in found.savings:
        yield (
            f"paper: {paper.SOURCE}, text on the scaling law, test loss 2.347. Its 15.65 % cannot "
            "be recomputed: the losses of the fit at 1.1 B and 2.2 B are not printed. Refits of "
            "what is printed give 23.2 % (three sizes) or about 13 % (with the 2.2 B row of "
            "tab:bf16), with intervals that hold 0 in both."
        )
