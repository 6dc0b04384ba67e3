"""The floor plan of attention/: which folder may import which, and nothing of the other rooms."""

import ast
import pathlib
import sys

import pytest

ROOM = pathlib.Path(__file__).resolve().parents[2] / "attention"
# From the ground up: a part may import those above it in this list, and itself.
ORDER = (
    "table",
    "files",
    "checkout",
    "records",
    "kernels",
    "mixers",
    "modifiers",
    "hosts",
    "variant",
    "registry",
    "inject",
    "verification",
    "__main__",
)
# Drivers check names without JAX.
STANDARD_LIBRARY = ("table", "files", "checkout")
FILES = sorted(path for path in ROOM.rglob("*.py") if path != ROOM / "__init__.py")


def _part(path):
    return path.relative_to(ROOM).with_suffix("").parts[0]


def _imported(path):
    """Yields the modules that a file imports, at its head or inside a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOM)))
def test_imports_point_down(path):
    below = ORDER[: ORDER.index(_part(path)) + 1]
    for name in _imported(path):
        room, *parts = name.split(".")
        assert room not in {"workloads", "sweeps", "analysis"}, name
        if room == "attention":
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
    shared = {"head_pairs", "shift"}
    assert files - set(lines) <= shared


def test_folders_hold_at_most_fifteen_files():
    for folder in {path.parent for path in FILES}:
        assert len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) <= 15
