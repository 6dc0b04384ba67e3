"""What lies in a directory: which studies, what was expected of one that cannot be read, and what
lies beside the studies and is not read with them: named, never skipped."""

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

from analysis.load import published
from analysis.load.files.json_records import VISIBLE
from analysis.load.published import STUDY_NAME
from analysis.load.records import StudyRuns
from sweeps.records import layout

# How far below a directory trials are looked for, to say where they lie; and how many directories
# are opened for it, as somebody may give `/`.
DEPTH, MOST = 6, 2000
PARENTS = 4
PATTERNS = (STUDY_NAME, published.WORKLOAD_NAME, published.TRIAL_NAME)


def expected(root: pathlib.Path) -> str:
    """Returns one sentence: what was looked for in `root`, what fits, what to give instead."""
    if not root.exists():
        return f"{root}: no such directory; give a study's directory, the one with {layout.STUDY}"
    if not root.is_dir():
        return f"{root}: a file, not a directory; give the study's directory that it belongs to"
    looked = f"looked for {layout.STUDY} and for AlgoPerf's {published.PATTERN}"
    nothing = f"; no part of either fits: it holds {_names(root)}"
    hint = next(filter(None, (find(root) for find in (_below, _above, _partly, _elsewhere))), "")
    return f"{root}: no study here: {looked}{hint or nothing}"


def _below(root: pathlib.Path) -> str:
    """Studies, or logs, further down. Submissions of one directory are read together."""
    ours = {*studies_in(root)}
    logs = {path for path in _walk(root) if is_submission(path)}
    tops = {path.parent if path.parent != root else path for path in logs}
    names = sorted(path.relative_to(root).as_posix() for path in ours | tops)
    return f"; did you mean one of these in it: {', '.join(names)}" if names else ""


def is_submission(path: pathlib.Path) -> bool:
    """Returns whether a directory holds AlgoPerf's `study_<k>` with trials."""
    try:
        return any(_has_trials(entry.path) for entry in published.fitting(path, STUDY_NAME))
    except OSError:
        return False


def _has_trials(study: pathlib.Path) -> bool:
    return study.is_dir() and any(
        published.fitting(entry.path, published.TRIAL_NAME)
        for entry in published.fitting(study, published.WORKLOAD_NAME)
    )


def _above(root: pathlib.Path) -> str:
    """A part of a study: its stage, a trial."""
    places = root.resolve()
    for parent in list(places.parents)[:PARENTS]:
        if (parent / layout.STUDY).is_file():
            return f"; it is a part of the study {parent}: give that"
    for place in (places, *list(places.parents)[:2]):
        if STUDY_NAME.fullmatch(place.name) and _has_trials(place):
            return f"; it is a part of AlgoPerf's logs in {place.parent}: give that"
    return ""


def _partly(root: pathlib.Path) -> str:
    """A tree that begins as it should and goes on otherwise."""
    if (root / layout.TRIALS).is_file() or list(root.glob(f"*/{layout.TRIALS}")):
        return f"; there is a {layout.TRIALS}, so that {layout.STUDY} was lost or not copied"
    for study in published.fitting(root, STUDY_NAME):
        workloads = published.fitting(study.path, published.WORKLOAD_NAME)
        fits = workloads[0].path if workloads else study.path
        wanted = "trial_<n>" if workloads else "<workload>_jax or <workload>_pytorch"
        return (
            f"; {fits.relative_to(root).as_posix()} fits, but no {wanted} is in it, "
            f"only {_names(fits)}"
        )
    return ""


def _elsewhere(root: pathlib.Path) -> str:
    """Measurements that lie where neither layout has them."""
    for path in _walk(root):
        for file in (layout.EVAL_MEASUREMENTS, layout.MEASUREMENTS):
            if (path / file).is_file():
                place = path.relative_to(root)
                fits = [part for part in place.parts if any(p.fullmatch(part) for p in PATTERNS)]
                which = f"{', '.join(fits)} fits" if fits else "no part fits"
                return f"; found {(place / file).as_posix()}, of which {which}"
    return ""


def _walk(root: pathlib.Path) -> Iterator[pathlib.Path]:
    level = [root]
    opened = 0
    for _ in range(DEPTH):
        yield from level
        below: list[pathlib.Path] = []
        for path in level:
            opened += 1
            if opened > MOST:
                return
            below += [child for child in children(path) if child.is_dir()]
        level = below


def holds_trials(path: pathlib.Path) -> bool:
    """Returns whether a study or a trial lies in `path` or below, as far as is looked."""
    files = (layout.STUDY, layout.TRIALS, layout.TRIAL, layout.EVAL_MEASUREMENTS)
    return any((place / file).is_file() for place in _walk(path) for file in files)


def children(path: pathlib.Path) -> list[pathlib.Path]:
    """Returns what a directory holds, by name; nothing where it cannot be opened."""
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _names(path: pathlib.Path) -> str:
    names = [child.name for child in children(path)]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more or "nothing"


def with_left_out(logs: StudyRuns, root: pathlib.Path) -> StudyRuns:
    """Returns AlgoPerf's `logs`, read in `root`, with a problem for each study of ours there and
    for each directory with measurements that is no submission."""
    beside = (
        f"left out: {path.name}: a study of its own beside AlgoPerf's logs: give {path}"
        for path in studies_in(root)
    )
    return dataclasses.replace(logs, problems=(*logs.problems, *beside, *left_out(root)))


def studies_in(root: pathlib.Path) -> list[pathlib.Path]:
    """Returns the directories in `root` that hold a study.json, by name."""
    return sorted(path.parent for path in root.glob(f"{VISIBLE}/{layout.STUDY}"))


def left_out(root: pathlib.Path) -> Sequence[str]:
    """Returns a sentence for each directory in `root` that has measurements, or studies further
    down, and is neither a study of ours nor AlgoPerf's logs."""
    below = [path for path in sorted(root.glob(VISIBLE)) if path.is_dir()]
    logs = {entry.path for entry in published.fitting(root, STUDY_NAME)}
    known = {*studies_in(root), *logs, *(path for path in below if is_submission(path))}
    return [
        # The rest of the sentence that a directory given by itself is refused with.
        f"left out: {path.name}: {expected(path).removeprefix(f'{path}: ')}"
        for path in below
        if path not in known and holds_trials(path)
    ]
