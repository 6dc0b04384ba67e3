"""Which part of workloads/ may import which: one way only, as the list states."""

import pytest

from tests import floor_plan

ROOT = floor_plan.ROOT / "workloads"
_DOMAINS = ("images", "speech", "text")
_BELOW = ("base", "storage", "speech/corpora", "text/corpora", *_DOMAINS)
# A part imports parts above it, of those only the ones named: the order rules out circles.
IMPORTS: dict[str, tuple[str, ...]] = {
    "base": (),
    "storage": ("base",),
    "speech/corpora": ("base", "storage"),
    "text/corpora": ("base", "storage"),
    "images": ("base", "storage"),
    "speech": ("base", "storage", "speech/corpora"),
    "text": ("base", "storage", "text/corpora"),
    "downstream": ("base", "storage", "text", "text/corpora"),
    "downstream/finetuning": ("base", "storage", "text", "text/corpora", "downstream"),
    # Files of the top level: the table of what there is, and what makes one of it.
    "catalog": ("base", *_DOMAINS),
    "algoperf": (*_BELOW, "catalog"),
    "init2winit": (*_BELOW, "algoperf"),
    "commands": (*_BELOW, "downstream", "catalog", "algoperf"),
}
TOP = {
    "catalog": ("catalog", "registry", "algoperf_specs", "arguments"),
    "commands": ("__main__", "bench"),
}
FILES = [path for path in floor_plan.files("workloads") if path != ROOT / "__init__.py"]


def _part(parts: tuple[str, ...]) -> str:
    """Returns the part that a module below workloads/ lies in, by its path."""
    for depth in (2, 1):
        if "/".join(parts[:depth]) in IMPORTS and (ROOT / "/".join(parts[:depth])).is_dir():
            return "/".join(parts[:depth])
    return next(name for name, modules in TOP.items() if parts[0] in modules)


def test_the_list_names_every_folder_and_only_parts_above():
    folders = {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("**/__init__.py")} - {"."}
    assert folders | set(TOP) == set(IMPORTS)
    known: set[str] = set()
    for part, imports in IMPORTS.items():
        assert set(imports) <= known, part
        known.add(part)


@pytest.mark.parametrize("part", IMPORTS)
def test_a_part_imports_what_the_list_names(part):
    for path in FILES:
        module = path.relative_to(ROOT).with_suffix("").parts
        if _part(module) != part:
            continue
        names = [name.split(".") for name in floor_plan.imported(path)]
        imports = {_part(tuple(name[1:])) for name in names if name[0] == "workloads"}
        assert imports <= {part, *IMPORTS[part]}, path
        assert not {name[0] for name in names} & {"sweeps", "analysis"}, path
