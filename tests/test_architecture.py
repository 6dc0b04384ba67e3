"""docs/architecture.md names what exists, and every folder of a room."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
ROOMS = ("analysis", "sweeps", "workloads", "attention")
NAMED = sorted(set(re.findall(r"`((?:analysis|sweeps|workloads|attention)/[^`]+)`", PAGE)))
MOST_FILES, MOST_STEPS = 16, 10


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
    for room in ROOMS:
        for folder in {path.parent for path in (ROOT / room).rglob("*.py")}:
            files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
            assert len(files) <= MOST_FILES or folder.name == "studies", folder


def test_a_way_has_at_most_ten_steps():
    ways = re.findall(r"^## The way [^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert len(ways) == 4
    for way in ways:
        assert 0 < len(re.findall(r"^\d+\. ", way, re.MULTILINE)) <= MOST_STEPS
