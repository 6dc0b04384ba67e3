"""Reads the studies in a directory, ours or published logs, into runs and problems.

Every planned trial becomes a run, and whatever is wrong with it is named in `problems`. A trial
that has ended is a run also if the study no longer plans it: else fewer variants or seeds in a
later `run` would change a verdict.
"""

import collections
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from analysis.load import logs, marin, modded_nanogpt, paper, records, results, trials
from analysis.load.records import VISIBLE, NotAStudyError, Plan, Problem, Run, StudyRuns
from attention.common import files
from sweeps.records import layout, status
from sweeps.study import keys

# What a trial's record has of the settings that results depend on.
SETTINGS = tuple(name for name, key in keys.OWN.items() if key.role is keys.Role.RESULT)
# What shows that a directory is a study or logs; and that trials lie in it or one level below.
STUDY_TRACES = (layout.STUDY, logs.ALGOPERF_TRIALS)
# Takes a path, and whether to check also what no table needs.
Reader = Callable[[pathlib.Path, bool], StudyRuns]
TRACES = (*STUDY_TRACES, *(f"{VISIBLE}/{trace}" for trace in (*STUDY_TRACES, layout.TRIALS)))


def read_study(directory: str | pathlib.Path, whole: bool = False) -> StudyRuns:
    """Returns the study in `directory`: one of FORMATS, AlgoPerf's logs
    (`study_<seed>/<workload>_jax/trial_<n>` in it or one directory further down), or init2winit's
    (`<worker_id>/meta_data.json`, the same).

    Curves stay in their files until they are asked for. What is wrong with eval_measurements.csv
    is found now, with measurements.csv, which no table needs, only where `whole` is True.
    Raises NotAStudyError if there is none of these, or if study.json cannot be used.
    """
    root = pathlib.Path(directory)
    if read := _reader(root):
        return _cross_checked(read(root, whole))
    study = logs.read_logs(root, whole) if root.is_dir() else None
    if study is None:
        wanted = ", ".join((*(name for name, *_ in FORMATS), *logs.PATTERNS))
        raise NotAStudyError(
            f"{root}: no study here; looked for {wanted}. `find DIR -name {layout.STUDY}` lists "
            "the studies below a directory."
        )
    problems = (*study.study_problems, *_left_out(root, study.runs))
    return _cross_checked(dataclasses.replace(study, study_problems=problems))


def read_each(directory: str | pathlib.Path) -> tuple[StudyRuns, ...]:
    """Returns the studies in `directory`, by name, one for each workload that they hold.

    `directory` is a study's, one of logs, or one that holds studies' directories and logs. What
    lies there and cannot be read is in the first study's `problems`, of kind `left out`; studies of
    one name are `distinguished`. Raises NotAStudyError if no study can be read.
    """
    root = pathlib.Path(directory)
    inside = [path for path in sorted(root.glob(VISIBLE)) if path.is_dir() and _reader(path)]
    own = _reader(root)
    # Logs of other trainers are one study in all their folders, but for one among others.
    if not inside or own in (results.read, _read_ours) or {own} == {*map(_reader, inside)}:
        return by_workload(read_study(root))
    studies, problems = [], []
    for path in inside:
        try:
            studies.append(read_study(path))
        except NotAStudyError as error:
            problems.append(Problem("left out", path.name, "", str(error)))
    if not studies:
        raise NotAStudyError("; ".join(problem.text for problem in problems))
    published = logs.read_logs(root)
    if published is not None:
        studies.append(_cross_checked(published))
    problems += _left_out(root, published.runs if published else (), inside)
    first, *others = (part for study in distinguished(studies) for part in by_workload(study))
    return dataclasses.replace(first, study_problems=(*problems, *first.study_problems)), *others


def _left_out(
    root: pathlib.Path, runs: Iterable[Run], studies: Iterable[pathlib.Path] = ()
) -> list[Problem]:
    """Returns a problem for each directory in `root` that holds trials and is not read: neither one
    of the `studies` nor the directory of one of the `runs`, or logs of another name."""
    read = {*studies, *(parent for run in runs for parent in run.path.parents)}
    return [
        Problem("left out", path.name, "", f"it holds trials and is not read; give {path}")
        for path in sorted(root.glob(VISIBLE))
        if path not in read and any(next(path.glob(trace), None) for trace in TRACES)
    ] + logs.misnamed(root)


