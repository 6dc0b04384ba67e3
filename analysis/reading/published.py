"""Reads AlgoPerf's published logs: `study_<k>/<workload>_<framework>/trial_<n>/`.

They have no study.json: a submission's directory takes the variant's place where its trials record
none (`recorded_variants`), the study's number the seed's, and the trial's number the hyperparameter
point's. Their seeds are drawn at random for each trial (`rng_seed` of flags_0.json), so that trials
of one study are no pairs.
"""

import collections
import functools
import pathlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from analysis.files import pool
from analysis.files.records import Study
from analysis.reading import absent_columns, duplicates, endings, recorded_variants
from analysis.reading.published_trials import Place, read_trials
from sweeps.records import layout

PATTERN = "study_<seed>/<workload>_<framework>/trial_<n>"
STAGE = "published"
STUDY_NAME = re.compile(r"study_(\d+)")
WORKLOAD_NAME = re.compile(r"(.+)_(jax|pytorch)")
TRIAL_NAME = re.compile(r"trial_(\d+)")


class Entry(NamedTuple):
    """A directory whose name fits a pattern, and the parts of the name."""

    parts: tuple[str, ...]
    path: pathlib.Path


@dataclass(frozen=True)
class Found:
    """The trials of a submission, and what fits nowhere."""

    places: list[Place]
    problems: list[str]


def read_logs(root: pathlib.Path, whole: bool = False) -> Study | None:
    """Returns the logs in `root` (one submission, or a directory of submissions) as a study, or
    None where there are none. `whole` also checks every measurements.csv. Our own studies beside
    them are left alone.

    Nothing there says how many trials were meant to be: a trial is missing where other studies of
    its submission have it. It is taken as done where it left evaluations, as logs carry no state,
    unless it ended long before it was meant to (`endings`).
    """
    if not root.is_dir():
        return None
    inside = [path for path in sorted(root.iterdir()) if path.is_dir()]
    found = [_submission(root, path) for path in (root, *inside) if fitting(path, STUDY_NAME)]
    places = [place for each in found for place in each.places]
    read = pool.in_chunks(functools.partial(read_trials, whole=whole), places)
    if not read:
        return None
    folders = {place.path: place.variant for place in places}
    runs, contradictions = recorded_variants.named(
        absent_columns.named(endings.judged(read)), folders
    )
    problems = [*contradictions, *(problem for each in found for problem in each.problems)]
    problems += duplicates.problems(runs)
    return Study(
        name=root.resolve().name,
        config={},
        runs=runs,
        problems=(*problems, *(problem for run in runs for problem in run.problems)),
        directory=root,
        notes=tuple(note for run in runs for note in run.notes),
        stages=(STAGE,),
        planned=(STAGE,),
        published=True,
        shares_seeds=False,
    )


def fitting(directory: pathlib.Path, name: re.Pattern[str]) -> list[Entry]:
    """Returns the directories in `directory` whose names match, in the order of their numbers."""
    matches = ((name.fullmatch(path.name), path) for path in directory.iterdir() if path.is_dir())
    found = [Entry(match.groups(), path) for match, path in matches if match]
    return sorted(found, key=lambda entry: (len(entry.parts[0]), entry.parts))


def _submission(root: pathlib.Path, submission: pathlib.Path) -> Found:
    every = fitting(submission, STUDY_NAME)
    # One of ours may be called `study_1`, too.
    studies = [entry for entry in every if not (entry.path / layout.STUDY).is_file()]
    trials = [
        (study, workload, trial)
        for study in studies
        for workload in fitting(study.path, WORKLOAD_NAME)
        for trial in fitting(workload.path, TRIAL_NAME)
    ]
    frameworks = collections.defaultdict(set)
    for _, workload, _ in trials:
        frameworks[workload.parts[0]].add(workload.parts[1])
    name = submission.resolve().name
    places = [
        Place(
            root=root,
            path=trial.path,
            # A submission that has one workload in both frameworks has two results on it.
            variant=f"{name} ({workload.parts[1]})"
            if len(frameworks[workload.parts[0]]) > 1
            else name,
            workload=workload.parts[0],
            seed=int(study.parts[0]),
            point=int(trial.parts[0]),
            stage=STAGE,
        )
        for study, workload, trial in trials
    ]
    return Found(places, [*_misfits(root, studies), *_missing(root, places)])


def _misfits(root: pathlib.Path, studies: Iterable[Entry]) -> Iterable[str]:
    """Names directories that hold no trials where trials were looked for."""
    for study in studies:
        workloads = fitting(study.path, WORKLOAD_NAME)
        known = {entry.path for entry in workloads}
        for path in sorted(path for path in study.path.iterdir() if path.is_dir()):
            name = path.relative_to(root).as_posix()
            if path not in known:
                yield f"unknown format: {name}: not <workload>_jax or _pytorch, left out"
            elif not fitting(path, TRIAL_NAME):
                yield f"missing: {name}: no trial_<n> in it"


def _missing(root: pathlib.Path, places: list[Place]) -> Iterable[str]:
    """Names trials that other studies of the submission have on the same workload."""
    numbers = collections.defaultdict(set)
    for place in places:
        numbers[place.variant, place.workload].add(place.point)
    present = {place.path for place in places}
    for directory, place in {place.path.parent: place for place in places}.items():
        for number in sorted(numbers[place.variant, place.workload]):
            if directory / f"trial_{number}" not in present:
                name = (directory / f"trial_{number}").relative_to(root).as_posix()
                yield f"missing: {name}: other studies of {place.variant} have this trial"
