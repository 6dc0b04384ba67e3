"""How a command begins: one checkout, and text that every terminal can show.

The packages' names are common: another `analysis/`, the user's own attention.py or W&B's `sweeps`
in the working folder must never be picked up silently. So the commands run this file by its path,
before they import anything of `attention`.
"""

import codecs
import importlib.util
import io
import pathlib
import sys
from typing import Any

PACKAGES = ("attention", "workloads", "sweeps", "analysis")

# What a terminal shows if its encoding lacks a letter of a number or of a mark in a table. A lost
# minus sign would change a number. Other letters are printed as `?`.
_ASCII = {
    **{"−": "-", "–": "-", "±": "+/-", "×": "x", "≤": "<=", "≥": ">=", "µ": "u"},
    **{"²": "^2", "⁻": "^-", "▲": "^", "▼": "v", "○": "o"},
}
_ERRORS = "attnperf.ascii"


def start(command: str) -> None:
    """Prepares `python -m COMMAND`; ends it with status 2 where `check` finds another package.

    A letter that standard output or error cannot encode is printed as in `_ASCII`, or as `?`.
    """
    codecs.register_error(_ERRORS, _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)
    try:
        check()
    except ValueError as error:
        print(f"python -m {command}: {error}", file=sys.stderr)
        sys.exit(2)


def check() -> None:
    """Raises ValueError naming both paths if a package is found outside this checkout."""
    here = pathlib.Path(__file__).resolve().parents[2]
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        # A folder without __init__.py has places to search, and no file.
        places = [spec.origin or "", *(spec.submodule_search_locations or ())] if spec else []
        path = next((pathlib.Path(place).resolve() for place in places if place), None)
        if path != here / package / "__init__.py":
            raise ValueError(
                f"package {package!r} would be imported from {path or 'nowhere'}, but this command "
                f"runs from {here}. Rename the first, remove it from PYTHONPATH, or set "
                "PYTHONSAFEPATH=1, which leaves the working folder off the path"
            )


def _replaced(error: Any) -> tuple[str, int]:
    """Returns what is printed for the letters of a UnicodeEncodeError, and where they end."""
    letters = error.object[error.start : error.end]
    return "".join(_ASCII.get(letter, "?") for letter in letters), error.end
