"""Reads AlgoPerf's published logs: `study_<seed>/<workload>_jax/trial_<n>/eval_measurements.csv`.

They have no study.json: a submission's directory takes the variant's place, the study's number
the seed's, and the trial's number the hyperparameter point's.
"""

import pathlib
import re

from analysis import metrics
from analysis.records import Run, Study
from analysis.trials import NOTHING, TrialFiles
from sweeps import layout

PATTERN = "study_<seed>/<workload>_<framework>/trial_<n>"
STAGE = "published"
STUDY_NAME = re.compile(r"study_(\d+)")
WORKLOAD_NAME = re.compile(r"(.+)_(?:jax|pytorch)")
TRIAL_NAME = re.compile(r"trial_(\d+)")


def read_logs(root: pathlib.Path) -> Study | None:
    """Returns the logs in `root` (one submission, or a directory of submissions) as a study, or
    None where there are none. Nothing there says how many trials were meant to be, so only what
    is on disk is judged; a trial is taken as done, as published logs carry no state."""
    if not root.is_dir():
        return None
    inside = [path for path in sorted(root.iterdir()) if path.is_dir()]
    submissions = [path for path in (root, *inside) if _numbered(path, STUDY_NAME)]
    runs = tuple(run for submission in submissions for run in _submission(root, submission))
    if not runs:
        return None
    return Study(
        name=root.resolve().name,
        config={},
        runs=runs,
        problems=tuple(problem for run in runs for problem in run.problems),
        directory=root,
        notes=tuple(note for run in runs for note in run.notes),
        stages=(STAGE,),
        planned=(STAGE,),
        published=True,
        shares_seeds=False,
    )


def _numbered(directory: pathlib.Path, name: re.Pattern[str]) -> list[tuple[str, pathlib.Path]]:
    """Returns (the name's captured part, path) of the directories that match, in number order."""
    matches = ((name.fullmatch(path.name), path) for path in directory.iterdir() if path.is_dir())
    found = [(match[1], path) for match, path in matches if match]
    return sorted(found, key=lambda item: (len(item[0]), item[0]))


def _submission(root: pathlib.Path, submission: pathlib.Path) -> list[Run]:
    return [
        _run(root, submission.resolve().name, workload, int(seed), int(trial), path)
        for seed, study in _numbered(submission, STUDY_NAME)
        for workload, below in _numbered(study, WORKLOAD_NAME)
        for trial, path in _numbered(below, TRIAL_NAME)
    ]


def _run(
    root: pathlib.Path, variant: str, workload: str, seed: int, point: int, path: pathlib.Path
) -> Run:
    files = TrialFiles(path, path.relative_to(root).as_posix(), [])
    evals = files.measurements(layout.EVAL_MEASUREMENTS)
    trains = files.measurements(layout.MEASUREMENTS) or NOTHING
    hyperparameters = files.json(layout.HPARAMS)
    if evals is None:
        files.problems.append(f"missing: {files.name}: no {layout.EVAL_MEASUREMENTS}")
    columns = (evals or NOTHING).columns
    return Run(
        workload=workload,
        variant=variant,
        stage=STAGE,
        point=point,
        seed=seed,
        path=path,
        name=files.name,
        state="done" if evals else "pending",
        metric=metrics.target(columns),
        hyperparameters=hyperparameters,
        evals=columns,
        trains=trains.columns,
        problems=tuple(files.problems),
        notes=tuple(f"{files.name}: {note}" for note in (evals or NOTHING).notes),
    )
