"""A long table in plain text looks as a short one does in rich's."""

from analysis.render import text
from analysis.render.pages import Cell, Page, Table, columns

ROWS = (
    (Cell("standard"), Cell("0.25"), Cell("5")),
    (Cell("LASER + [temp]", bold=True), Cell("-0.125", bold=True), Cell("–")),
)


def printed(*sections) -> list[str]:
    table = Table("caption", columns("Variant", "Mean\ndiff.", "n"), sections)
    lines = text.render(Page("title", (table,))).splitlines()[2:]
    return [line for line in lines if line]


def test_the_same_lines_as_rich(monkeypatch) -> None:
    by_rich = printed(ROWS, ROWS[:1])
    monkeypatch.setattr(text, "LONG", 1)
    assert printed(ROWS, ROWS[:1]) == by_rich


def test_a_long_table_is_printed_without_rich(monkeypatch) -> None:
    monkeypatch.setattr(text, "_rich_table", lambda *_: "by rich")
    assert printed(ROWS) == ["by rich"]
    assert len(printed(ROWS * 150)) == 300 + 6
