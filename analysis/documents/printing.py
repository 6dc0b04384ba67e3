"""Prints documents for commands: as text, Markdown, LaTeX, CSV or HTML, to the screen or a file."""

import argparse
import csv as csv_module
import io
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Sequence

from analysis.documents.grid import Document
from sweeps import layout

FORMATS = ("text", "markdown", "latex", "csv", "html")
SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".html": "html"}
# One line per cell: the tables of a document differ in their columns.
CSV_COLUMNS = ("document", "table", "row", "label", "column", "text", "bold")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --format and --out."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="default: by the suffix of --out (.md .tex .csv .html), else text",
    )
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE", help="write to FILE instead")


def check(options: argparse.Namespace) -> None:
    """Raises ValueError where the directory of `options.out` does not exist: call it before
    anything that takes long."""
    if options.out and not options.out.parent.is_dir():
        raise ValueError(f"{options.out}: {options.out.parent} is no directory; make it first")


def form_of(options: argparse.Namespace) -> str:
    """Returns the format that the options mean: --format, else by the suffix of --out."""
    suffix = options.out.suffix if options.out else ""
    return str(options.format or SUFFIXES.get(suffix, "text"))


def emit(
    documents: Sequence[Document],
    options: argparse.Namespace,
    csv: Callable[[], str] | None = None,
) -> None:
    """Prints the documents as `options.format` says, to `options.out` where it is given.

    `csv` gives the text of that format where the cells as printed (`to_csv`) are not what a
    program would want. Raises ValueError where the directory of `options.out` does not exist.
    """
    check(options)
    out: pathlib.Path | None = options.out
    form = form_of(options)
    rendered = _all(documents, form, out is None, csv)
    if out is None:
        show(rendered)
        return
    layout.write_atomically(out, rendered)
    print(f"wrote {out}", file=sys.stderr)


def _all(
    documents: Sequence[Document], form: str, is_screen: bool, csv: Callable[[], str] | None
) -> str:
    if form == "csv":
        for problem in (problem for document in documents for problem in document.problems):
            print(problem, file=sys.stderr)
        return csv() if csv else to_csv(documents)
    if form == "html":
        from analysis.documents import render_html

        return render_html.tables(documents)
    return "\n".join(_rendered(document, form, is_screen) for document in documents)


def to_csv(documents: Sequence[Document]) -> str:
    """Returns the cells of all tables as one CSV text, in order: the document's title, the table's
    caption, the row's number from 1 and its first cell, the column's heading, the text as printed,
    and 1 where it is bold. Notes and problems are not in it."""
    out = io.StringIO()
    writer = csv_module.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for document in documents:
        for grid in document.grids:
            headings = [column.heading.replace("\n", " ") for column in grid.columns]
            rows = [row for section in grid.sections for row in section]
            for number, row in enumerate(rows, start=1):
                for heading, cell in zip(headings, row, strict=True):
                    place = (document.title, grid.caption, number, row[0].text)
                    writer.writerow((*place, heading, cell.text, int(cell.bold)))
    return out.getvalue()


def _rendered(document: Document, form: str, is_screen: bool) -> str:
    from analysis.documents import render

    if form == "text" and is_screen:
        return on_screen(document)
    return {"text": render.text, "markdown": render.markdown, "latex": render.latex}[form](document)


def on_screen(document: Document) -> str:
    """Returns the document as text for this terminal, in colours where it is one."""
    from analysis.documents import render

    return render.text(document, sys.stdout.isatty(), shutil.get_terminal_size().columns)


def show(text: str) -> None:
    """Prints a text. A reader that has seen enough (`| head`) closes the pipe; that is no error
    of ours."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
