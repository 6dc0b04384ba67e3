"""docs/architecture.md names what exists, and every folder of a package."""

import ast
import pathlib
import re
from collections import Counter
from graphlib import TopologicalSorter

import pytest

from tests import floor_plan
from tests.floor_plan import PACKAGES, ROOT

PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`((?:analysis|sweeps|workloads|attention)/[^`]+)`", PAGE)))
MODULES = [path for package in PACKAGES for path in floor_plan.files(package)]
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


def test_the_page_lists_every_folder_of_every_package():
    listed = set(re.findall(r"^\| `([^`]+)/` \|", PAGE, re.MULTILINE))
    folders = {path.parent.relative_to(ROOT).as_posix() for path in MODULES}
    assert listed == folders | {"sweeps/spaces"}


def test_folders_can_be_taken_in_at_a_glance():
    counts = Counter(path.parent for path in MODULES if path.name != "__init__.py")
    assert max(counts.values()) <= MOST_FILES, counts.most_common(1)


def test_no_module_imports_itself_by_way_of_others():
    needed = {path: floor_plan.needs(path) for path in MODULES}
    assert len(tuple(TopologicalSorter(needed).static_order())) == len(MODULES)


def test_a_path_has_few_steps():
    steps = {
        name: len(re.findall(r"^\d+\. ", text, re.MULTILINE))
        for name, text in re.findall(
            r"^## The path of ([^\n]*)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL
        )
    }
    assert len(steps) == 4
    assert steps["a trial"] <= 8
    assert all(0 < count <= MOST_STEPS for count in steps.values())


def _decided_by_the_locale(path: pathlib.Path) -> list[int]:
    """Returns the lines on which a file opens text without naming its encoding."""
    lines = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or any(word.arg == "encoding" for word in node.keywords):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        owner = getattr(getattr(node.func, "value", None), "id", "")
        texts = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        modes = [text for text in texts if re.fullmatch("[rwaxbt+]+", str(text))]
        least = {"read_text": 1, "write_text": 2}.get(name, 0)
        binary = owner in ("os", "gzip", "tarfile") or "b" in "".join(modes)
        if len(node.args) < least or (name == "open" and not binary):
            lines.append(node.lineno)
    return lines


def test_no_locale_decides_the_encoding_of_a_file():
    assert not {path: lines for path in MODULES if (lines := _decided_by_the_locale(path))}
