"""Prints a document: text for a terminal or a file, Markdown, LaTeX with booktabs."""

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.documents import latex_text, plain_text
from analysis.documents.grid import Cell, Column, Document, Grid

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

LATEX_HEAD = (
    r"% needs \usepackage{booktabs}; with \usepackage{graphicx} wide tables are shrunk",
    r"\providecommand{\resizebox}[3]"
    r"{\typeout{LaTeX Warning: no graphicx, wide tables stay wide}#3}",
    "% A wide table may use the margins, where no second column of text lies, and is shrunk only",
    "% to the page: half an inch is left on both sides.",
    r"\providecommand{\widesttable}{\dimexpr\ifdim\columnwidth<\textwidth\linewidth\else"
    r"\paperwidth-6pc\fi\relax}",
)
LATEX_SHRINK = (
    r"  \makebox[\linewidth][c]{\resizebox"
    r"{\ifdim\width>\widesttable\widesttable\else\width\fi}{!}{%"
)
# Rows of \footnotesize that a page holds with its caption; a table does not break over pages.
LATEX_ROWS = 50

# An underscore within a word, a bracket that begins no link and "< " are plain text.
MARKDOWN_SPECIAL = re.compile(r"[\\`*|]|(?<!\w)_|_(?!\w)|(?<=\])[(\[]|<(?=[a-zA-Z/!?])")


def markdown(document: Document) -> str:
    """Returns GitHub's Markdown."""
    parts = [f"**{_markdown_text(document.title)}**"]
    for grid in document.grids:
        parts += [f"{_markdown_text(grid.caption)}:", _markdown_grid(grid)]
    if document.notes:
        parts.append("\n".join(f"- {_markdown_text(note)}" for note in document.notes))
    if document.problems:
        parts.append(f"Problems ({len(document.problems)}):")
        parts.append("\n".join(f"- {_markdown_text(line)}" for line in document.problems))
    return "\n\n".join(parts) + "\n"


def _markdown_text(text: str) -> str:
    """Escapes what GitHub would take for markup, and no more: the source is read as it is, too."""
    return MARKDOWN_SPECIAL.sub(r"\\\g<0>", text.replace("\n", " "))


def _markdown_grid(grid: Grid) -> str:
    lines = [_markdown_row([Cell(column.heading) for column in grid.columns])]
    lines.append("|" + "|".join("---:" if c.numeric else ":---" for c in grid.columns) + "|")
    lines += [_markdown_row(row) for section in grid.sections for row in section]
    return "\n".join(lines)


def _markdown_row(cells: Sequence[Cell]) -> str:
    texts = (f"**{_markdown_text(c.text)}**" if c.bold else _markdown_text(c.text) for c in cells)
    return "| " + " | ".join(texts) + " |"


def latex(document: Document) -> str:
    r"""Returns one `table` environment per grid, for a preamble with \usepackage{booktabs}.

    With graphicx, too, a table that is wider than the page is shrunk to it. One that is longer
    than a page continues in the next.
    """
    parts = [part for grid in document.grids for part in _latex_parts(grid)]
    tables = [_latex_table(document, part) for part in parts]
    notes = [*document.notes, *(f"Problem: {line}" for line in document.problems)]
    footnotes = [f"  {latex_text.escape(note)}\\par" for note in notes]
    foot = "\n".join([r"{\footnotesize\raggedright\sloppy", *footnotes, "}"])
    return "\n".join([*LATEX_HEAD, *tables, foot]) + "\n"


def _latex_parts(grid: Grid) -> list[Grid]:
    """Returns the grid itself, or, where it is longer than a page, parts that are not."""
    rows = [(index, row) for index, section in enumerate(grid.sections) for row in section]
    parts = []
    for start in range(0, max(len(rows), 1), LATEX_ROWS):
        held: dict[int, list[tuple[Cell, ...]]] = {}
        for index, row in rows[start : start + LATEX_ROWS]:
            held.setdefault(index, []).append(row)
        caption = f"{grid.caption} (continued)" if start else grid.caption
        parts.append(Grid(caption, grid.columns, tuple(tuple(part) for part in held.values())))
    return parts


def _latex_cell(cell: Cell) -> str:
    return (
        rf"\textbf{{{latex_text.escape(cell.text)}}}" if cell.bold else latex_text.escape(cell.text)
    )


def _latex_heading(column: Column) -> str:
    lines = [latex_text.escape(line) for line in column.heading.split("\n")]
    stacked = r"\\".join(lines)
    return stacked if len(lines) == 1 else rf"\shortstack[r]{{{stacked}}}"


def _latex_table(document: Document, grid: Grid) -> str:
    alignment = "".join("r" if column.numeric else "l" for column in grid.columns)
    heading = " & ".join(map(_latex_heading, grid.columns))
    title, caption = latex_text.escape(document.title), latex_text.escape(grid.caption)
    sections = [
        "\n".join("    " + " & ".join(map(_latex_cell, row)) + r" \\" for row in section)
        for section in grid.sections
        if section
    ]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering\footnotesize\setlength{\tabcolsep}{4pt}",
            rf"  \caption{{{title}. {caption}.}}",
            LATEX_SHRINK,
            rf"  \begin{{tabular}}{{{alignment}}}",
            r"    \toprule",
            rf"    {heading} \\",
            r"    \midrule",
            "\n    \\midrule\n".join(sections),
            r"    \bottomrule",
            r"  \end{tabular}}}",
            r"\end{table}",
        ]
    )


def text(document: Document, terminal: bool = False, width: int | None = None) -> str:
    """Returns a rich table with colours for a terminal, plain aligned columns otherwise."""
    from rich.console import Console
    from rich.markup import escape

    out = io.StringIO()
    # A file has no width: wide enough that no row of ours is ever folded.
    console = Console(
        file=out, force_terminal=terminal, width=width if terminal else 400, highlight=False
    )
    console.print(f"[bold]{escape(document.title)}[/bold]\n")
    for grid in document.grids:
        if plain_text.is_long(grid):
            out.writelines(f"{line}\n" for line in plain_text.lines(grid))
        else:
            console.print(_rich_grid(grid, terminal))
    for note in document.notes:
        console.print(f"[dim]{escape(note)}[/dim]")
    if document.problems:
        console.print(f"\n[bold red]Problems ({len(document.problems)}):[/bold red]")
        for line in document.problems:
            console.print(f"  {escape(line)}")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _rich_grid(grid: Grid, terminal: bool) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(
        title=grid.caption,
        title_justify="left",
        title_style="italic",
        box=box.SIMPLE_HEAD if terminal else box.ASCII2,
        collapse_padding=terminal,
    )
    for column in grid.columns:
        table.add_column(
            column.heading, justify="right" if column.numeric else "left", overflow="fold"
        )
    for section in grid.sections:
        for row in section:
            table.add_row(*(_rich_cell(cell, terminal) for cell in row))
        table.add_section()
    return table


def _rich_cell(cell: Cell, terminal: bool) -> "Text":
    from rich.text import Text

    colours = {"better": "green", "worse": "red"}
    style = "bold" if cell.bold else colours.get(cell.text, "")
    marked = f"*{cell.text}" if cell.bold and not terminal else cell.text
    return Text(marked, style=style)
