"""The parts of a report on one study: which figures and documents, with which words."""

import functools
from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from analysis.diagnostics import plots as diagnostic_plots
from analysis.diagnostics import spikes
from analysis.diagnostics import table as diagnostics
from analysis.documents import variants
from analysis.documents.grid import Document
from analysis.plots import curves, effects, hyperparameters, intervals
from analysis.report import alternatives
from analysis.report import pictures as embedding
from analysis.report.pictures import Picture
from analysis.results.error_table import ErrorTable
from analysis.times import plot as target_plot
from analysis.times import target_times

Drawing = Callable[[ErrorTable], Figure | None]
# What draws a figure, its words for those who cannot see it, how to read it.
Part = tuple[Drawing, Callable[[ErrorTable], str], str]

FIRST: tuple[Part, ...] = (
    (
        effects.draw,
        alternatives.of_effects,
        "Difference from the baseline, mean over seeds, with its own 95% interval: not corrected "
        "for the number of variants, as the verdicts are.",
    ),
)
REST: tuple[Part, ...] = (
    (
        intervals.draw,
        alternatives.of_intervals,
        "Each seed at the step that its validation chose; mean and 95% interval.",
    ),
    (
        curves.draw,
        alternatives.of_curves,
        "Line: median over seeds. Band: smallest to largest seed.",
    ),
    (
        hyperparameters.draw,
        alternatives.of_hyperparameters,
        "One mark per trial at its best validation step.",
    ),
    (
        target_plot.draw,
        alternatives.of_target_times,
        "First evaluation at or past the target, one mark per seed.",
    ),
)
DOCUMENTS: tuple[Callable[[ErrorTable], Document | None], ...] = (
    target_times.document,
    spikes.document,
)
INSIDE_DOCUMENTS: tuple[Callable[[ErrorTable], Document | None], ...] = (diagnostics.document,)


def description(table: ErrorTable) -> str:
    """Returns what was compared, in a sentence or two."""
    measured = [row for row in table.rows if row.n]
    seeds = sorted({row.n for row in measured})
    spread = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0] if seeds else 0)
    many = "seed" if spread == "1" else "seeds"
    whom = "1 variant" if len(table.rows) == 1 else f"{len(table.rows)} variants"
    said = f"{whom}, {spread} {many} each, workload {table.workload}"
    if table.has_baseline:
        said += f", baseline {variants.label(table.baseline)}"
    note = f" Data: {table.reference_note}" if table.reference_note else ""
    return f"{said}.{note}"


def pictures(table: ErrorTable, parts: Sequence[Part]) -> list[Picture]:
    """Returns the figures that there is something to draw for."""
    found = (
        embedding.embed(functools.partial(draw, table), functools.partial(words, table), caption)
        for draw, words, caption in parts
    )
    return [picture for picture in found if picture is not None]


def documents(table: ErrorTable) -> list[Document]:
    """Returns the tables below the main one."""
    return _made(DOCUMENTS, table)


def inside(table: ErrorTable) -> list[Picture]:
    """Returns the figures of what was recorded inside the attention layers."""
    parts = [
        (draw, functools.partial(_words, words), words)
        for draw, _, words in diagnostic_plots.PLOTS.values()
    ]
    return pictures(table, parts)


def _words(words: str, table: ErrorTable) -> str:
    return f"{words} Variants: {', '.join(row.label for row in table.rows if row.n)}."


def inside_documents(table: ErrorTable) -> list[Document]:
    """Returns the tables of what was recorded inside the attention layers."""
    return _made(INSIDE_DOCUMENTS, table)


def _made(
    makers: Sequence[Callable[[ErrorTable], Document | None]], table: ErrorTable
) -> list[Document]:
    return [made for maker in makers if (made := maker(table)) is not None]
