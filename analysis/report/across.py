"""What a report says beyond single studies: loss by model size, and the paper's own tables."""

import functools
from collections.abc import Sequence

from analysis.documents.grid import Document
from analysis.paper import tables as paper_tables
from analysis.report import pictures
from analysis.report.pictures import Picture
from analysis.results.error_table import ErrorTable
from analysis.scaling import families, scaling
from analysis.scaling import layout as scaling_layout
from analysis.scaling import plot as scaling_plot
from analysis.scaling.scaling import MissingParametersError, MixedStudiesError

WORDS = (
    "Loss by number of parameters on logarithmic axes, a line fitted to each variant; the table "
    "of the scaling law has the numbers."
)
CAPTION = "One mark per study and variant: mean over seeds."


def studies(tables: Sequence[ErrorTable]) -> tuple[list[Document], list[Picture]]:
    """Returns the scaling law of each family of language models (one data set, optimizer,
    precision, batch size and budget), as tables and as figures: none where a family has one size
    only."""
    documents, figures = [], []
    for family in families.of(tables):
        documents.append(_document(family))
        figures.append(
            pictures.embed(functools.partial(scaling_plot.draw, family), lambda: WORDS, CAPTION)
        )
    return documents, [figure for figure in figures if figure is not None]


def paper(tables: Sequence[ErrorTable]) -> list[Document]:
    """Returns every table of the paper with what is known about it, those first that a study
    here stands beside."""
    beside = {table.study.paper_table for table in tables}
    keys = sorted(paper_tables.PRINTED, key=lambda key: key not in beside)
    return list(paper_tables.documents(keys))


def _document(family: Sequence[ErrorTable]) -> Document:
    try:
        return scaling_layout.document(scaling.of_tables(family))
    except (MissingParametersError, MixedStudiesError) as error:
        names = ", ".join(table.study.name for table in family)
        return Document(f"Loss by model size: {names}", (), (), (str(error),))
