"""The views: everything that a study's results are shown as, listed once.

The commands, `plots` and the report take views from here. A view is a module with a `page`, tables
and notes, or with PLOTS, figures of an error table, or both; it is imported when it is first asked
for, so that `table` does without matplotlib.
"""

import importlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from analysis.compare.error_table import ErrorTable


class View(NamedTuple):
    """A module below this folder; whether `plots` writes its figures."""

    module: str
    is_plotted: bool = False


# In the order in which `plots` writes figures.
VIEWS = {
    "runs": View("runs"),
    "table": View("table.error_table"),
    "curves": View("curves", is_plotted=True),
    "hyperparameters": View("hyperparameters", is_plotted=True),
    "intervals": View("intervals", is_plotted=True),
    "effects": View("effects", is_plotted=True),
    "time": View("time", is_plotted=True),
    "spikes": View("spikes"),
    "diagnostics": View("diagnostics.page", is_plotted=True),
    "scaling": View("scaling"),
    "paper": View("paper"),
    "reconstruction": View("reconstruction"),
}


def get(name: str) -> Any:
    """Returns the module of a view of VIEWS."""
    return importlib.import_module(f"analysis.views.{VIEWS[name].module}")


def write_plots(tables: "Sequence[ErrorTable]", out: pathlib.Path | None) -> Iterator[str]:
    """Writes the figures of `tables` below `out`, or into plots/ of each one's study unless given,
    and yields a line for each: the file written, or why there is nothing to draw."""
    from analysis.render import pictures, style

    views = [get(name) for name, view in VIEWS.items() if view.is_plotted]
    for table in tables:
        directory = _directory(table, tables, out)
        directory.mkdir(parents=True, exist_ok=True)
        style.distinguish(row.variant for row in table.rows)
        for plot in (plot for view in views for plot in view.PLOTS if plot.applies(table)):
            figure = plot.draw(table)
            if figure is None:
                yield f"not written: {plot.file}: {plot.absent}"
                continue
            pictures.save(figure, directory / plot.file)
            yield f"wrote {directory / plot.file}"


def _directory(
    table: "ErrorTable", tables: "Sequence[ErrorTable]", out: pathlib.Path | None
) -> pathlib.Path:
    """Returns a directory that no other of the tables writes into."""
    studies = {other.study.directory for other in tables}
    shared = [other for other in tables if other.study.directory == table.study.directory]
    directory = out or table.study.directory / "plots"
    if out and len(studies) > 1:
        directory /= table.study.directory.name
    return directory / table.workload if len(shared) > 1 else directory