def _read_ours(root: pathlib.Path, whole: bool) -> StudyRuns:
    problems: list[Problem] = []
    record = _study_record(root / layout.STUDY, problems)
    points = tuple(record.get("points") or ())
    lists = root.glob(f"{VISIBLE}/{layout.TRIALS}")
    stages = tuple(record.get("stages") or sorted(path.parent.name for path in lists))
    planned = {stage: _planned_trials(root, stage, problems) for stage in stages}
    entries = [entry for listed in planned.values() for entry in listed or ()]
    problems += [
        Problem("duplicated", path, "", f"planned {count} times in {layout.TRIALS}, read once")
        for path, count in collections.Counter(entry["path"] for entry in entries).items()
        if count > 1
    ]
    unique = {entry["path"]: entry for entry in entries}
    begun = [stage for stage in stages if planned[stage]]
    directories = [path for stage in begun for path in _trial_directories(root, stage)]
    others = [path for path in directories if path not in unique]
    name = str(record.get("name", root.name))
    planned_like = {path.split("/")[0]: {"study": name} | entry for path, entry in unique.items()}
    ended = {path: entry for path in others if (entry := _ended_trial(root, path))}
    foreign = {
        path: Problem("mismatch", path, layout.TRIAL, text)
        for path, entry in ended.items()
        if (text := _foreign(entry, planned_like.get(path.split("/")[0], {}), points))
    }
    problems += foreign.values()
    ended = {path: entry for path, entry in ended.items() if path not in foreign}
    unread = [path for path in others if path not in ended and path not in foreign]
    listed = [*unique.values(), *ended.values()]
    runs = trials.read_each(
        [(root / entry["path"], entry["path"]) for entry in listed],
        lambda index, files: trials.read_trial(
            listed[index], points, files, whole, is_planned=index < len(unique)
        ),
    )
    table = str(record.get("paper_table") or "")
    if table and table not in paper.TABLES:
        text = f"paper_table is {table!r}, not one of {', '.join(paper.TABLES)}"
        problems.append(Problem("unreadable", "", layout.STUDY, text))
        table = ""
    selection = _selection(root, runs, problems)
    references = records.read_json(root / layout.REFERENCE, "", problems) or {}
    return StudyRuns(
        name=name,
        config=record["config"],
        runs=tuple(runs),
        study_problems=tuple(problems),
        directory=root,
        study_notes=tuple(_notes(root, unread, runs)),
        stages=stages,
        planned=tuple(stage for stage in stages if planned[stage] is not None),
        selection=selection,
        references=references,
        paper_table=table,
        paper_note=str(record.get("paper_note") or ""),
        plans=_plans(record),
    )


def _plans(record: dict[str, Any]) -> tuple[Plan, ...]:
    """Returns what each call of `run` planned. An older study.json records only the last one."""
    recorded = record.get("runs") or [record | {"points": None} | record["config"]]
    known = [{key: x for key, x in plan.items() if x is not None} for plan in recorded]
    return tuple(msgspec.convert(known, list[Plan]))


def _ended_trial(root: pathlib.Path, path: str) -> dict[str, Any] | None:
    """Returns the record of the trial in `path` below `root`, None unless it is whole and the
    trial has ended."""
    if status.seen(root / path)["state"] not in layout.FINISHED:
        return None
    record = records.read_json(root / path / layout.TRIAL, path, []) or {}
    return record | {"path": path} if set(trials.IDENTITY) <= set(record) else None


def _foreign(
    trial: dict[str, Any], planned: dict[str, Any], points: Sequence[dict[str, Any]]
) -> str:
    """Returns how the record of a trial shows that it is of another experiment than a `planned`
    trial of its stage: by the study's name, a setting that results depend on, or other values at
    its point; empty if it does not."""
    of_points = dict(enumerate(points))
    planned = planned | {"hyperparameters": of_points.get(trial["point"])}
    differing = [
        f"{name} is {trial[name]}, and {planned[name]} in this study"
        for name in ("study", "hyperparameters", *SETTINGS)
        if trial.get(name) is not None
        and planned.get(name) is not None
        and trial[name] != planned[name]
    ]
    return f"another experiment's, not read: {differing[0]}" if differing else ""


