"""Every study of a directory, each with one workload: what `table` and `plots` take in turn."""

import dataclasses
import pathlib
import re
from collections.abc import Sequence

from analysis.files.records import Study
from analysis.reading import duplicates, neighbours, published
from analysis.reading.runs import NotAStudyError, read_study
from analysis.reading.study_names import distinguished
from sweeps.records import layout


def read_each(directory: str | pathlib.Path) -> tuple[Study, ...]:
    """Returns the studies in `directory`, by name, one for each workload that they hold.

    `directory` is a study's, one of AlgoPerf's logs, or one that holds studies' directories and
    logs. What lies there and cannot be read is named in the first study's `problems`, and in its
    `beside`; studies of one name are `distinguished`. Raises NotAStudyError where there is none, or
    where none of them can be used.
    """
    root = pathlib.Path(directory)
    inside = neighbours.ours(root)
    if not inside or (root / layout.STUDY).is_file():
        return by_workload(read_study(root))
    studies, beside = _readable(inside)
    if logs := published.read_logs(root):
        studies.append(logs)
    beside += neighbours.strays(root)
    beside += duplicates.across([study.runs for study in studies])
    first, *others = (part for each in distinguished(studies) for part in by_workload(each))
    named = (*beside, *first.problems)
    return dataclasses.replace(first, beside=tuple(beside), problems=named), *others


def _readable(directories: Sequence[pathlib.Path]) -> tuple[list[Study], list[str]]:
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


def by_workload(study: Study) -> tuple[Study, ...]:
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


def _part(study: Study, workload: str, problems: Sequence[str]) -> Study:
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
