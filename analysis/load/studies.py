"""Reads a directory's studies, ours or those that AlgoPerf published, into runs and problems.

Nothing is skipped in silence: every planned trial becomes a run, whatever is left of it on disk,
and whatever is wrong with it is named in `problems`.
"""

import collections
import dataclasses
import pathlib
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from analysis.load import cross_checks, directories, init2winit, paper, published, trials
from analysis.load.files import json_records
from analysis.load.records import Run, StudyRuns
from attention import files
from sweeps.records import layout


class NotAStudyError(ValueError):
    """The directory holds no study; the message says what was looked for."""


def read_study(directory: str | pathlib.Path, whole: bool = False) -> StudyRuns:
    """Returns the study in `directory`: the directory that holds study.json, AlgoPerf's logs
    (`study_<seed>/<workload>_jax/trial_<n>` in it or one directory further down), or init2winit's
    (`<worker_id>/meta_data.json`, the same).

    Curves stay in their files until they are asked for; what is wrong with eval_measurements.csv
    is found now, with measurements.csv, which no table needs, only where `whole` says so.
    Raises NotAStudyError where it holds neither, or where study.json itself cannot be used.
    """
    root = pathlib.Path(directory)
    if (root / layout.STUDY).is_file():
        return _read_ours(root, whole)
    if logs := published.read_logs(root, whole):
        return directories.with_left_out(logs, root)
    if logs := init2winit.read_logs(root, whole):
        return logs
    raise NotAStudyError(directories.expected(root))


