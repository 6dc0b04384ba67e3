"""HTML pages: whole, self-contained, and safe against whatever a study is called."""

import base64
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from analysis.render import html as render_html
from analysis.render import pictures, style
from analysis.render.pages import Cell, Column, Page, Table


def _page(**changed: object) -> Page:
    table = Table(
        caption="Error",
        columns=(Column("Variant", numeric=False), Column("Test"), Column("Verdict", False)),
        sections=(
            ((Cell("Standard"), Cell("0.5", bold=True), Cell("baseline")),),
            ((Cell("LASER"), Cell("0.4"), Cell("better")),),
        ),
    )
    values = {"title": "tiny", "tables": (table,), "notes": ("a note",), "problems": ()}
    return Page(**(values | changed))


def test_table_has_headers_sections_and_verdicts(parse_page) -> None:
    page = parse_page(render_html.tables([_page()]))
    assert len(page.of("table")) == 1
    assert len(page.of("tbody")) == 2
    scopes = [attributes["scope"] for attributes in page.of("th")]
    assert scopes == ["col"] * 3 + ["row"] * 2
    classes = [attributes.get("class") for attributes in page.of("td")]
    assert classes == [None, "word-column", None, "word-column better"]
    assert page.of("strong") == [{}]
    assert {"tiny", "Error", "a note", "0.4"} <= set(page.words)


def test_a_long_table_is_folded(parse_page) -> None:
    (table,) = _page().tables
    long = Table("Long", table.columns, (table.sections[0] * 41,))
    page = parse_page(render_html.tables([_page(tables=(table, long))]))
    assert (len(page.of("table")), len(page.of("details"))) == (2, 1)
    assert "Long" in page.words


def test_names_are_text_and_never_markup(parse_page) -> None:
    hostile = "<script>alert(1)</script> & \"quoted\" {{ 7 * 7 }} 'x'"
    page = _page(title=hostile, notes=(hostile,), problems=(hostile,))
    text = render_html.tables([page])
    assert "<script>alert" not in text
    assert "49" not in text
    assert hostile in parse_page(text).words


def test_problems_beyond_fifty_are_counted(parse_page) -> None:
    problems = tuple(f"missing: trial_{number}" for number in range(1234))
    page = parse_page(render_html.tables([_page(problems=problems)]))
    shown = [word for word in page.words if word.startswith("missing: ")]
    assert shown == list(problems[:50])
    assert "Problems (1234)" in page.words
    assert any("and 1184 more" in word for word in page.words)


def _figure() -> Figure:
    figure = style.figure(8.0, 2.0)
    figure.subplots().plot([0, 1], [0, 1])
    return figure


def _content(uri: str) -> tuple[str, bytes]:
    kind, _, data = uri.partition(";base64,")
    return kind, base64.b64decode(data, validate=True)


def _plot(draw=lambda table: _figure(), words=lambda table: "a line") -> pictures.Plot:
    return pictures.Plot("a.png", draw, words, "nothing to draw", "how to read it")


def test_figures_are_data_at_two_widths() -> None:
    picture = pictures.embed(_plot(), None)
    assert (picture.alt, picture.caption) == ("a line", "how to read it")
    widths = []
    for uri in (picture.wide, picture.narrow):
        kind, content = _content(uri)
        assert kind == "data:image/svg+xml"
        root = ElementTree.fromstring(content)
        widths.append(float(root.attrib["width"].removesuffix("pt")) / 72)
        # Letters are paths: no font of the reader's is needed.
        assert not list(root.iter("{http://www.w3.org/2000/svg}text"))
    assert widths == pytest.approx([8.0, style.NARROW_INCHES])
    assert pictures.embed(_plot(), None) == picture


def test_alternatives_are_asked_for_only_where_something_is_drawn() -> None:
    def refuse(table) -> str:
        raise AssertionError("nothing was drawn")

    assert pictures.embed(_plot(lambda table: None, refuse), None) is None


def test_a_figure_of_many_dots_becomes_pixels() -> None:
    figure = style.figure(8.0, 2.0)
    axes = figure.subplots()
    for x, y in np.random.default_rng(0).random((3000, 2)):
        axes.plot(x, y, "o")
    kind, content = _content(pictures.data_uri(figure))
    assert kind == "data:image/png"
    assert content.startswith(b"\x89PNG")
