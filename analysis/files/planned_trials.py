"""Reads a stage's trials.json: the trials that the stage consists of."""

import pathlib
from typing import Any

from analysis.files import checked
from sweeps.records import layout

# What an entry cannot do without.
NEEDED = {
    "path": checked.TEXT,
    "variant": checked.TEXT,
    "workload": checked.TEXT,
    "point": checked.WHOLE,
    "seed": checked.WHOLE,
}
TRIAL_DIRECTORIES = "*/*_jax/trial_*"


def read(root: pathlib.Path, stage: str, problems: list[str]) -> list[dict[str, Any]] | None:
    """Returns the trials that a stage of the study in `root` consists of, None where it has not
    been planned yet. What is damaged, or lost, is named in `problems`."""
    where, before = f"{stage}/{layout.TRIALS}", len(problems)
    record = checked.read(root / stage / layout.TRIALS, where, problems)
    if record is None:
        return _lost(root, stage, problems) if len(problems) == before else []
    entries = [(number, entry) for number, entry in enumerate(record.get("trials") or [])]
    return [
        checked.usable(entry, checked.TRIAL, f"{where}: trials[{number}]", problems)
        for number, entry in entries
        if _is_usable(entry, where, problems)
    ]


def _lost(root: pathlib.Path, stage: str, problems: list[str]) -> list[dict[str, Any]] | None:
    """A stage without its list has not begun, unless trials lie there."""
    found = directories(root, stage)
    if not found:
        return None
    problems.append(
        f"missing: {stage}/{layout.TRIALS}: {len(found)} directories of trials lie in {stage}, "
        f"beginning with {found[0]}, and nothing says which of them belong to it; none is read"
    )
    return []


def directories(root: pathlib.Path, stage: str) -> list[str]:
    """Returns the trial directories of a stage, relative to `root`."""
    found = sorted((root / stage).glob(TRIAL_DIRECTORIES))
    return [path.relative_to(root).as_posix() for path in found if path.is_dir()]


def _is_usable(entry: Any, where: str, problems: list[str]) -> bool:
    known = isinstance(entry, dict) and all(
        kind.fits(entry.get(name)) for name, kind in NEEDED.items()
    )
    if not known:
        wanted = ", ".join(f"{name} ({kind.words})" for name, kind in NEEDED.items())
        problems.append(f"unreadable: {where}: an entry without {wanted}: {str(entry)[:200]}")
    elif not _is_inside(entry["path"]):
        problems.append(f"unreadable: {where}: path {entry['path']!r} leads out of the study")
        return False
    return known


def _is_inside(path: str) -> bool:
    parts = pathlib.PurePosixPath(path)
    return not parts.is_absolute() and ".." not in parts.parts
