"""`report`: one HTML file with everything that a study's directory says, verdicts first."""

import argparse
import datetime
import pathlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.documents import printing
from analysis.results import study_arguments
from sweeps.records import layout

if TYPE_CHECKING:
    from analysis.documents.grid import Document
    from analysis.report.pictures import Picture
    from analysis.results.error_table import ErrorTable
    from analysis.results.verdicts import Verdict

FILE = "report.html"
DESCRIPTION = """\
Writes one self-contained HTML file: verdicts, tables with intervals, differences from the baseline,
learning curves, hyperparameters, time to target, what was recorded inside the attention layers,
the paper's own tables, provenance. It opens from disk without a network and prints.

  python -m analysis report experiments/mystudy
  python -m analysis report experiments --out=report.html      every study below a directory
"""


@dataclass(frozen=True)
class Section:
    """One study and workload: what the template prints of it, in its order."""

    anchor: str
    title: str
    headline: str
    description: str
    sensitivity: str
    verdicts: "Sequence[Verdict]"
    problems: int
    first_pictures: "Sequence[Picture]"
    table: "Document"
    pictures: "Sequence[Picture]"
    documents: "Sequence[Document]"
    inside: "Sequence[Picture]"
    inside_documents: "Sequence[Document]"
    provenance: Sequence[tuple[str, str]]
    config: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.description = DESCRIPTION
    study_arguments.add_comparison(parser)
    parser.add_argument(
        "--out", type=pathlib.Path, metavar="FILE", help=f"default: {FILE} in the directory"
    )


def run(options: argparse.Namespace) -> int:
    """Writes the report. Returns 0. Raises ValueError or OSError for a directory without a study
    and for a file that cannot be written, before anything is drawn."""
    out = options.out or options.study / FILE
    printing.check_file(out)
    tables = list(study_arguments.tables(options))
    layout.write_atomically(out, page(tables, options.study))
    print(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB)")
    return 0


def page(tables: "Sequence[ErrorTable]", directory: pathlib.Path) -> str:
    """Returns the page on `tables`, one section each; figures are inside it as data."""
    from analysis.documents import render_html
    from analysis.report import across

    sections = [_section(number, table) for number, table in enumerate(tables)]
    names = list(dict.fromkeys(table.study.name for table in tables))
    title = names[0] if len(names) == 1 else f"{directory.resolve().name}: {len(names)} studies"
    documents, pictures = across.studies(tables)
    appendix = [*documents, *across.paper(tables)]
    return render_html.render(
        "report.html",
        title=title,
        made=f"Report made by attnperf on {datetime.date.today().isoformat()}; figures of the "
        "paper: LASER: Attention with Exponential Transformation (ICML 2025).",
        sections=sections,
        across=len(documents),
        across_pictures=pictures,
        appendix=appendix,
    )


def _section(number: int, table: "ErrorTable") -> Section:
    from analysis.documents import style
    from analysis.report import provenance, sections
    from analysis.results import sensitivity_words, verdicts
    from analysis.tables import present

    style.distinguish(row.variant for row in table.rows)
    name = f"{table.study.name}: {table.metric.title} on {table.workload}"
    return Section(
        anchor=f"{number}-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}",
        title=name,
        headline=verdicts.headline(table),
        description=sections.description(table),
        sensitivity=sensitivity_words.sentence(table),
        verdicts=verdicts.of_table(table),
        problems=len(table.problems),
        first_pictures=sections.pictures(table, sections.FIRST),
        table=present.document(table),
        pictures=sections.pictures(table, sections.REST),
        documents=sections.documents(table),
        inside=sections.inside(table),
        inside_documents=sections.inside_documents(table),
        provenance=provenance.of_table(table),
        config=provenance.config(table),
    )