def _planned_trials(
    root: pathlib.Path, stage: str, problems: list[Problem]
) -> list[dict[str, Any]] | None:
    """Returns the trials that a stage of the study in `root` consists of, None if it has not
    been planned yet. What is damaged, or lost, is named in `problems`."""
    try:
        entries = layout.planned_entries(root, stage)
    except (ValueError, OSError) as error:
        problems.append(Problem("unreadable", stage, layout.TRIALS, str(error)))
        return []
    if entries is None:
        # A stage without its list has not begun, unless trials lie there.
        left = _trial_directories(root, stage)
        if not left:
            return None
        text = f"nothing says which of {len(left)} directories of trials belong to it; none is read"
        problems.append(Problem("missing", stage, layout.TRIALS, text))
        return []
    planned = []
    for number, entry in enumerate(entries):
        place = f"trials[{number}]"
        record = records.usable(
            entry if isinstance(entry, dict) else {},
            records.PLANNED | records.TRIAL,
            stage,
            layout.TRIALS,
            problems,
            f"{place}.",
        )
        absent = [name for name in records.PLANNED if name not in record]
        path = pathlib.PurePosixPath(record.get("path", ".."))
        if not absent and not path.is_absolute() and ".." not in path.parts:
            planned.append(record)
            continue
        text = f"has no usable {', '.join(absent)}" if absent else f"leads out of the study: {path}"
        problems.append(Problem("unreadable", stage, layout.TRIALS, f"{place} {text}"))
    return planned


def _trial_directories(root: pathlib.Path, stage: str) -> list[str]:
    """Returns the trial directories of a stage, relative to `root`."""
    paths = sorted((root / stage).glob(f"{VISIBLE}/{VISIBLE}_jax/trial_*"))
    return [path.relative_to(root).as_posix() for path in paths if path.is_dir()]


def _study_record(path: pathlib.Path, problems: list[Problem]) -> dict[str, Any]:
    """Raises NotAStudyError if study.json is damaged, of another format, or lacks its config."""
    record = records.read_json(path, "", problems)
    if record is None:
        raise NotAStudyError(f"{path}: {problems[-1].text}")
    if record.get("format") != layout.FORMAT:
        raise NotAStudyError(f"{path}: format is {record.get('format')!r}, not {layout.FORMAT!r}")
    if "config" not in record:
        raise NotAStudyError(f"{path}: it has no object 'config'; was it written by hand?")
    return record


def _notes(root: pathlib.Path, unread: Iterable[str], runs: Sequence[Run]) -> Iterator[Problem]:
    """Yields a note for each trial directory that is not read, and one with the command that
    writes cut records anew."""
    for name in unread:
        yield Problem("note", name, "", "not planned now and not ended, not read")
    cut = sum(run.state == "done" and run.ends_early for run in runs)
    if cut:
        command = f"`python -m sweeps resume {files.quoted(root)}` writes them anew"
        text = f"trials that are done with incomplete records: {cut}; {command}"
        yield Problem("note", "", "", text)


def _selection(
    root: pathlib.Path, runs: Sequence[Run], problems: list[Problem]
) -> dict[str, Any] | None:
    """Returns the selection of the study in `root`, None if nothing was chosen yet or the file
    cannot be used. `problems` gains what is damaged, and each chosen point without a trial."""
    record = records.read_json(root / layout.SELECTION, "", problems)
    if record is None or record.get("points") is None:
        return None
    planned = {(run.stage, run.variant, run.point) for run in runs}
    for stage, variant in dict.fromkeys((run.stage, run.variant) for run in runs):
        point = record["points"].get(variant)
        if point is not None and (stage, variant, point) not in planned:
            text = f"point {point} of {variant} has no trial in {stage}"
            problems.append(Problem("missing", "", layout.SELECTION, text))
    return record


