"""Prints pages for commands: as text, Markdown, LaTeX, CSV or HTML, to the screen or a file."""

import argparse
import base64
import gzip
import itertools
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jinja2
import numpy as np
import pandas as pd
import tabulate

from analysis.render.pages import Page, PrintedCell, Table
from attention.common import files
from sweeps.records import layout

SUFFIXES = {".txt": "text", ".md": "markdown", ".tex": "latex", ".csv": "csv", ".html": "html"}
# What a spreadsheet takes for a formula at the start of a cell (OWASP, "CSV Injection").
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
NUMBER = re.compile(r"[-+]?(\d[\d,]*\.?\d*|\.\d+)(e[-+]?\d+)?%?|[-+]?inf")
# An underscore within a word, a bracket that begins no link and "< " are plain text.
MARKDOWN_SPECIAL = re.compile(r"[\\`*|]|(?<!\w)_|_(?!\w)|(?<=\])[(\[]|<(?=[a-zA-Z/!?])")
# Keeps letters apart that TeX would join to one: -- and ''.
APART = "\N{WORD JOINER}"
# What pdflatex takes for a command, and letters that its standard fonts lack; accents it knows.
TEX_LETTERS = str.maketrans(
    {special: rf"\{special}" for special in "{}$&#%_"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", APART: "{}"}
    | {"–": "--", "…": r"\ldots{}", "†": r"\dag{}", "\N{NO-BREAK SPACE}": "~", "`": r"\`{}"}
    | {"±": r"$\pm$", "×": r"$\times$", "÷": r"$\div$", "·": r"$\cdot$", "−": "$-$"}
    | {"≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$", "√": r"$\surd$", "∞": r"$\infty$"}
    | {"←": r"$\leftarrow$", "→": r"$\rightarrow$", "τ": r"$\tau$", "λ": r"$\lambda$"}
    | {"▲": r"$\uparrow$", "▼": r"$\downarrow$", "○": r"$\circ$", "●": r"$\bullet$"}
    | {"²": "$^2$", "ᵀ": "$^T$", "₁": "$_1$", "₂": "$_2$"}
)
# Letters that pdflatex's default encoding, OT1, lacks among those of Latin-1 and Latin Extended-A.
UNKNOWN_LETTERS = "«»ÐðÞþĄąĐđĘęĦħĮįĲĳĸĿŀŉŊŋŦŧŲųſ"
# psql's, without padding: tabulate 0.9 prints no rule between groups of padded cells.
ASCII = tabulate.TableFormat(
    lineabove=tabulate.Line("+-", "-", "-+-", "-+"),
    linebelowheader=tabulate.Line("|-", "-", "-+-", "-|"),
    linebetweenrows=None,
    linebelow=tabulate.Line("+-", "-", "-+-", "-+"),
    headerrow=None,
    datarow=tabulate.DataRow("| ", " | ", " |"),
    padding=0,
    with_header_hide=None,
)
BOOKTABS = tabulate.TableFormat(
    lineabove=tabulate.Line(r"    \toprule", "", "", ""),
    linebelowheader=tabulate.Line(r"    \midrule", "", "", ""),
    linebetweenrows=None,
    linebelow=tabulate.Line(r"    \bottomrule", "", "", ""),
    headerrow=None,
    datarow=tabulate.DataRow("    ", " & ", r" \\"),
    padding=0,
    with_header_hide=None,
)
TEX_PAGE = r"""% needs \usepackage{booktabs}; with \usepackage{graphicx} wide tables are shrunk
\providecommand{\resizebox}[3]{\typeout{LaTeX Warning: no graphicx, wide tables stay wide}#3}
% A wide table may use the margins, where no second column of text lies, and is shrunk only
% to the page: half an inch is left on both sides.
\providecommand{\widesttable}{\dimexpr\ifdim\columnwidth<\textwidth\linewidth\else\paperwidth-6pc\fi\relax}
"""
TEX_TABLE = r"""\begin{{table}}
  \centering\footnotesize\setlength{{\tabcolsep}}{{4pt}}
  \caption{{{caption}}}
  \makebox[\linewidth][c]{{\resizebox{{\ifdim\width>\widesttable\widesttable\else\width\fi}}{{!}}{{%
  \begin{{tabular}}{{{aligns}}}
{rows}
  \end{{tabular}}}}}}
\end{{table}}
"""
TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("analysis.render"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters["packed"] = lambda text: base64.b64encode(gzip.compress(text.encode())).decode()


def check(options: argparse.Namespace) -> str:
    """Returns the format: --format, else by the suffix of --out, else text. Call it before anything
    that takes long.

    Raises ValueError if `options.out` cannot be written, or if its suffix is unknown or that of
    another format than --format.
    """
    if options.out:
        files.check_output(options.out)
    suffix = options.out.suffix.lower() if options.out else ""
    form = str(options.format or SUFFIXES.get(suffix, "text"))
    if suffix and SUFFIXES.get(suffix) != form:
        raise ValueError(
            f"--out={options.out}: {suffix} is not the suffix of --format={form}; give a name that "
            f"ends in one of {', '.join(SUFFIXES)} and leave --format out, or one without a suffix"
        )
    return form


def emit(pages: Sequence[Page], options: argparse.Namespace) -> None:
    """Prints the pages in the format of `options`, to `options.out` if given. CSV has no problems:
    they go to stderr."""
    form = check(options)
    if form == "csv":
        for problem in itertools.chain.from_iterable(page.problems for page in pages):
            print(problem, file=sys.stderr)
    printed = rendered(pages, form)
    if options.out is None:
        show(printed)
    else:
        layout.write_atomically(options.out, printed)
        print(f"wrote {options.out}", file=sys.stderr)


def rendered(pages: Sequence[Page], form: str) -> str:
    """Returns the pages in a format of SUFFIXES."""
    if form == "csv":
        return to_csv(pages)
    if form == "html":
        return to_html(pages)
    of_page = {"text": to_text, "markdown": to_markdown, "latex": to_latex}[form]
    return "\n".join(map(of_page, pages))


def show(printed: str) -> None:
    """Prints a text. A closed pipe (`| head`) is no error."""
    try:
        sys.stdout.write(printed)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def to_text(page: Page) -> str:
    """Returns aligned columns for a terminal or a file; a star marks the best of a group."""
    lines = [page.title]
    for table in page.tables:
        aligns = ["right" if numeric else "left" for numeric in table.numeric]
        lines += ["", table.caption, _ruled(table, str, "*%s", ASCII, colalign=aligns)]
    return "\n".join([*lines, *page.remarks]) + "\n"


def _marked(cell: PrintedCell, escape: Callable[[str], str], best: str) -> str:
    """Returns a cell's text, escaped; the best of a group as the format `best` has it."""
    text = escape(cell.text)
    return best % text if cell.is_best else text


def _ruled(table: Table, escape: Callable[[str], str], best: str, form: Any, **align: Any) -> str:
    """Returns tabulate's table of the headings, line by line, and the cells as `_marked`, with a
    rule before each group."""
    headings = [heading.split("\n")[::-1] for heading in table.frame.columns]
    heads = list(itertools.zip_longest(*headings, fillvalue=""))[::-1]
    rows: list[Any] = [[escape(text) for text in line] for line in heads]
    for group in table.printed():
        rows.append(tabulate.SEPARATING_LINE)
        rows += [[_marked(cell, escape, best) for cell in line] for line in group]
    return str(tabulate.tabulate(rows, tablefmt=form, disable_numparse=True, **align))


def to_markdown(page: Page) -> str:
    """Returns GitHub's Markdown; the best of a group is bold."""
    parts = [f"**{_markdown(page.title)}**"]
    for table in page.tables:
        rows = [
            [_markdown(heading) for heading in table.frame.columns],
            ["---:" if numeric else ":---" for numeric in table.numeric],
        ]
        for group in table.printed():
            rows += [[_marked(cell, _markdown, "**%s**") for cell in line] for line in group]
        lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        parts += [f"{_markdown(table.caption)}:", lines]
    remarks = "\n".join(f"- {_markdown(line)}" for line in page.remarks)
    return "\n\n".join([*parts, remarks]).rstrip() + "\n"


def _markdown(text: str) -> str:
    """Escapes GitHub's markup and nothing else: the source is read as it is, too."""
    return MARKDOWN_SPECIAL.sub(r"\\\g<0>", text.replace("\n", " "))


def to_latex(page: Page) -> str:
    r"""Returns one `table` environment per table, for a preamble with \usepackage{booktabs}.

    With graphicx, too, a table that is wider than the page is shrunk to it.
    """
    parts = [TEX_PAGE]
    for table in page.tables:
        aligns = "".join("r" if numeric else "l" for numeric in table.numeric)
        rows = _ruled(table, tex, r"\textbf{%s}", BOOKTABS, stralign=None)
        caption = tex(f"{page.title}. {table.caption}.")
        parts.append(TEX_TABLE.format(caption=caption, aligns=aligns, rows=rows))
    lines = "".join(f"  {tex(line)}\\par\n" for line in page.remarks)
    return "".join([*parts, "{\\footnotesize\\raggedright\\sloppy\n", lines, "}\n"])


def tex(text: str) -> str:
    """Returns `text` as LaTeX in text mode, on one line.

    A bracket or star at the start, which the end of the row before it would take, is guarded. A
    letter that pdflatex does not know becomes its code in brackets, such as [U+4E2D].
    """
    line = " ".join(unicodedata.normalize("NFC", text).split())
    apart = re.sub(r"([-'])(?=\1)", rf"\1{APART}", line).translate(TEX_LETTERS)
    unknown = f"[^ -~¡-¬®-ſ]|[{UNKNOWN_LETTERS}]"
    known = re.sub(unknown, lambda found: f"[U+{ord(found[0]):04X}]", apart)
    guarded = re.sub(r"^([\[*])", r"{\1}", known)
    return re.sub(r"^-(?=\d)", "$-$", guarded)


def to_csv(pages: Sequence[Page]) -> str:
    """Returns one CSV text of all pages: their `data`, or, for a page without it, the frames of
    its tables with the page's title and the table's caption before them. Numbers have full
    precision, texts are as `cell_text`."""
    # Whole numbers stay whole beside empty cells; pandas before 2.3 warns of inf, which is none.
    with np.errstate(invalid="ignore"):
        frames = [
            frame.convert_dtypes().astype(object) for page in pages for frame in _frames(page)
        ]
    whole = pd.concat(frames, ignore_index=True)
    whole = pd.DataFrame({name: map(cell_text, whole[name]) for name in whole}, dtype=object)
    whole.columns = [cell_text(name.replace("\n", " ")) for name in whole.columns]
    return str(whole.to_csv(index=False, lineterminator="\n"))


def _frames(page: Page) -> Iterator[pd.DataFrame]:
    if page.data is not None:
        yield page.data()
        return
    for table in page.tables:
        place = {"document": page.title, "table": table.caption}
        yield table.frame.assign(**place)[[*place, *table.frame.columns]]


def cell_text(value: Any) -> Any:
    """Returns a CSV cell that no spreadsheet takes for a formula: a text that begins as one gets
    a quote before it, a number, or several with blanks between them, stays as it is."""
    if not isinstance(value, str):
        return value
    line = value.replace("\r", " ")  # which csv leaves without quotes, and readers end a row at
    if not value.startswith(FORMULA_STARTS):
        return line
    return line if line.split() and all(map(NUMBER.fullmatch, line.split())) else f"'{line}"


def to_html(pages: Sequence[Page]) -> str:
    """Returns one file with the pages' tables, notes and problems that needs no network."""
    return fill_template("tables.html", title="; ".join(page.title for page in pages), pages=pages)


def fill_template(name: str, **values: Any) -> str:
    """Returns a file of `templates/` filled with `values`, which are escaped."""
    return TEMPLATES.get_template(name).render(**values)