def _read_ours(root: pathlib.Path, whole: bool) -> StudyRuns:
    problems: list[str] = []
    record = _study_record(root / layout.STUDY, problems)
    points = tuple(record.get("points") or ())
    stages = tuple(record.get("stages") or _stages(root, problems))
    entries = {stage: json_records.planned_trials(root, stage, problems) for stage in stages}
    listed = [stage for stage, found in entries.items() if found]
    unique = _unique([entry for listed in entries.values() for entry in listed or ()], problems)
    runs = cross_checks.with_absent_columns(trials.read_trials(root, unique, points, whole))
    selection = _selection(root, runs, problems)
    paper_table = _paper_table(record, problems)
    references = json_records.read(root / layout.REFERENCE, layout.REFERENCE, problems) or {}
    problems += [*cross_checks.columns_nowhere(runs), *cross_checks.duplicates(runs)]
    return StudyRuns(
        name=str(record.get("name", root.name)),
        config=record["config"],
        runs=runs,
        problems=(*problems, *(problem for run in runs for problem in run.problems)),
        directory=root,
        notes=(*(note for run in runs for note in run.notes), *_notes(root, listed, runs)),
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
    except (ValueError, OSError) as error:
        raise NotAStudyError(str(error)) from error
    found = record.get("format") if isinstance(record, dict) else None
    if found != layout.FORMAT:
        raise NotAStudyError(f"{path}: format is {found!r}; this reads {layout.FORMAT!r}")
    if not isinstance(record.get("config"), dict):
        raise NotAStudyError(f"{path}: it has no object 'config'; was it written by hand?")
    return json_records.usable(record, json_records.STUDY, f"{layout.STUDY}: ", problems)


def _stages(root: pathlib.Path, problems: list[str]) -> tuple[str, ...]:
    """Returns the stages that lie in the directory, for a record that does not name them."""
    found = tuple(
        sorted(path.parent.name for path in root.glob(f"{json_records.VISIBLE}/{layout.TRIALS}"))
    )
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


def _notes(root: pathlib.Path, stages: Sequence[str], runs: tuple[Run, ...]) -> Iterable[str]:
    """Names trial directories that no list plans, leavings of an earlier selection or budget, and
    says how cut records are mended."""
    planned = {run.name for run in runs}
    for name in (name for stage in stages for name in json_records.trial_directories(root, stage)):
        if name not in planned:
            yield f"{name}: not planned any more, left out"
    if cut := sum(run.state == "done" and run.ends_early for run in runs):
        mend = f"python -m sweeps resume {files.quoted(root)}"
        yield f"{cut} done without whole records; to have them written anew: {mend}"


def _selection(
    root: pathlib.Path, runs: Sequence[Run], problems: list[str]
) -> dict[str, Any] | None:
    """Returns the selection of the study in `root`, None where nothing was chosen yet or the file
    cannot be used. `problems` gains what is damaged, and each point that has no trial."""
    record = json_records.read(root / layout.SELECTION, layout.SELECTION, problems)
    if record is None:
        return None
    points = record.get("points")
    if points is None:
        problems.append(
            f"unreadable: {layout.SELECTION}: it has no usable 'points'; each variant is "
            "represented by the best point of its stage's own trials instead"
        )
        return None
    for variant, point in points.items():
        problems += _without_trials(variant, point, runs)
    return record


def _without_trials(variant: str, point: int, runs: Sequence[Run]) -> list[str]:
    """A stage that was planned for a variant must have the point that was chosen for it."""
    found: dict[str, set[int]] = {}
    for run in runs:
        if run.variant == variant:
            found.setdefault(run.stage, set()).add(run.point)
    return [
        f"missing: {layout.SELECTION}: it chose point {point} for {variant}, of which {stage} has "
        f"no trial; it has points {_listed(points)}"
        for stage, points in found.items()
        if point not in points
    ]


def _listed(points: set[int]) -> str:
    more = f" and {len(points) - 10} more" if len(points) > 10 else ""
    return ", ".join(map(str, sorted(points)[:10])) + more


def read_each(directory: str | pathlib.Path) -> tuple[StudyRuns, ...]:
    """Returns the studies in `directory`, by name, one for each workload that they hold.

    `directory` is a study's, one of AlgoPerf's logs, or one that holds studies' directories and
    logs. What lies there and cannot be read is named in the first study's `problems`, and in its
    `beside`; studies of one name are `distinguished`. Raises NotAStudyError where there is none, or
    where none of them can be used.
    """
    root = pathlib.Path(directory)
    inside = directories.studies_in(root)
    if not inside or (root / layout.STUDY).is_file():
        return by_workload(read_study(root))
    studies, beside = _readable(inside)
    if logs := published.read_logs(root):
        studies.append(logs)
    beside += directories.left_out(root)
    beside += cross_checks.copies_across([study.runs for study in studies])
    first, *others = (part for each in distinguished(studies) for part in by_workload(each))
    named = (*beside, *first.problems)
    return dataclasses.replace(first, beside=tuple(beside), problems=named), *others


def _readable(directories: Sequence[pathlib.Path]) -> tuple[list[StudyRuns], list[str]]:
    """Returns the studies that can be read and a sentence for each that cannot. Raises
    NotAStudyError where all of them cannot."""
    studies, problems = [], []
    for path in directories:
        try:
            studies.append(read_study(path))
        except NotAStudyError as error:
            problems.append(f"left out: {path.name}: {error}")
    if not studies:
        raise NotAStudyError("; ".join(problems))
    return studies, problems


def by_workload(study: StudyRuns) -> tuple[StudyRuns, ...]:
    """Returns the study itself where all its runs are of one workload, else one for each, in the
    order of their first runs."""
    names = tuple(dict.fromkeys(run.workload for run in study.runs))
    if len(names) < 2:
        return (study,)
    elsewhere = {problem for run in study.runs for problem in run.problems}
    parts: dict[str, list[str]] = {name: [] for name in names}
    for problem in study.problems:
        if problem not in elsewhere:
            parts[_workload_of(problem, names)].append(problem)
    return tuple(_part(study, name, own) for name, own in parts.items())


def _workload_of(problem: str, names: Sequence[str]) -> str:
    """Returns the workload in whose directory something is wrong, the first for what is in none:
    every problem stands under one table."""
    inside = (rf"/{re.escape(name)}_(jax|pytorch)\b" for name in names)
    found = (name for name, place in zip(names, inside, strict=True) if re.search(place, problem))
    return next(found, names[0])


def _part(study: StudyRuns, workload: str, problems: Sequence[str]) -> StudyRuns:
    """`problems` are those of no trial."""
    runs = tuple(run for run in study.runs if run.workload == workload)
    others = [run for run in study.runs if run.workload != workload]
    elsewhere = {text for run in others for text in (*run.problems, *run.notes)}
    # A metric that was chosen by holds for one workload: the runs' own takes its place.
    chosen = study.selection and {**study.selection, "metric": None}
    return dataclasses.replace(
        study,
        config={**study.config, "workload": workload},
        runs=runs,
        problems=(*problems, *(problem for run in runs for problem in run.problems)),
        notes=tuple(note for note in study.notes if note not in elsewhere),
        selection=chosen,
    )


def distinguished(studies: Iterable[StudyRuns]) -> tuple[StudyRuns, ...]:
    """Returns the studies; those of different directories that share a name have it followed by
    as much of their directories' paths as tells them apart: `tiny (a)` and `tiny (b)`."""
    every = tuple(studies)
    places: dict[str, set[pathlib.Path]] = {}
    for study in every:
        places.setdefault(study.name, set()).add(study.directory.resolve())
    return tuple(
        dataclasses.replace(study, name=f"{study.name} ({_tail(study, places[study.name])})")
        if len(places[study.name]) > 1
        else study
        for study in every
    )


def _tail(study: StudyRuns, places: Collection[pathlib.Path]) -> str:
    """Returns the last parts of the study's path, as many as all `places` need to differ."""
    own = study.directory.resolve()
    counts = range(1, len(own.parts))
    enough = (n for n in counts if len({place.parts[-n:] for place in places}) == len(places))
    count = next(enough, len(own.parts))
    return pathlib.PurePath(*own.parts[-count:]).as_posix()
