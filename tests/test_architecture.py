"""docs/architecture.md names what exists, and every folder of a room."""

import ast
import pathlib
import re
from collections import Counter
from graphlib import TopologicalSorter

import pytest

from tests import floor_plan
from tests.floor_plan import ROOMS, ROOT

PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`((?:analysis|sweeps|workloads|attention)/[^`]+)`", PAGE)))
MOST_FILES, MOST_STEPS = 15, 10


def _defined(path: pathlib.Path) -> set[str]:
    """Returns the functions and classes of a file's top level."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@pytest.mark.parametrize("named", NAMED)
def test_what_the_page_names_exists(named):
    path, _, name = named.partition(": ")
    assert (ROOT / path).exists(), named
    if name:
        assert name in _defined(ROOT / path), named


def test_the_page_lists_every_folder_of_every_room():
    listed = set(re.findall(r"^\| `([^`]+)/` \|", PAGE, re.MULTILINE))
    found = {
        path.parent.relative_to(ROOT).as_posix()
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
    }
    assert listed == found - {"sweeps/studies"} | {"sweeps/studies", "sweeps/spaces"} | set(ROOMS)


def test_folders_can_be_taken_in_at_a_glance():
    """Studies are a catalogue, one file each."""
    every = [path for room in ROOMS for path in floor_plan.files(room)]
    counts = Counter(path.parent for path in every if path.name != "__init__.py")
    del counts[ROOT / "sweeps/studies"]
    assert max(counts.values()) <= MOST_FILES, counts.most_common(1)


def test_no_module_imports_itself_by_way_of_others():
    every = [path for room in ROOMS for path in floor_plan.files(room)]
    needed = {path: floor_plan.needs(path) for path in every}
    assert len(tuple(TopologicalSorter(needed).static_order())) == len(every)


def test_a_way_has_at_most_ten_steps():
    ways = re.findall(r"^## The way [^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert len(ways) == 4
    for way in ways:
        assert 0 < len(re.findall(r"^\d+\. ", way, re.MULTILINE)) <= MOST_STEPS
