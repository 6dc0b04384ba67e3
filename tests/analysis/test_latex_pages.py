"""LaTeX of any text: compiled by a real pdflatex where there is one, no letter missing."""

import pathlib
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.render import latex
from analysis.render.latex import render as to_latex
from analysis.render.pages import Cell, Column, Page, Table
from analysis.views import paper as paper_tables

HOSTILE = (
    r"a_b & 50% #1 {x} $y$ ~ ^ \ < > | `q` \"p\" --metric ''z'' /data/run_1/trial_2",
    "é ï ñ ç Å ø ß τ Ω √ – — † ≤ ≥ ± × · − ≈ ∞ ‖ → ² µ ° … “x” ‘y’ \N{NO-BREAK SPACE}e\u0301",
    "中 \x07 \N{GRINNING FACE} \u0416 ậ",
    "[1, 2]",
    "*starred",
    "-0.5",
    r"\\[9cm] \input{/etc/passwd} %",
)
PREAMBLE = r"\documentclass[{columns}]{{article}}\usepackage{{{packages}}}\tracinglostchars=3 "
needs_pdflatex = pytest.mark.skipif(
    shutil.which("pdflatex") is None, reason="pdflatex is not installed"
)


def compiled(directory: pathlib.Path, body: str, packages: str, columns: str = "onecolumn") -> str:
    """Returns what pdflatex printed; a letter without a glyph is an error (tracinglostchars)."""
    preamble = PREAMBLE.format(columns=columns, packages=packages)
    source = f"{preamble}\\begin{{document}}\n{body}\n\\end{{document}}\n"
    (directory / "page.tex").write_text(source, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-draftmode", "page.tex"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in done.stdout
    return done.stdout


def document(texts: tuple[str, ...], repeats: int = 1, wide: int = 1) -> Page:
    """Texts wherever a document has one, in rows that follow each other."""
    columns = (Column(texts[0], numeric=False), *(Column(f"{texts[1]}\nn"),) * wide)
    rows = tuple((Cell(text), *(Cell(text, bold=True),) * wide) for text in texts)
    sections = (rows * repeats, (), rows)
    return Page(texts[0], (Table(texts[1], columns, sections),), texts, texts)


@needs_pdflatex
@pytest.mark.parametrize("packages", ["booktabs", "booktabs,graphicx"])
@pytest.mark.parametrize("columns", ["onecolumn", "twocolumn"])
def test_hostile_names_compile(tmp_path, packages, columns) -> None:
    compiled(tmp_path, to_latex(document(HOSTILE)), packages, columns)


@needs_pdflatex
def test_the_paper_s_tables_compile_together(tmp_path) -> None:
    body = "\n\\clearpage\n".join(map(to_latex, paper_tables.pages()))
    out = compiled(tmp_path, body, "booktabs,graphicx")
    assert "Overfull" not in out
    assert "Float too large" not in out


@needs_pdflatex
def test_wide_and_long_tables_fit_their_pages(tmp_path) -> None:
    body = to_latex(document(("plain", "text"), repeats=60, wide=12))
    out = compiled(tmp_path, body, "booktabs,graphicx")
    assert "Overfull" not in out
    assert "Float too large" not in out


def test_long_tables_continue() -> None:
    latex = to_latex(document(("one", "two"), repeats=60))
    assert latex.count(r"\begin{table}") == 3
    assert latex.count("(continued)") == 2
    assert latex.count("    one & ") == 61 + 3  # the headings, too


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b%", r"a\_b\%"),
        ("--metric", r"-{}-metric"),
        ("1 – 2", "1 -- 2"),
        ("é e\u0301 ï", r"\'{e} \'{e} \"{\i}"),
        ("τ√≤", r"$\tau$$\surd$$\leq$"),
        ("中", "{[}U+4E2D]"),
        ("[0, 1]", "{[}0, 1]"),
        ("-0.5", "$-$0.5"),
        ("a\nb", "a b"),
    ],
)
def test_escapes(text, escaped) -> None:
    assert latex.escape(text) == escaped


@given(st.text())
def test_escaped_text_is_ascii_and_balanced(text) -> None:
    escaped = latex.escape(text)
    assert escaped.isascii()
    assert escaped.isprintable()
    bare = escaped.replace("\\{", "").replace("\\}", "")
    assert bare.count("{") == bare.count("}")
