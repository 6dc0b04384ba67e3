"""Prints pages as one HTML file that needs no other file and no network."""

import functools
import importlib.resources
from collections.abc import Sequence
from typing import Any

import jinja2
import markupsafe

from analysis.render.pages import Cell, Column, Page

# A study with thousands of unfinished trials would bury its own table; `runs` lists all of them.
SHOWN_PROBLEMS = 50
VERDICTS = ("better", "worse")


def tables(pages: Sequence[Page]) -> str:
    """Returns a file with the pages' tables, notes and problems, one after another."""
    title = "; ".join(page.title for page in pages)
    return render("tables.html", title=title, pages=pages)


def render(template: str, **values: Any) -> str:
    """Returns a file of `templates/` filled with `values`, which are escaped."""
    return _environment().get_template(template).render(**values)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("analysis.render"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    folder = importlib.resources.files("analysis.render") / "templates"
    css = (folder / "page.css").read_text("utf-8")
    environment.globals |= {
        "css": markupsafe.Markup(css),
        "classes": _classes,
        "shown_problems": SHOWN_PROBLEMS,
    }
    return environment


def _classes(cell: Cell, column: Column) -> markupsafe.Markup:
    """Returns a cell's class attribute: words to the left, verdicts in their colours."""
    names = [] if column.numeric else ["word-column"]
    names += [each for each in VERDICTS if each in (cell.text, cell.tone)]
    return markupsafe.Markup(f' class="{" ".join(names)}"' if names else "")
