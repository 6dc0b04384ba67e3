"""The packages' files, what each imports by its source, and which part may import which."""

import ast
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = ("analysis", "sweeps", "workloads", "attention")
_GROUND = ("common", "compilers", "backends", "entries", "table", "functions", "masks", "norms")
_ORDER = (
    *_GROUND,
    "call",
    "records",
    "kernels",
    "mixers",
    "modifiers",
    "probe",
    "flex",
    "variant",
    "registry",
    "adapters",
    "inject",
    "verification",
    "tuning",
    "__main__",
)
_DOMAINS = ("images", "speech", "text")
_BELOW = ("base", "storage", "speech/corpora", "text/corpora", *_DOMAINS)
_JOB = ("records", "launchers", "study", "distributed", "training", "scheduling")
# Of each package its parts, folders or files of the top level: a part imports itself and those that
# its line names, which stand above it: the order rules out circles. "": the rest of the top level.
LAYERS: dict[str, dict[str, tuple[str, ...]]] = {
    "attention": {part: _ORDER[:number] for number, part in enumerate(_ORDER)},
    "workloads": {
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
        "maxtext": (),
        "commands": (*_BELOW, "downstream", "catalog", "algoperf", "maxtext"),
    },
    "sweeps": {
        "records": (),
        "launchers": ("records",),
        "study": ("records", "launchers"),
        "studies": ("study",),
        "distributed": ("launchers",),
        "training": ("records", "study", "distributed"),
        "algoperf": ("records", "study", "training"),
        "monitoring": ("records", "launchers", "study"),
        "compilers": ("records", "launchers", "study", "training"),
        "scheduling": ("records", "launchers", "study", "monitoring"),
        "job": _JOB,
        "": (*_JOB, "studies", "algoperf", "monitoring", "compilers", "job"),
    },
    "analysis": {
        "render": (),
        "statistics": (),
        "load": (),
        "compare": ("statistics", "load"),
        "views": ("render", "statistics", "load", "compare"),
        "": ("render", "statistics", "load", "compare", "views"),
    },
}
# Files of the top level that are one part together.
_TOGETHER = {
    **dict.fromkeys(("catalog", "registry", "algoperf_specs"), "catalog"),
    **dict.fromkeys(("__main__", "bench"), "commands"),
}


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


def part(name: str) -> str:
    """Returns the part of its package that the module of a full name lies in, "" for the rest."""
    package, *steps = name.split(".")
    top = _TOGETHER.get(steps[0], "") if package == "workloads" else ""
    names = ("/".join(steps[:2]), steps[0], top)
    return next((known for known in names if known in LAYERS[package]), "")


def modules(name: str) -> set[pathlib.Path]:
    """Returns the project's module of a full name, which may be that of something in it, if any."""
    # `from sweeps.records.lease import claim` imports sweeps/records/lease.py.
    paths = [ROOT.joinpath(*full.split(".")) for full in (name, name.rpartition(".")[0])]
    ours = name.split(".")[0] in PACKAGES
    return {path.with_suffix(".py") for path in paths if ours and path.with_suffix(".py").is_file()}


def needs(path: pathlib.Path) -> set[pathlib.Path]:
    """Returns the modules of the project that a file imports."""
    return set().union(*map(modules, imported(path)))
