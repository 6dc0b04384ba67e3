"""Which folder of analysis/ may import which: one way only, as the list states."""

import ast
import pathlib
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2] / "analysis"
# A folder imports folders above it, of those only the ones named: the order rules out circles.
IMPORTS: dict[str, tuple[str, ...]] = {
    "files": (),
    "documents": (),
    "statistics": (),
    "paper": ("documents",),
    "reading": ("files", "documents", "paper"),
    "results": ("files", "documents", "statistics", "paper", "reading"),
    "tables": ("documents", "statistics", "paper", "reading", "results"),
    "times": ("files", "documents", "paper", "reading", "results"),
    "scaling": ("files", "documents", "paper", "reading", "results"),
    "diagnostics": ("files", "documents", "paper", "reading", "results"),
    "plots": ("files", "documents", "statistics", "reading", "results", "times", "diagnostics"),
    "report": (
        *("files", "documents", "paper", "reading", "results", "tables"),
        *("times", "scaling", "diagnostics", "plots"),
    ),
}
# What computes with JAX is in the other rooms, which leave files behind.
FOREIGN = {"jax", "jaxlib", "flax", "optax", "orbax", "attention", "workloads"}
FILES = sorted(ROOT.rglob("*.py"))


def _imported(path: pathlib.Path) -> Iterator[str]:
    """Yields the full name of each module that a file imports, inside of functions as well."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _folders(paths: list[pathlib.Path]) -> set[str]:
    """Returns the folders of analysis/ that the files import; their top level is `analysis`."""
    names = [name.split(".") for path in paths for name in _imported(path)]
    ours = [name for name in names if name[0] == "analysis"]
    return {name[1] if name[1] in IMPORTS else "analysis" for name in ours}


def test_the_list_names_every_folder_and_only_folders_above():
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == set(IMPORTS)
    known: set[str] = set()
    for folder, imports in IMPORTS.items():
        assert set(imports) <= known, folder
        known.add(folder)


@pytest.mark.parametrize("folder", IMPORTS)
def test_a_folder_imports_what_the_list_names(folder):
    paths = [path for path in FILES if path.parent == ROOT / folder]
    assert _folders(paths) - {folder} == set(IMPORTS[folder])


def test_the_top_level_holds_commands_only():
    names = {path.stem for path in ROOT.glob("*.py")}
    assert names == {"__init__", "__main__", "commands", "bench_reader", "simulation"}


def test_nothing_imports_jax_or_a_room_that_does():
    found = {(path.name, name) for path in FILES for name in _imported(path)}
    assert [pair for pair in sorted(found) if pair[1].split(".")[0] in FOREIGN] == []
