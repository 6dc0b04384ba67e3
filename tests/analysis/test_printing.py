"""A page in every format: the same cells, escaped for it, whatever a study is called."""

import csv
import io
import unicodedata

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.render import printing
from analysis.render.pages import Page, Table

HOSTILE = (
    r"a_b & 50% #1 {x} $y$ ~ ^ \ < > | `q` \"p\" --metric ''z'' /data/run_1/trial_2",
    "é ï ñ ç Å ø ß τ √ – † ≤ ≥ ± × · − ≈ ∞ → ² … \N{NO-BREAK SPACE}e\u0301",
    "中 \x07 \N{GRINNING FACE} \u0416 ậ",
    "[1, 2]",
    "*starred",
    "-0.5",
    r"\\[9cm] \input{/etc/passwd} %",
    "<script>alert(1)</script> & \"quoted\" {{ 7 * 7 }} 'x'",
)


def page(**changed: object) -> Page:
    """Two groups of a line each: the best error in the first, a verdict in the second."""
    frame = pd.DataFrame(
        {"Variant": ["Standard", "LASER"], "Error\ntest": [0.125, None], "n": [5, 1200],
         "Verdict": ["baseline", "better"]}
    )  # fmt: skip
    table = Table(
        "Error", frame, {"Error\ntest": ".4f"}, {"Error\ntest": [True, False]}, ("a", "b")
    )
    values = {"title": "tiny", "tables": (table,), "notes": ("a note",), "problems": ()}
    return Page(**(values | changed))


def long(lines: int) -> Table:
    return Table("Long", pd.DataFrame({"Trial": map(str, range(lines)), "n": range(lines)}))


def hostile(texts: tuple[str, ...] = HOSTILE) -> Page:
    """Texts wherever a page has one, in rows that follow each other."""
    headings = [texts[0], f"{texts[1]}\nn"]
    frame = pd.DataFrame({heading: texts for heading in headings})
    bold = {headings[-1]: [True] * len(texts)}
    return Page(texts[0], (Table(texts[1], frame, bold=bold),), texts, texts)


TEXT = """tiny

Error
+----------+---------+------+----------+
|          |   Error |      |          |
| Variant  |    test |    n | Verdict  |
|----------+---------+------+----------|
| Standard | *0.1250 |    5 | baseline |
|----------+---------+------+----------|
| LASER    |       – | 1200 | better   |
+----------+---------+------+----------+
a note
"""
MARKDOWN = """
| Variant | Error test | n | Verdict |
| :--- | ---: | ---: | :--- |
| Standard | **0.1250** | 5 | baseline |
| LASER | – | 1200 | better |
"""
LATEX = r"""\begin{tabular}{lrrl}
\toprule
& Error &  &  \\
Variant & test & n & Verdict \\
\midrule
Standard & \textbf{0.1250} & 5 & baseline \\
\midrule
LASER & -- & 1200 & better \\
\bottomrule
"""


@pytest.mark.parametrize(
    ("form", "expected"),
    [("text", TEXT), ("markdown", MARKDOWN), ("latex", LATEX)],
    ids=["text", "markdown", "latex"],
)
def test_columns_are_aligned_groups_ruled_and_the_best_marked(form, expected) -> None:
    lines = [line.strip() for line in printing.rendered([page()], form).splitlines()]
    assert expected in "\n".join([*lines, ""])


def test_csv_has_the_tables_numbers_or_the_page_s_data() -> None:
    formula = Table("=1+1", long(1).frame)
    rows = list(csv.DictReader(io.StringIO(printing.to_csv([page(), page(tables=(formula,))]))))
    assert [row["n"] for row in rows] == ["5", "1200", "0"]
    assert [row["Error test"] for row in rows] == ["0.125", "", ""]
    assert [row["table"] for row in rows] == ["Error", "Error", "'=1+1"]
    data = pd.DataFrame({"x": [0.1 + 0.2], "name": ["=1"]})
    assert printing.to_csv([page(data=lambda: data)]) == "x,name\n0.30000000000000004,'=1\n"


