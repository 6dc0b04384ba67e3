"""Reads a study's directory, ours or one that AlgoPerf published, into runs and problems.

Nothing is skipped in silence: every planned trial becomes a run, whatever is left of it on disk,
and whatever is wrong with it is named in `problems`.
"""

import collections
import functools
import pathlib
from collections.abc import Sequence
from typing import Any

from analysis.files import checked, planned_trials, pool, selected
from analysis.files.records import Run, Study
from analysis.paper import paper
from analysis.reading import absent_columns, duplicates, layouts, neighbours, published, trials
from sweeps.records import layout

__all__ = ["NotAStudyError", "Run", "Study", "read_study"]


class NotAStudyError(ValueError):
    """The directory holds no study; the message says what was looked for."""


def read_study(directory: str | pathlib.Path, whole: bool = False) -> Study:
    """Returns the study in `directory`: the directory that holds study.json, or AlgoPerf's logs
    (`study_<seed>/<workload>_jax/trial_<n>` in it or one directory further down).

    Curves stay in their files until they are asked for; what is wrong with eval_measurements.csv
    is found now, with measurements.csv, which no table needs, only where `whole` says so.
    Raises NotAStudyError where it holds neither, or where study.json itself cannot be used.
    """
    root = pathlib.Path(directory)
    if (root / layout.STUDY).is_file():
        return _read_ours(root, whole)
    if logs := published.read_logs(root, whole):
        return neighbours.named(logs, root)
    raise NotAStudyError(layouts.expected(root))


def _read_ours(root: pathlib.Path, whole: bool) -> Study:
    problems: list[str] = []
    record = _study_record(root / layout.STUDY, problems)
    points = tuple(record.get("points") or ())
    stages = tuple(record.get("stages") or _stages(root, problems))
    entries = {stage: planned_trials.read(root, stage, problems) for stage in stages}
    listed = [stage for stage, found in entries.items() if found]
    unique = _unique([entry for listed in entries.values() for entry in listed or ()], problems)
    read = functools.partial(trials.read_trials, root, points=points, whole=whole)
    runs = absent_columns.named(pool.in_chunks(read, unique))
    selection = selected.read(root, runs, problems)
    paper_table = _paper_table(record, problems)
    references = checked.read(root / layout.REFERENCE, layout.REFERENCE, problems) or {}
    problems += [*absent_columns.nowhere(runs), *duplicates.problems(runs)]
    return Study(
        name=str(record.get("name", root.name)),
        config=record["config"],
        runs=runs,
        problems=(*problems, *(problem for run in runs for problem in run.problems)),
        directory=root,
        notes=(
            *(note for run in runs for note in run.notes),
            *_unlisted(root, listed, runs),
            *_mendable(root, runs),
        ),
        stages=stages,
        planned=tuple(stage for stage, listed in entries.items() if listed is not None),
        points=points,
        selection=selection,
        references=references,
        paper_table=paper_table,
        paper_note=str(record.get("paper_note") or ""),
    )


def _study_record(path: pathlib.Path, problems: list[str]) -> dict[str, Any]:
    """Raises NotAStudyError where study.json is damaged, of another format, or lacks its config."""
    try:
        record = layout.read_json(path)
    except (ValueError, OSError, RecursionError) as error:
        raise NotAStudyError(str(error)) from error
    found = record.get("format") if isinstance(record, dict) else None
    if found != layout.FORMAT:
        raise NotAStudyError(f"{path}: format is {found!r}; this reads {layout.FORMAT!r}")
    if not isinstance(record.get("config"), dict):
        raise NotAStudyError(f"{path}: it has no object 'config'; was it written by hand?")
    return checked.usable(record, checked.STUDY, layout.STUDY, problems)


def _stages(root: pathlib.Path, problems: list[str]) -> tuple[str, ...]:
    """Returns the stages that lie in the directory, for a record that does not name them."""
    found = tuple(sorted(path.parent.name for path in root.glob(f"*/{layout.TRIALS}")))
    those = f"those that have a {layout.TRIALS} are read: {', '.join(found) or 'none'}"
    problems.append(f"missing: {layout.STUDY}: it names no stages; {those}")
    return found


def _paper_table(record: dict[str, Any], problems: list[str]) -> str:
    """Returns the key of the paper's table, empty for none. Studies of before there were several
    tables say `is_paper_protocol`, which meant the ViT table."""
    older = "vit_error" if record.get("is_paper_protocol") else ""
    name = str(record.get("paper_table", older) or "")
    if name and name not in paper.TABLES:
        known = ", ".join(paper.TABLES)
        problems.append(f"unreadable: {layout.STUDY}: paper_table is {name!r}, not one of {known}")
        return ""
    return name


def _unique(entries: list[dict], problems: list[str]) -> list[dict]:
    """Returns the entries with each directory once, naming those that are planned twice."""
    counts = collections.Counter(entry["path"] for entry in entries)
    problems += [
        f"duplicated: {path}: planned {count} times in {layout.TRIALS}, read once"
        for path, count in counts.items()
        if count > 1
    ]
    return list({entry["path"]: entry for entry in entries}.values())


def _mendable(root: pathlib.Path, runs: tuple[Run, ...]) -> list[str]:
    cut = sum(run.state == "done" and run.ends_early for run in runs)
    mend = f"python -m sweeps resume {root}"
    return [f"{cut} done without whole records; to have them written anew: {mend}"] * bool(cut)


def _unlisted(root: pathlib.Path, stages: Sequence[str], runs: tuple[Run, ...]) -> list[str]:
    """Names trial directories that no list plans: leavings of an earlier selection or budget."""
    planned = {run.name for run in runs}
    found = (name for stage in stages for name in planned_trials.directories(root, stage))
    return [f"{name}: not planned any more, left out" for name in found if name not in planned]
