"""A long grid in plain text looks as a short one does in rich's."""

from analysis.documents import plain_text, render
from analysis.documents.grid import Cell, Column, Document, Grid

COLUMNS = (Column("Variant", numeric=False), Column("Mean\ndiff."), Column("n"))
ROWS = (
    (Cell("standard"), Cell("0.25"), Cell("5")),
    (Cell("LASER + [temp]", bold=True), Cell("-0.125", bold=True), Cell("–")),
)


def printed(grid: Grid) -> list[str]:
    return render.text(Document("title", (grid,), (), ())).splitlines()[2:]


def test_the_same_lines_as_rich() -> None:
    grid = Grid("caption", COLUMNS, (ROWS, ROWS[:1]))
    assert not plain_text.is_long(grid)
    assert list(plain_text.lines(grid)) == [line for line in printed(grid) if line]


def test_a_long_grid_is_printed_so() -> None:
    grid = Grid("caption", COLUMNS, (ROWS * 150,))
    assert plain_text.is_long(grid)
    assert printed(grid) == list(plain_text.lines(grid))
    assert len(printed(grid)) == 300 + 6
