"""Prints pages for commands: as text, Markdown, LaTeX, CSV or HTML, to the screen or a file."""

import argparse
import csv as csv_module
import io
import os
import pathlib
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any

from analysis.render import text
from analysis.render.pages import Page
from attention import files
from sweeps.records import layout

FORMATS = ("text", "markdown", "latex", "csv", "html")
SUFFIXES = {".txt": "text", ".md": "markdown", ".tex": "latex", ".csv": "csv", ".html": "html"}
# What a spreadsheet takes for a formula at the start of a cell (OWASP, "CSV Injection").
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
NUMBER = re.compile(r"[-+]?(\d[\d,]*\.?\d*|\.\d+)(e[-+]?\d+)?%?|[-+]?inf")
# One line per cell: the tables of a page differ in their columns.
CSV_COLUMNS = ("document", "table", "row", "label", "column", "text", "bold")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --format and --out."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help=f"default: by the suffix of --out ({' '.join(SUFFIXES)}), else text",
    )
    parser.add_argument(
        "--out", type=files.typed_path, metavar="FILE", help="write to FILE instead"
    )


def check(options: argparse.Namespace) -> None:
    """Raises ValueError where `options.out` cannot be written, or its suffix is not the format's:
    call it before anything that takes long."""
    if options.out:
        files.check_output(options.out)
    form_of(options)


def form_of(options: argparse.Namespace) -> str:
    """Returns the format that the options mean: --format, else by the suffix of --out, text
    without one. Raises ValueError for a suffix of no format, or of another than --format."""
    suffix = options.out.suffix.lower() if options.out else ""
    if suffix and suffix not in SUFFIXES:
        raise ValueError(
            f"--out={options.out}: {suffix} is no format of ours; give one of "
            f"{', '.join(SUFFIXES)}, or a name without a suffix and --format"
        )
    form = str(options.format or SUFFIXES.get(suffix, "text"))
    if suffix and SUFFIXES[suffix] != form:
        own = next(name for name, each in SUFFIXES.items() if each == form)
        raise ValueError(
            f"--out={options.out} is a name for {SUFFIXES[suffix]}, --format={form} writes {own}: "
            "leave one of the two out"
        )
    return form


def emit(
    pages: Sequence[Page], options: argparse.Namespace, csv: Callable[[], str] | None = None
) -> None:
    """Prints the pages as `options.format` says, to `options.out` where it is given.

    `csv` gives the text of that format where the cells as printed (`to_csv`) are not what a
    program would want. `check` comes first.
    """
    out: pathlib.Path | None = options.out
    rendered = _rendered(pages, form_of(options), out is None, csv)
    if out is None:
        show(rendered)
        return
    layout.write_atomically(out, rendered)
    print(f"wrote {out}", file=sys.stderr)


def _rendered(
    pages: Sequence[Page], form: str, is_screen: bool, csv: Callable[[], str] | None
) -> str:
    if form == "csv":
        for problem in (problem for page in pages for problem in page.problems):
            print(problem, file=sys.stderr)
        return csv() if csv else to_csv(pages)
    if form == "html":
        from analysis.render import html

        return html.tables(pages)
    if form == "latex":
        from analysis.render import latex

        return "\n".join(map(latex.render, pages))
    in_text = on_screen if is_screen else text.render
    return "\n".join(map(text.markdown if form == "markdown" else in_text, pages))


def on_screen(page: Page) -> str:
    """Returns the page as text for this terminal, in colours where it is one."""
    return text.render(page, sys.stdout.isatty(), shutil.get_terminal_size().columns)


def to_csv(pages: Sequence[Page]) -> str:
    """Returns the cells of all tables as one CSV text, in order: the page's title, the table's
    caption, the row's number from 1 and its first cell, the column's heading, the text as printed,
    and 1 where it is bold; texts as `cell_text`. Notes and problems are not in it."""
    out = io.StringIO()
    writer = csv_module.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for page, table in ((each, table) for each in pages for table in each.tables):
        headings = [column.heading.replace("\n", " ") for column in table.columns]
        rows = [row for section in table.sections for row in section]
        for number, row in enumerate(rows, start=1):
            for heading, cell in zip(headings, row, strict=True):
                place = (page.title, table.caption, number, row[0].text)
                cells = (*place, heading, cell.text, int(cell.bold))
                writer.writerow([cell_text(each) for each in cells])
    return out.getvalue()


def cell_text(value: Any) -> Any:
    """Returns a CSV cell that no spreadsheet takes for a formula: a text that begins as one gets
    a quote before it, a number, or several with blanks between them, stays as it is."""
    if not isinstance(value, str):
        return value
    line = value.replace("\r", " ")  # which csv leaves without quotes, and readers end a row at
    if not value.startswith(FORMULA_STARTS):
        return line
    return line if line.split() and all(map(NUMBER.fullmatch, line.split())) else f"'{line}"


def show(printed: str) -> None:
    """Prints a text. A reader that has seen enough (`| head`) closes the pipe; that is no error
    of ours."""
    try:
        sys.stdout.write(printed)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