def _cross_checked(study: StudyRuns) -> StudyRuns:
    """Returns the study with what its trials say against one another: a column of the metric that
    other trials of a variant have, two trials of one variant, point and seed."""
    columns: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    for run in study.runs:
        columns[run.workload, run.variant].update(run.evals)
    first: dict[tuple, Run] = {}
    runs, problems = [], list(study.study_problems)
    for run in study.runs:
        earlier = first.setdefault((run.stage, run.workload, run.variant, run.point, run.seed), run)
        if earlier is not run:
            text = f"{run.variant}, point {run.point}, seed {run.seed} is {earlier.name}, too"
            problems.append(Problem("duplicated", run.name, "", f"{text}; the first counts"))
        wanted = [f"{split}/{run.metric}" for split in layout.SPLITS if run.evals]
        absent = [
            Problem("missing", run.name, "", f"no column {name}")
            for name in wanted
            if name in columns[run.workload, run.variant] and name not in run.evals
        ]
        runs.append(dataclasses.replace(run, problems=(*run.problems, *absent)))
    return dataclasses.replace(study, runs=tuple(runs), study_problems=tuple(problems))


def by_workload(study: StudyRuns) -> tuple[StudyRuns, ...]:
    """Returns the study itself where all its runs are of one workload, else one for each, in the
    order of their first runs. A problem of no run belongs to the workload whose directory it
    names, else to the first."""
    workloads = tuple(dict.fromkeys(run.workload for run in study.runs))
    if len(workloads) < 2:
        return (study,)
    folders = {
        f"{workload.rpartition(':')[2]}_{framework}": workload
        for workload in workloads
        for framework in logs.FRAMEWORKS
    }
    problems = collections.defaultdict(list)
    for problem in study.study_problems:
        named = (folders[part] for part in problem.trial.split("/") if part in folders)
        problems[next(named, workloads[0])].append(problem)
    trained = {(run.workload, run.variant) for run in study.runs}
    # The metric of selection.json is that of one workload; runs know theirs.
    selection = study.selection and {**study.selection, "metric": None}
    return tuple(
        dataclasses.replace(
            study,
            config={**study.config, "workload": workload},
            runs=tuple(run for run in study.runs if run.workload == workload),
            study_problems=tuple(problems[workload]),
            selection=selection,
            plans=tuple(
                dataclasses.replace(
                    plan,
                    variants=tuple(name for name in plan.variants if (workload, name) in trained),
                )
                for plan in study.plans
            ),
        )
        for workload in workloads
    )


def distinguished(studies: Iterable[StudyRuns]) -> tuple[StudyRuns, ...]:
    """Returns the studies; those that share a name have the directory behind it, as it was given:
    `tiny (a)` and `tiny (b)`. Raises ValueError if one is there twice."""
    studies = tuple(studies)
    places = collections.Counter((study.directory.resolve(), study.workload) for study in studies)
    for (directory, _), count in places.items():
        if count > 1:
            raise ValueError(f"{directory} is given {count} times; give it once")
    named = {(study.directory.resolve(), study.name) for study in studies}
    shared = collections.Counter(name for _, name in named)
    return tuple(
        dataclasses.replace(study, name=f"{study.name} ({study.directory})")
        if shared[study.name] > 1
        else study
        for study in studies
    )


def _reader(path: pathlib.Path) -> Reader | None:
    """Returns what reads `path`, None if it is of none of FORMATS."""
    return next((read for _, finds, read in FORMATS if finds(path)), None)


# What is looked for, what tells by a value that is not false whether a path is or holds it, and its
# reader. The first that a path has counts.
FORMATS: tuple[tuple[str, Callable[[pathlib.Path], object], Reader], ...] = (
    ("a results file (.csv, .jsonl)", results.find, results.read),
    (layout.STUDY, lambda path: (path / layout.STUDY).is_file(), _read_ours),
    ("modded-nanogpt's logs", modded_nanogpt.find, modded_nanogpt.read),
    (f"marin's {marin.FILE}", marin.find, marin.read),
)
