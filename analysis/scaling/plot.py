"""scaling.png: loss by number of parameters, with the fitted power laws."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.documents import style, variants
from analysis.results.error_table import ErrorTable

if TYPE_CHECKING:
    from analysis.scaling.scaling import Scaling


def draw(tables: Sequence[ErrorTable]) -> Figure | None:
    """Returns the figure of tables of losses, one per size; None where no variant has two sizes,
    the trials do not record their numbers of parameters, or the tables are of no one family."""
    from analysis.scaling import scaling

    try:
        found = scaling.of_tables(tables)
    except (scaling.MissingParametersError, scaling.MixedStudiesError):
        return None
    return figure(found) if found.fits else None


def figure(found: "Scaling") -> Figure:
    """Returns the figure: a dot is a seed, a line a fit; dotted in grey, the loss to reach."""
    names = [*found.fits]
    style.distinguish(names)
    drawn = style.figure(7.2, 4.6)
    axes = drawn.subplots()
    style.tidy(axes)
    for name in names:
        _variant(axes, found, name)
    values = np.array([v for size in found.sizes for v in size.values.values()])
    sizes = np.array([size.parameters for size in found.sizes], float)
    axes.set_xlim(*style.around(sizes, True))
    axes.set_ylim(*style.around(values, True))
    style.log_axis(axes.yaxis)
    axes.set_xscale("log")
    axes.set_xticks(sorted(set(sizes)), [_millions(size) for size in sorted(set(sizes))])
    axes.minorticks_off()
    if found.loss is not None:
        axes.axhline(found.loss, color=style.GREY, linestyle=":", linewidth=1.2)
    axes.set_xlabel("parameters", fontsize=10)
    axes.set_ylabel(f"{found.split} loss", fontsize=10)
    style.title(drawn, f"{', '.join(found.names)}: loss by size")
    style.legend(drawn, _handles(names, found))
    return drawn


def _variant(axes: Axes, found: "Scaling", name: str) -> None:
    colour, marker = style.look(name)
    for size in found.sizes:
        if size.variant == name:
            values = [*size.values.values()]
            axes.plot(
                [size.parameters] * len(values), values, marker, color=colour, ms=5, alpha=0.6
            )
    law = found.fits[name]
    ends = np.geomspace(law.smallest, law.largest, 50)
    line = _line(name, found)
    axes.plot(ends, [law.loss(n) for n in ends], color=colour, linewidth=1.5, linestyle=line)


def _line(name: str, found: "Scaling") -> Any:
    """Returns the line style: variants of one mixer share its colour, so each has dashes."""
    peers = [other for other in found.fits if variants.mixer(other) == variants.mixer(name)]
    return ("-", *style.REFERENCE_LINES)[peers.index(name) % 4]


def _millions(parameters: float) -> str:
    """Returns 301M, 2.2B."""
    for scale, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if parameters >= scale:
            return f"{parameters / scale:.3g}{letter}"
    return f"{parameters:g}"


def _handles(names: Sequence[str], found: "Scaling") -> list:
    handles = []
    for name in names:
        colour, marker = style.look(name)
        line = _line(name, found)
        handles.append(style.key(variants.label(name), color=colour, marker=marker, ls=line))
    if found.loss is not None:
        handles.append(style.key(f"loss {found.loss:.4g}", color=style.GREY, ls=":"))
    return handles
