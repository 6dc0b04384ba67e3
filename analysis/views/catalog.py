"""The views: everything that a study's results are shown as, listed once.

The commands, `plots` and the report take views from here. A view is a module with a `page`, tables
and notes, or with PLOTS, figures of an error table, or both; it is imported when it is first asked
for, so that `table` does without matplotlib.
"""

import importlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attention import files

if TYPE_CHECKING:
    from analysis.compare.error_table import ErrorTable


# A view's module below this folder.
VIEWS = {
    "summary": "summary",
    "runs": "runs",
    "table": "table.error_table",
    "curves": "curves",
    "hyperparameters": "hyperparameters",
    "intervals": "intervals",
    "effects": "effects",
    "time": "time",
    "spikes": "spikes",
    "downstream": "downstream.page",
    "diagnostics": "diagnostics.page",
    "scaling": "scaling",
    "paper": "paper",
    "reconstruction": "reconstruction",
    "hardware": "hardware",
}
# Whose figures `plots` writes, in this order.
PLOTTED = ("curves", "hyperparameters", "intervals", "effects", "time", "downstream", "diagnostics")


def get(name: str) -> Any:
    """Returns the module of a view of VIEWS."""
    return importlib.import_module(f"analysis.views.{VIEWS[name]}")


def write_plots(tables: "Sequence[ErrorTable]", out: pathlib.Path | None) -> Iterator[str]:
    """Writes the figures of `tables` below `out`, or into plots/ of each one's study unless given,
    and yields a line for each: the file written, or why there is nothing to draw."""
    from analysis.render import pictures, style

    directories = [_directory(table, tables, out) for table in tables]
    for directory in directories:
        files.check_output_directory(directory, "--out")
        directory.mkdir(parents=True, exist_ok=True)
    style.distinguish(row.variant for table in tables for row in table.rows)
    for table, directory in zip(tables, directories, strict=True):
        for plot in (plot for name in PLOTTED for plot in get(name).PLOTS if plot.applies(table)):
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
