"""What a report says beyond single studies: loss by model size, and the paper's own tables."""

import functools
from collections.abc import Sequence

from analysis import paper_tables, pictures, scaling, scaling_layout, scaling_plot
from analysis.error_table import ErrorTable
from analysis.grid import Document
from analysis.pictures import Picture
from analysis.scaling import MissingParametersError

WORDS = (
    "Loss by number of parameters on logarithmic axes, a line fitted to each variant; the table "
    "of the scaling law has the numbers."
)
CAPTION = "One mark per study and variant: mean over seeds."


def studies(tables: Sequence[ErrorTable]) -> tuple[list[Document], list[Picture]]:
    """Returns the scaling law of each family of language models, as tables and as figures: none
    where a family has one size only."""
    documents, figures = [], []
    for family in _families(tables):
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


def _families(tables: Sequence[ErrorTable]) -> list[list[ErrorTable]]:
    """Returns the tables of losses by what their workloads are sizes of (c4_lm_234m and c4_lm_1b
    of c4_lm) and by the split that decides."""
    families: dict[tuple[str, str], list[ErrorTable]] = {}
    for table in tables:
        data, is_language, _ = table.workload.partition("_lm")
        if is_language and table.metric.name == "loss" and any(row.n for row in table.rows):
            families.setdefault((data, table.decisive), []).append(table)
    return [each for each in families.values() if len({table.workload for table in each}) > 1]


def _document(family: Sequence[ErrorTable]) -> Document:
    try:
        return scaling_layout.document(scaling.of_tables(family))
    except MissingParametersError as error:
        names = ", ".join(table.study.name for table in family)
        return Document(f"Loss by model size: {names}", (), (), (str(error),))
