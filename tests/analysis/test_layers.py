"""Which folder of analysis/ may import which: one way only, as the list states."""

import pathlib
import subprocess
import sys

import pytest

from analysis import cli
from tests import floor_plan

ROOT = floor_plan.ROOT / "analysis"
# A folder imports folders above it, of those only the ones named: the order rules out circles.
IMPORTS: dict[str, tuple[str, ...]] = {
    "render": (),
    "statistics": (),
    "load": (),
    "compare": ("render", "statistics", "load"),
    "views": ("render", "statistics", "load", "compare"),
}
# What computes with JAX is in the other rooms, which leave files behind. Of these rooms we take the
# format of the files, the rule of selection, the names of variants and what any command line needs,
# all of it standard library.
FOREIGN = {"jax", "jaxlib", "flax", "optax", "orbax", "attention", "workloads", "sweeps"}
TAKEN = (
    *("sweeps.records.layout", "sweeps.records.status"),
    *("sweeps.study.keys", "sweeps.study.selection"),
    *("attention.extras", "attention.files", "attention.table"),
    *("workloads.arguments", "workloads.base.errors.message"),
)
FILES = floor_plan.files("analysis")


def _folder(name: str) -> str:
    """Returns the folder of analysis/ that a module lies in, empty for its top level."""
    parts = name.split(".")[1:]
    deep = "/".join(parts[:2])
    return deep if deep in IMPORTS else parts[0] if parts[0] in IMPORTS else ""


def _folders(paths: list[pathlib.Path]) -> set[str]:
    """Returns the folders of analysis/ that the files import; their top level is ''."""
    names = [name for path in paths for name in floor_plan.imported(path)]
    return {_folder(name) for name in names if name.split(".")[0] == "analysis"}


def test_the_list_names_every_folder_and_only_folders_above():
    there = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.rglob("*/__init__.py")}
    assert there == set(IMPORTS)
    known: set[str] = set()
    for folder, imports in IMPORTS.items():
        assert set(imports) <= known, folder
        known.add(folder)


@pytest.mark.parametrize("folder", IMPORTS)
def test_a_folder_imports_what_the_list_names(folder):
    paths = [path for path in FILES if path.parent == ROOT / folder]
    assert _folders(paths) - {folder} == set(IMPORTS[folder])


def test_nothing_imports_jax_or_more_of_the_other_rooms_than_the_list_names():
    found = {
        name
        for path in FILES
        for name in floor_plan.imported(path)
        if name.split(".")[0] in FOREIGN
    }
    assert found == set(TAKEN)


# Runs commands on a study, and prints after each the modules that are loaded.
LOADED = """
import contextlib, io, sys
from analysis import cli
for command in sys.argv[2:]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        cli.main([command, sys.argv[1]])
    print(*sys.modules)
"""


def test_no_command_imports_jax_nor_a_table_what_draws(study):
    """The import closure of the most common command is small: it starts at once."""
    others = sorted(cli.COMMANDS.keys() - {"table", "plots"})  # pictures take seconds
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(study.finish()), "table", *others],
        cwd=ROOT.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    table, *_, everything = (set(line.split()) for line in done.stdout.splitlines())
    assert not {"jax", "jaxlib", "flax", "optax", "orbax", "vl_convert"} & everything
    assert "altair" in everything - table
    ours = [name for name in table if name.startswith("analysis.")]
    assert len(ours) <= 44, ours
