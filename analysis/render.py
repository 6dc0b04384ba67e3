"""Prints a document: text for a terminal or a file, Markdown, LaTeX with booktabs."""

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.grid import Cell, Column, Document, Grid

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "–": "--",
    "†": r"\dag{}",
    "τ": r"$\tau$",
}

LATEX_HEAD = (
    r"% needs \usepackage{booktabs}; with \usepackage{graphicx} wide tables are shrunk",
    r"\providecommand{\resizebox}[3]{#3}",
)
LATEX_SHRINK = r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"

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

    With graphicx, too, a table that is wider than the text is shrunk to it.
    """
    tables = [_latex_table(document, grid) for grid in document.grids]
    notes = [*document.notes, *(f"Problem: {line}" for line in document.problems)]
    footnotes = [f"  {_latex_text(note)}\\par" for note in notes]
    foot = "\n".join([r"{\footnotesize\raggedright\sloppy", *footnotes, "}"])
    return "\n".join([*LATEX_HEAD, *tables, foot]) + "\n"


def _latex_text(text: str) -> str:
    escaped = "".join(LATEX_ESCAPES.get(letter, letter) for letter in text.replace("\n", " "))
    return re.sub(r"^-(?=\d)", "$-$", escaped)


def _latex_cell(cell: Cell) -> str:
    return rf"\textbf{{{_latex_text(cell.text)}}}" if cell.bold else _latex_text(cell.text)


def _latex_heading(column: Column) -> str:
    lines = [_latex_text(line) for line in column.heading.split("\n")]
    stacked = r"\\".join(lines)
    return stacked if len(lines) == 1 else rf"\shortstack[r]{{{stacked}}}"


def _latex_table(document: Document, grid: Grid) -> str:
    alignment = "".join("r" if column.numeric else "l" for column in grid.columns)
    heading = " & ".join(map(_latex_heading, grid.columns))
    sections = [
        "\n".join("    " + " & ".join(map(_latex_cell, row)) + r" \\" for row in section)
        for section in grid.sections
        if section
    ]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering\footnotesize\setlength{\tabcolsep}{4pt}",
            rf"  \caption{{{_latex_text(document.title)}. {_latex_text(grid.caption)}.}}",
            LATEX_SHRINK,
            rf"  \begin{{tabular}}{{{alignment}}}",
            r"    \toprule",
            rf"    {heading} \\",
            r"    \midrule",
            "\n    \\midrule\n".join(sections),
            r"    \bottomrule",
            r"  \end{tabular}}",
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
