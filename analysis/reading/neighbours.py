"""What lies beside the studies of a directory and is not read with them: named, never skipped."""

import dataclasses
import pathlib
from collections.abc import Iterable, Sequence

from analysis.files.records import Study
from analysis.reading import layouts, published
from sweeps.records import layout


def named(logs: Study, root: pathlib.Path) -> Study:
    """Returns AlgoPerf's `logs`, read in `root`, with a problem for each study of ours there and
    for each directory with measurements that is no submission."""
    found = (*_of_ours(root), *strays(root))
    return dataclasses.replace(logs, problems=(*logs.problems, *found))


def _of_ours(root: pathlib.Path) -> Iterable[str]:
    for path in ours(root):
        yield f"left out: {path.name}: a study of its own beside AlgoPerf's logs: give {path}"


def ours(root: pathlib.Path) -> list[pathlib.Path]:
    """Returns the directories in `root` that hold a study.json, by name."""
    return sorted(path.parent for path in root.glob(f"*/{layout.STUDY}"))


def strays(root: pathlib.Path) -> Sequence[str]:
    """Returns a sentence for each directory in `root` that has measurements, or studies further
    down, and is neither a study of ours nor AlgoPerf's logs."""
    known = {*ours(root), *_logs(root)}
    below = [path for path in layouts.children(root) if path.is_dir() and path not in known]
    return [f"left out: {path.name}: {_why(path)}" for path in below if layouts.holds_trials(path)]


def _logs(root: pathlib.Path) -> Iterable[pathlib.Path]:
    yield from (entry.path for entry in published.fitting(root, published.STUDY_NAME))
    yield from (path for path in layouts.children(root) if layouts.is_submission(path))


def _why(path: pathlib.Path) -> str:
    """The rest of the sentence that a directory given by itself is refused with."""
    return layouts.expected(path).removeprefix(f"{path}: ")
