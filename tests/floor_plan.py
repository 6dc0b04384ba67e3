"""The packages' files and what each imports, by their sources: for the tests of the layers."""

import ast
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = ("analysis", "sweeps", "workloads", "attention")


def files(package: str) -> list[pathlib.Path]:
    """Returns a package's modules, sorted, `__init__.py` among them."""
    return sorted((ROOT / package).rglob("*.py"))


def imported(path: pathlib.Path, within: bool = True) -> Iterator[str]:
    """Yields the full name of each module, or name in one, that a file imports; `within`: inside of
    functions as well."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if within else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def needs(path: pathlib.Path) -> set[pathlib.Path]:
    """Returns the modules of the project that a file imports."""
    # `from sweeps.records.lease import claim` imports sweeps/records/lease.py.
    names = {part for name in imported(path) for part in (name, name.rpartition(".")[0])}
    ours = (name for name in names if name.split(".")[0] in PACKAGES)
    paths = {ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in ours}
    return {module for module in paths if module.is_file()}
