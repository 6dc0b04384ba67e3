"""Writes a study's plots as PNG files."""

import pathlib
from collections.abc import Iterator

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from analysis.diagnostics import plots as diagnostic_plots
from analysis.diagnostics import records as diagnostic_records
from analysis.documents import style
from analysis.plots import curves, effects, hyperparameters, intervals
from analysis.results.error_table import ErrorTable
from analysis.times import plot as target_plot
from sweeps.records import layout

# File to (what draws it, why it can be absent).
PLOTS = {
    "learning_curves.png": (curves.draw, "no trial that is done has a curve"),
    "hyperparameters.png": (hyperparameters.draw, "no hyperparameter varies among measured trials"),
    "errors.png": (intervals.draw, "no trial that is done has a number"),
    "effects.png": (effects.draw, "no variant is compared with a baseline"),
    "time_to_target.png": (target_plot.draw, "no target is known, or no seed reached it"),
}


def write(table: ErrorTable, directory: pathlib.Path) -> Iterator[str]:
    """Writes the plots of `table` into `directory`, which is made, and yields a line for each:
    the file written, or why there is nothing to draw."""
    directory.mkdir(parents=True, exist_ok=True)
    style.distinguish(row.variant for row in table.rows)
    drawn = {name: (draw, why) for name, (draw, why, _) in diagnostic_plots.PLOTS.items()}
    every = {**PLOTS, **(drawn if diagnostic_records.of_table(table) else {})}
    for name, (draw, why_absent) in every.items():
        figure = draw(table)
        if figure is None:
            yield f"not written: {name}: {why_absent}"
            continue
        save(figure, directory / name)
        yield f"wrote {directory / name}"


def save(figure: Figure, path: pathlib.Path) -> None:
    """Writes `figure` to `path` as PNG: the old file or the whole new one, never a part."""
    with layout.replacing(path) as new, style.any_letters():
        FigureCanvasAgg(figure).print_png(new)
