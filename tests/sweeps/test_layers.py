"""Which folder of sweeps/ may import which, one way only, as the list states."""

import pathlib
import sys

import pytest

from tests import floor_plan

ROOT = floor_plan.ROOT / "sweeps"
# A folder imports folders above it, of those only the ones named: the order rules out circles.
IMPORTS: dict[str, tuple[str, ...]] = {
    "records": (),
    "launchers": ("records",),
    "study": ("records", "launchers"),
    "studies": ("study",),
    "distributed": ("launchers",),
    "training": ("records", "study", "distributed"),
    "algoperf": ("records", "study", "training"),
    "monitoring": ("records", "launchers", "study", "training"),
    "scheduling": ("records", "launchers", "study", "monitoring"),
    "job": (*("records", "launchers", "study", "distributed", "training", "scheduling"),),
}
# What a driver never loads; of these folders every module is imported without it.
HEAVY = {"jax", "jaxlib", "flax", "optax", "orbax"}
WITHOUT_JAX = ("records", "launchers", "study", "scheduling", "distributed")
FILES = floor_plan.files("sweeps")


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
        for name in floor_plan.imported(path):
            room, _, rest = name.partition(".")
            assert room != "analysis", path
            if room == "sweeps" and rest.split(".")[0] not in allowed:
                pytest.fail(f"{path.relative_to(ROOT)} imports {name}")


@pytest.mark.parametrize("folder", WITHOUT_JAX)
def test_what_a_driver_imports_is_without_jax(folder):
    for path in _files(folder):
        heavy = {name.split(".")[0] for name in floor_plan.imported(path, within=False)} & HEAVY
        assert not heavy, path


def test_the_one_selection_rule_needs_the_standard_library_alone():
    """`analysis` imports it, too."""
    allowed = {*sys.stdlib_module_names, "sweeps", "attention"}
    pending, seen = [ROOT / "study" / "selection.py"], set()
    while pending:
        path = pending.pop()
        seen.add(path)
        assert {name.split(".")[0] for name in floor_plan.imported(path)} <= allowed, path
        pending += floor_plan.needs(path) - seen
