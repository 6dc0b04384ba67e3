"""The floor plan of attention/: which folder may import which, and nothing of the other rooms."""

import sys

import pytest

from tests import floor_plan

ROOM = floor_plan.ROOT / "attention"
# From the ground up: a part may import those above it in this list, and itself.
ORDER = (
    "table",
    "files",
    "precision",
    "extras",
    "checkout",
    "devices",
    "functions",
    "masks",
    "call",
    "records",
    "kernels",
    "mixers",
    "modifiers",
    "hosts",
    "flex",
    "variant",
    "registry",
    "inject",
    "verification",
    "__main__",
)
# Drivers check names without JAX.
STANDARD_LIBRARY = ("table", "files", "precision", "extras", "checkout")
FILES = [path for path in floor_plan.files("attention") if path != ROOM / "__init__.py"]


def _part(path):
    return path.relative_to(ROOM).with_suffix("").parts[0]


def test_imports_point_down():
    for path, name in ((file, name) for file in FILES for name in floor_plan.imported(file)):
        room, *parts = name.split(".")
        assert room not in {"workloads", "sweeps", "analysis"}, f"{path} imports {name}"
        if room == "attention":
            below = ORDER[: ORDER.index(_part(path)) + 1]
            assert parts[0] in below, f"{path} imports {name}"
        elif _part(path) in STANDARD_LIBRARY:
            assert room in sys.stdlib_module_names, f"{path} imports {name}"


@pytest.mark.parametrize("folder", ["mixers", "modifiers"])
def test_a_file_of_a_folder_has_a_line_or_is_shared(folder):
    """Nothing lies there that the table does not know, but what several of its files share."""
    from attention import table

    lines = {"mixers": table.MIXERS, "modifiers": table.MODIFIERS}[folder]
    files = {path.stem for path in FILES if _part(path) == folder} - {"__init__"}
    assert set(lines) <= files
    shared = {"head_pairs", "query_pairs", "laser_functions", "laser_shift"}
    assert files - set(lines) <= shared
