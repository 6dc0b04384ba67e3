"""Prints a page as LaTeX with booktabs; every letter is printed by pdflatex as it is, or named
where it cannot be.

Letters use only the kernel's commands of a LaTeX of 2020 and later, no further package.
"""

import functools
import pathlib
import re
import tomllib
import unicodedata

import jinja2

from analysis.render.pages import Cell, Column, Page, Row, Table

# Rows of \footnotesize that a page holds with its caption; a table does not break over pages.
LONGEST = 50

# Keeps letters apart that TeX would join to one: -- and ''.
_APART = "\N{WORD JOINER}"
# Letters to LaTeX's commands: in `text`, in `mathematics`, and combining ones, `accents`.
_FILE = pathlib.Path(__file__).with_name("templates") / "letters.toml"
LETTERS = tomllib.loads(_FILE.read_text("utf-8"))


def render(page: Page) -> str:
    r"""Returns one `table` environment per table, for a preamble with \usepackage{booktabs}.

    With graphicx, too, a table that is wider than the page is shrunk to it. One that is longer
    than a page continues in the next.
    """
    tables = [part for table in page.tables for part in _parts(table)]
    notes = [*page.notes, *(f"Problem: {line}" for line in page.problems)]
    return _template().render(page=page, tables=tables, notes=notes)


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
        loader=jinja2.PackageLoader("analysis.render"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"tex": escape, "cell": _cell, "heading": _heading}
    return environment.get_template("page.tex")


def _parts(table: Table) -> list[Table]:
    """Returns the table itself, or, where it is longer than a page, parts that are not."""
    rows = [(index, row) for index, section in enumerate(table.sections) for row in section]
    parts = []
    for start in range(0, max(len(rows), 1), LONGEST):
        held: dict[int, list[Row]] = {}
        for index, row in rows[start : start + LONGEST]:
            held.setdefault(index, []).append(row)
        caption = f"{table.caption} (continued)" if start else table.caption
        parts.append(Table(caption, table.columns, tuple(tuple(part) for part in held.values())))
    return parts


def _cell(cell: Cell) -> str:
    return rf"\textbf{{{escape(cell.text)}}}" if cell.bold else escape(cell.text)


def _heading(column: Column) -> str:
    lines = [escape(line) for line in column.heading.split("\n")]
    stacked = r"\\".join(lines)
    return stacked if len(lines) == 1 else rf"\shortstack[r]{{{stacked}}}"


def escape(text: str) -> str:
    """Returns `text` as LaTeX in text mode, on one line.

    What TeX would read as something else is escaped, dashes and quotes that it would join among
    them, and a bracket or star at the start, which an end of a row before it would take. A letter
    that the standard fonts lack becomes its code in brackets, such as [U+4E2D].
    """
    line = unicodedata.normalize("NFC", text.replace("\n", " "))
    apart = re.sub(r"([-'])(?=\1)", rf"\1{_APART}", line)
    escaped = "".join(map(_letter, apart))
    guarded = re.sub(r"^([\[*])", r"{\1}", escaped)
    return re.sub(r"^-(?=\d)", "$-$", guarded)


def _letter(letter: str) -> str:
    if letter == _APART:
        return "{}"
    if letter in LETTERS["text"]:
        return str(LETTERS["text"][letter])
    if letter in LETTERS["mathematics"]:
        return f"${LETTERS['mathematics'][letter]}$"
    if " " <= letter <= "~":
        return letter
    return _accented(letter) or (" " if letter.isspace() else f"[U+{ord(letter):04X}]")


def _accented(letter: str) -> str | None:
    """Returns an ASCII letter with one accent, None for anything else."""
    decomposed = unicodedata.normalize("NFD", letter)
    base, marks = decomposed[0], decomposed[1:]
    if marks not in LETTERS["accents"] or not (base.isascii() and base.isalpha()):
        return None
    dotless = {"i": r"\i", "j": r"\j"}.get(base, base) if marks < "\u0323" else base
    return rf"\{LETTERS['accents'][marks]}{{{dotless}}}"
