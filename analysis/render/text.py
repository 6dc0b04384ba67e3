"""Prints a page as text for a terminal or a file, or as Markdown."""

import io
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from analysis.render.pages import Cell, Page, Row, Table

if TYPE_CHECKING:
    from rich.table import Table as RichTable
    from rich.text import Text

# Rows from which a table is too long for rich, which takes 3 ms a row: half a minute for 10,000
# trials; nobody reads colours in so long a table.
LONG = 300
# An underscore within a word, a bracket that begins no link and "< " are plain text.
MARKDOWN_SPECIAL = re.compile(r"[\\`*|]|(?<!\w)_|_(?!\w)|(?<=\])[(\[]|<(?=[a-zA-Z/!?])")


def render(page: Page, terminal: bool = False, width: int | None = None) -> str:
    """Returns a rich table with colours for a terminal, plain aligned columns otherwise."""
    from rich.console import Console
    from rich.markup import escape

    out = io.StringIO()
    # A file has no width: wide enough that no row of ours is ever folded.
    console = Console(
        file=out, force_terminal=terminal, width=width if terminal else 400, highlight=False
    )
    console.print(f"[bold]{escape(page.title)}[/bold]\n")
    for table in page.tables:
        if sum(len(section) for section in table.sections) >= LONG:
            out.writelines(f"{line}\n" for line in _lines(table))
        else:
            console.print(_rich_table(table, terminal))
    for note in page.notes:
        console.print(f"[dim]{escape(note)}[/dim]")
    if page.problems:
        console.print(f"\n[bold red]Problems ({len(page.problems)}):[/bold red]")
        for line in page.problems:
            console.print(f"  {escape(line)}")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _rich_table(table: Table, terminal: bool) -> "RichTable":
    from rich import box
    from rich.table import Table as RichTable

    made = RichTable(
        title=table.caption,
        title_justify="left",
        title_style="italic",
        box=box.SIMPLE_HEAD if terminal else box.ASCII2,
        collapse_padding=terminal,
    )
    for column in table.columns:
        made.add_column(
            column.heading, justify="right" if column.numeric else "left", overflow="fold"
        )
    for section in table.sections:
        for row in section:
            made.add_row(*(_rich_cell(cell, terminal) for cell in row))
        made.add_section()
    return made


def _rich_cell(cell: Cell, terminal: bool) -> "Text":
    from rich.text import Text

    colours = {"better": "green", "worse": "red"}
    style = "bold" if cell.bold else colours.get(cell.tone or cell.text, "")
    marked = f"*{cell.text}" if cell.bold and not terminal else cell.text
    return Text(marked, style=style)


def _lines(table: Table) -> Iterator[str]:
    """Yields a long table's lines as rich's ASCII2 box has them: the caption, aligned columns."""
    headings = [column.heading.split("\n")[::-1] for column in table.columns]
    heads = list(itertools.zip_longest(*headings, fillvalue=""))[::-1]
    sections = [
        [tuple(f"*{cell.text}" if cell.bold else cell.text for cell in row) for row in part]
        for part in table.sections
    ]
    everything = itertools.chain(heads, *sections)
    widths = [max(map(len, column)) for column in zip(*everything, strict=True)]
    right = [column.numeric for column in table.columns]
    rule = "+".join(["", *("-" * (width + 2) for width in widths), ""])
    yield from (table.caption, rule, *_aligned(heads, widths, right), rule)
    for section in sections:
        yield from (*_aligned(section, widths, right), rule)


def _aligned(
    rows: Iterable[tuple[str, ...]], widths: list[int], right: list[bool]
) -> Iterator[str]:
    for row in rows:
        cells = (
            text.rjust(width) if numeric else text.ljust(width)
            for text, width, numeric in zip(row, widths, right, strict=True)
        )
        yield f"| {' | '.join(cells)} |"


def markdown(page: Page) -> str:
    """Returns GitHub's Markdown."""
    parts = [f"**{_markdown_text(page.title)}**"]
    for table in page.tables:
        headings = tuple(Cell(column.heading) for column in table.columns)
        rule = "|".join("---:" if column.numeric else ":---" for column in table.columns)
        rows = [_markdown_row(row) for section in table.sections for row in section]
        lines = [_markdown_row(headings), f"|{rule}|", *rows]
        parts += [f"{_markdown_text(table.caption)}:", "\n".join(lines)]
    if page.notes:
        parts.append("\n".join(f"- {_markdown_text(note)}" for note in page.notes))
    if page.problems:
        parts.append(f"Problems ({len(page.problems)}):")
        parts.append("\n".join(f"- {_markdown_text(line)}" for line in page.problems))
    return "\n\n".join(parts) + "\n"


def _markdown_text(text: str) -> str:
    """Escapes what GitHub would take for markup, and no more: the source is read as it is, too."""
    return MARKDOWN_SPECIAL.sub(r"\\\g<0>", text.replace("\n", " "))


def _markdown_row(cells: Row) -> str:
    texts = (f"**{_markdown_text(c.text)}**" if c.bold else _markdown_text(c.text) for c in cells)
    return "| " + " | ".join(texts) + " |"