def test_html_has_scopes_groups_raw_numbers_and_verdicts(parse_page) -> None:
    html = parse_page(printing.to_html([page()]))
    assert (len(html.of("table")), len(html.of("tbody"))) == (1, 2)
    assert [cell["scope"] for cell in html.of("th")] == ["col"] * 4 + ["row"] * 2
    assert html.of("td") == [
        {"data-value": "0.125"},
        {"data-value": "5"},
        {"class": "word-column"},
        {},
        {"data-value": "1200"},
        {"class": "word-column better"},
    ]
    assert html.of("strong") == [{}]
    assert {"tiny", "Error", "a note", "0.1250"} <= set(html.words)


def test_html_folds_a_long_table_and_counts_problems_beyond_fifty(parse_page) -> None:
    problems = tuple(f"missing: trial_{number}" for number in range(1234))
    html = parse_page(printing.to_html([page(tables=(long(40), long(41)), problems=problems)]))
    assert (len(html.of("table")), len(html.of("details"))) == (2, 1)
    assert [word for word in html.words if word.startswith("missing: ")] == list(problems[:50])
    assert any("1184" in word for word in html.words)


def test_html_takes_no_name_for_markup(parse_page) -> None:
    text = printing.to_html([hostile()])
    assert "<script>alert" not in text
    assert "49" not in text
    assert HOSTILE[-1] in parse_page(text).words


@pytest.mark.parametrize("form", printing.SUFFIXES.values())
def test_ten_thousand_lines_are_printed(form) -> None:
    assert printing.rendered([Page("title", (long(10_000),))], form).count("9999") >= 2


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b%", r"a\_b\%"),
        ("--metric", r"-{}-metric"),
        ("1 – 2", "1 -- 2"),
        ("é e\u0301", "é é"),
        ("τ√≤", r"$\tau$$\surd$$\leq$"),
        ("中", "{[}U+4E2D]"),
        ("[0, 1]", "{[}0, 1]"),
        ("-0.5", "$-$0.5"),
        ("a\nb", "a b"),
    ],
)
def test_latex_escapes(text, escaped) -> None:
    assert printing.tex(text) == escaped


# What the default encoding of pdflatex, OT1, makes of letters: accents, and letters of its own.
OT1_ACCENTS = {0x300, 0x301, 0x302, 0x303, 0x304, 0x306, 0x307, 0x308, 0x30A, 0x30B, 0x30C, 0x327}
OT1_LETTERS = "ÆæŒœØøŁłßı"


def test_no_letter_of_latin_is_left_that_pdflatex_lacks() -> None:
    """Latin-1, Latin Extended-A and -B: a letter is printed or becomes its code."""
    letters = [chr(code) for code in range(0xC0, 0x250) if chr(code).isalpha()]
    kept = [letter for letter in letters if printing.tex(letter) == letter]
    for letter in kept:
        base, *marks = unicodedata.normalize("NFD", letter)
        assert base.isascii() or base in OT1_LETTERS, letter
        assert set(map(ord, marks)) <= OT1_ACCENTS, letter
    assert set("äéñçůőčśžłøßŞĭ") <= set(kept)
    coded = set(letters) - set(kept)
    assert set("ąęđŋðþǎșſ") <= coded
    assert {printing.tex(letter) for letter in coded} == {
        f"{{[}}U+{ord(letter):04X}]" for letter in coded
    }
    assert printing.tex("a«b»") == "a[U+00AB]b[U+00BB]"


@given(st.text())
def test_escaped_latex_is_printable_and_balanced(text) -> None:
    escaped = printing.tex(text)
    assert escaped.isprintable()
    bare = escaped.replace("\\{", "").replace("\\}", "")
    assert bare.count("{") == bare.count("}")
