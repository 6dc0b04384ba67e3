"""Which folder of sweeps/ may import which, one way only, as the list states; and their sizes."""

import ast
import pathlib
import sys
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2] / "sweeps"
# A folder imports folders above it, of those only the ones named: the order rules out circles.
IMPORTS: dict[str, tuple[str, ...]] = {
    "records": (),
    "launchers": ("records",),
    "study": ("records", "launchers"),
    "studies": ("study",),
    "distributed": ("launchers",),
    "training": ("records", "study", "distributed"),
    "worker": ("records", "launchers", "study", "distributed", "training"),
    "algoperf": ("records", "study", "training"),
    "benchmarks": ("study", "training"),
    "monitoring": ("records", "launchers", "study", "training"),
    "scheduling": ("records", "launchers", "study", "distributed", "monitoring"),
}
# What a driver never loads; of these folders every module is imported without it.
HEAVY = {"jax", "jaxlib", "flax", "optax", "orbax"}
WITHOUT_JAX = ("records", "launchers", "study", "scheduling", "distributed")
MOST_FILES = 15
FILES = sorted(ROOT.rglob("*.py"))


def _imported(path: pathlib.Path, within: bool = True) -> Iterator[str]:
    """Yields the full name of each module that a file imports, `within` functions too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if within else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _files(folder: str) -> list[pathlib.Path]:
    return [path for path in FILES if path.relative_to(ROOT).parts[0] == folder]


def test_the_list_names_every_folder_and_only_folders_above():
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == set(IMPORTS)
    known: set[str] = set()
    for folder, imports in IMPORTS.items():
        assert set(imports) <= known, folder
        known.add(folder)


@pytest.mark.parametrize("folder", IMPORTS)
def test_a_folder_imports_what_the_list_names(folder):
    allowed = {*IMPORTS[folder], folder}
    for path in _files(folder):
        for name in _imported(path):
            room, _, rest = name.partition(".")
            assert room != "analysis", path
            if room == "sweeps" and rest.split(".")[0] not in allowed:
                pytest.fail(f"{path.relative_to(ROOT)} imports {name}")


def _needs(path: pathlib.Path) -> set[pathlib.Path]:
    """Returns the modules of sweeps/ that a file imports."""
    found = set()
    for name in _imported(path):
        parts = name.split(".")[1:]
        for length in (len(parts), len(parts) - 1):
            module = ROOT.joinpath(*parts[:length]).with_suffix(".py")
            if name.startswith("sweeps.") and length and module.is_file():
                found.add(module)
                break
    return found


def test_no_modules_import_each_other():
    needs = {path: _needs(path) for path in FILES}
    while leaves := [path for path, needed in needs.items() if not needed & needs.keys()]:
        for path in leaves:
            del needs[path]
    assert not needs, "a circle, or what leads to one"


@pytest.mark.parametrize("folder", WITHOUT_JAX)
def test_what_a_driver_imports_is_without_jax(folder):
    for path in _files(folder):
        heavy = {name.split(".")[0] for name in _imported(path, within=False)} & HEAVY
        assert not heavy, path


def test_the_one_selection_rule_needs_the_standard_library_alone():
    """`analysis` imports it, too."""
    allowed = {*sys.stdlib_module_names, "sweeps", "attention"}
    pending, seen = [ROOT / "study" / "selection.py"], set()
    while pending:
        path = pending.pop()
        seen.add(path)
        assert {name.split(".")[0] for name in _imported(path)} <= allowed, path
        pending += _needs(path) - seen


def test_folders_can_be_looked_over():
    """Studies are a catalogue, one file each."""
    for folder in {path.parent for path in FILES} - {ROOT / "studies"}:
        files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(files) <= MOST_FILES, folder
