"""docs/architecture.md names what exists, and every folder of a package; imports point down."""

import ast
import pathlib
import re
import sys
from collections import Counter
from graphlib import TopologicalSorter

import pytest

from attention import table
from tests import floor_plan
from tests.floor_plan import LAYERS, PACKAGES, ROOT

PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`((?:analysis|sweeps|workloads|attention)/[^`]+)`", PAGE)))
MODULES = [path for package in PACKAGES for path in floor_plan.files(package)]
MOST_FILES, MOST_STEPS = 15, 10
LIBRARIES = {"jax", "jaxlib", "flax", "optax", "orbax"}
# What a driver imports: every module there is imported without these libraries.
WITHOUT_JAX = ("records", "launchers", "study", "scheduling", "distributed")
# What computes with JAX is in the other packages, which leave files behind. `analysis` takes of
# them the format of the files, the rule of selection, the names of variants and what any command
# line needs.
TAKEN = (
    *("sweeps.records.layout", "sweeps.records.status", "sweeps.records.answers"),
    "sweeps.records.measurements",
    *("sweeps.study.keys", "sweeps.study.selection"),
    *("attention.common.extras", "attention.common.files", "attention.table"),
    *("attention.common.arguments", "attention.common.messages.message"),
)
# Of the modules of `mixers` and `modifiers` those that several of their neighbours share.
SHARED = {"head_pairs", "query_pairs", "laser_shift"}


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


def _to_the_right(package: str) -> dict[str, set[str]]:
    """Returns of each name that the page draws of a package those that stand to its right."""
    drawing = re.search(r"^## Folders\n.*?```\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
    assert drawing is not None
    right: dict[str, set[str]] = {}
    owner = ""
    for line in drawing[1].splitlines():
        owner = line[:12].strip() or owner
        for chain in line[12:].split(";") if owner == package else ():
            places = [{name.strip() for name in place.split(",")} for place in chain.split("→")]
            for number, place in enumerate(places):
                for name in place:
                    right.setdefault(name, set()).update(*places[number + 1 :])
    return right


@pytest.mark.parametrize("package", PACKAGES)
def test_the_drawing_has_every_folder_and_imports_point_to_the_right(package):
    right = _to_the_right(package)
    for _ in right:  # what stands to the right of a name in another line counts as well
        right = {name: names.union(*map(right.get, names)) for name, names in right.items()}
    nested = [path for path in floor_plan.files(package) if path.parent != ROOT / package]
    assert {_drawn(floor_plan.part(_module(path))) for path in nested} <= set(right)
    for path in floor_plan.files(package):
        part = _drawn(floor_plan.part(_module(path)))
        ours = [name for name in floor_plan.imported(path) if name.split(".")[0] == package]
        parts = {_drawn(floor_plan.part(name)) for name in ours} & set(right)
        assert part not in right or parts <= {part, *right[part]}, path


def _drawn(part: str) -> str:
    """Returns the name under which the page draws a part: one of `corpora` for both domains."""
    return "corpora" if part.endswith("/corpora") else part


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


@pytest.mark.parametrize(("path", "most"), [("a variant's name", 8), ("a table", 10)])
def test_the_files_of_a_walk_are_few_and_joined_by_imports(path, most):
    """Each file imports, or is imported by, one that the page names before it."""
    section = PAGE.split(f"## The path of {path}\n")[1].split("\n## ")[0]
    listing = section.split("\nFiles to read")[1]
    files = [ROOT / name for name in re.findall(r"`(\w+/[^`]+\.py)`", listing)]
    assert 1 < len(files) <= most
    for number, file in enumerate(files[1:], 1):
        earlier = set(files[:number])
        assert floor_plan.needs(file) & earlier or any(
            file in floor_plan.needs(other) for other in earlier
        ), file


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


def _module(path: pathlib.Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("package", LAYERS)
def test_a_part_imports_what_its_line_names_all_above_it(package):
    paths = [path for path in floor_plan.files(package) if path != ROOT / package / "__init__.py"]
    parts = {path: floor_plan.part(_module(path)) for path in paths}
    assert set(parts.values()) == set(LAYERS[package])
    known: set[str] = set()
    for part, imports in LAYERS[package].items():
        assert set(imports) <= known, part
        known.add(part)
    for path, part in parts.items():
        names = [name for name in floor_plan.imported(path) if name.split(".")[0] in PACKAGES]
        packages = {name.split(".")[0] for name in names}
        assert packages <= set(PACKAGES[PACKAGES.index(package) :]), path
        ours = {floor_plan.part(name) for name in names if name.split(".")[0] == package}
        assert ours <= {part, *LAYERS[package][part]}, path


def test_analysis_takes_of_the_other_packages_what_the_list_names():
    names = {name for path in floor_plan.files("analysis") for name in floor_plan.imported(path)}
    others = {*LIBRARIES, *PACKAGES} - {"analysis"}
    assert {name for name in names if name.split(".")[0] in others} == set(TAKEN)


def test_what_checks_names_needs_the_standard_library_alone():
    """Of a driver, and of `analysis` what it takes of the others, but arrays that it reads."""
    allowed = {*sys.stdlib_module_names, *PACKAGES} - {"analysis"}
    roots = {ROOT / "attention/common/precision.py", ROOT / "attention/common/checkout.py"}
    named = [name for name in TAKEN if name != "sweeps.records.answers"]
    pending, reached = list(roots.union(*map(floor_plan.modules, named))), set()
    while pending:
        path = pending.pop()
        reached.add(path)
        assert {name.split(".")[0] for name in floor_plan.imported(path)} <= allowed, path
        pending += floor_plan.needs(path) - reached


def test_what_a_driver_imports_is_without_jax():
    for path in floor_plan.files("sweeps"):
        roots = {name.split(".")[0] for name in floor_plan.imported(path, within=False)}
        assert floor_plan.part(_module(path)) not in WITHOUT_JAX or not roots & LIBRARIES, path


@pytest.mark.parametrize(
    ("folder", "entries"), [("mixers", table.MIXERS), ("modifiers", table.MODIFIERS)]
)
def test_a_file_of_a_folder_has_a_line_or_is_shared(folder, entries):
    """Nothing lies there that the table does not know, but what several of its files share."""
    files = {path.stem for path in (ROOT / "attention" / folder).glob("*.py")} - {"__init__"}
    assert set(entries) <= files <= {*entries, *SHARED}
