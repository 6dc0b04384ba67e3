"""The paper's means over tasks, beside those of its own rows: which do not follow from them."""

from analysis.load import paper
from analysis.render import pages
from analysis.render.pages import NONE, Cell, Table

DIGITS = 2


def table(key: str) -> Table:
    """Returns the means of a table of `paper.PRINTED` that has some, with the accuracy of the one
    further task that would explain a mean which does not follow."""
    headings = ("Method", "Tasks", "Printed mean", "Mean of\nthe rows", "Follows", "One more task")
    rows = tuple(
        (
            Cell(each.method),
            Cell(str(each.rows)),
            Cell(each.printed.text, each.printed.bold),
            pages.number(each.of_rows, DIGITS),
            Cell("yes" if each.follows else "no"),
            NONE if each.follows else pages.number(each.implied, DIGITS),
        )
        for each in paper.means(key)
    )
    caption = f"The paper's means over tasks, {paper.PRINTED[key].place}, recomputed"
    return Table(caption, pages.columns(*headings, words=("Method", "Follows")), (rows,))
