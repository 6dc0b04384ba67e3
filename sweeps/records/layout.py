"""The study's directory on disk: names of files, columns, states. Standard library only.

`sweeps` writes this format and `analysis` reads it, so both import this module and neither has
a second opinion. AlgoPerf's file names and columns are kept (algoperf/logger_utils.py), so that
its own tools read our trials::

    <experiment_dir>/<study>/study.json           resolved config, points, versions, git commit
    <experiment_dir>/<study>/lock/                who changes the plan: study.json, *.json
    <experiment_dir>/<study>/selection.json       points chosen by validation, per variant
    <experiment_dir>/<study>/reference.json       reference rows of embedded data (1-NN ...)
    <experiment_dir>/<study>/<stage>/trials.json  every trial the stage consists of
    <experiment_dir>/<study>/<stage>/<variant>/<workload>_jax/trial_<n>/
        trial.json hparams.json meta_data_<k>.json flags_<k>.json
        eval_measurements.csv measurements.csv answers.npz diagnostics.jsonl status.json
        attempts/<k>/  lease.json heartbeat measurements.jsonl log.txt
        checkpoints/
        tensorboard/ profile/     where a study asks for them
        downstream/<step>/<suite>/results.json samples.jsonl.gz   what the model can do, where asked
            tasks/<task>.jsonl.gz     of each finished task, until results.json is written
            evaluation.json status.json attempts/<k>/    as a trial's: who evaluates, how far it is
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
from typing import Any

from attention.common import files
from attention.common.files import temporary as temporary
from attention.common.files import write as write_atomically

STUDY, TRIALS, LOCK = "study.json", "trials.json", "lock"
SELECTION, REFERENCE = "selection.json", "reference.json"
TRIAL, HPARAMS, STATUS = "trial.json", "hparams.json", "status.json"
EVAL_MEASUREMENTS, MEASUREMENTS = "eval_measurements.csv", "measurements.csv"
# A first line of what the rows have in common, then one line per recorded step and attention
# layer (sweeps/records/measurements.py); only of trials that were told to record.
DIAGNOSTICS = "diagnostics.jsonl"
DIAGNOSTICS_FORMAT = "attnperf-diagnostics-1"
ATTEMPTS, CHECKPOINTS = "attempts", "checkpoints"
# In a checkpoint, where orbax keeps the item `progress`: plain JSON.
CHECKPOINT_RECORD = "progress/metadata"
TENSORBOARD, PROFILE = "tensorboard", "profile"
FORMAT = "attnperf-study-1"
DOWNSTREAM, SAMPLES, RESULTS = "downstream", "samples.jsonl.gz", "results.json"
DOWNSTREAM_TASKS = "tasks"
DOWNSTREAM_FORMAT = "attnperf downstream 1"

# Longer than any file takes to be written.
LEFT_OVER_S = 3600.0
_STUDY_RECORD = {
    "name": str,
    "config": dict,
    "points": list,
    "stages": list,
    "runs": list | None,
    "starts": list | None,
}
_PLANNED = {"path": str, "variant": str, "steps": int, "point": int, "seed": int}
# What reading a file raises where it is not there.
ABSENT = (FileNotFoundError, NotADirectoryError)

# A trial's states; `pending` is also the state of a trial that has no status.json yet.
STATES = ("pending", "running", "done", "diverged", "failed")
LOST = ("diverged", "failed")  # ended without a number that counts
FINISHED = ("done", *LOST)

SPLITS = ("train", "validation", "test")
TIME_COLUMNS = (
    "score",
    "total_duration",
    "accumulated_submission_time",
    "accumulated_eval_time",
    "accumulated_logging_time",
)

# Seeds share a point's thousand: trial_3002 is point 3, seed 1. Neither more points nor more
# seeds ever move a trial to another directory.
SEEDS_PER_POINT = 1000


def trial_path(stage: str, variant: str, workload: str, point: int, seed: int) -> str:
    """Returns a trial's directory relative to its study's directory. Point and seed count from 0.

    AlgoPerf's own workloads, 'algoperf:<name>', have directories by its names: what lies there is
    read by its scoring, and ':' is no character for a path. Raises ValueError if point and seed
    have no directory of their own.
    """
    if point < 0 or not 0 <= seed < SEEDS_PER_POINT:
        raise ValueError(
            f"point {point}, seed {seed}: points count from 0 and seeds run from 0 to "
            f"{SEEDS_PER_POINT - 1}"
        )
    folder, number = f"{workload.rpartition(':')[2]}_jax", point * SEEDS_PER_POINT + seed + 1
    return f"{stage}/{variant}/{folder}/trial_{number}"


def checkpoint_steps(trial_directory: str | os.PathLike[str]) -> list[int]:
    """Returns the steps at which a trial has a whole checkpoint, in order."""
    return numbered(pathlib.Path(trial_directory) / CHECKPOINTS)


def numbered(folder: str | os.PathLike[str]) -> list[int]:
    """Returns the numbers that entries of a folder have as names, in order; [] without a folder."""
    try:
        names = os.listdir(folder)
    except ABSENT:
        return []
    return sorted(int(name) for name in names if name.isdigit())


def downstream_path(step: int, suite: str) -> str:
    """Returns where what a suite says of a checkpoint lies, relative to its trial's directory."""
    return f"{DOWNSTREAM}/{step}/{suite}"


def remove_left_overs(folder: pathlib.Path, now: float) -> None:
    """Removes what writers that were killed over an hour ago have left in a folder.

    now: the file server's clock. What cannot be removed stays.
    """
    for path in folder.glob(f".*{files.SUFFIX}"):
        with contextlib.suppress(OSError):
            if now - path.stat().st_mtime < LEFT_OVER_S:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def write_json(path: str | os.PathLike[str], record: Any) -> None:
    """Writes `record` as indented JSON, atomically."""
    write_atomically(path, json.dumps(record, indent=2, sort_keys=False) + "\n")


def digest(record: Any) -> str:
    """Returns the SHA-256 of a record as JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def read_json(path: str | os.PathLike[str]) -> Any:
    """Returns the JSON in `path`. Raises ValueError naming the file where it is not JSON, or is a
    folder."""
    try:
        return files.loads(pathlib.Path(path).read_bytes())  # with or without a byte order mark
    except IsADirectoryError as error:
        raise ValueError(f"{path} is a folder, not a file") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: not valid JSON ({error}); was it cut short, or edited?"
        ) from error


def read_json_if_there(path: str | os.PathLike[str]) -> Any | None:
    """Returns the JSON in `path`, or None if there is no such file."""
    try:
        return read_json(path)
    except ABSENT:
        return None


def record(path: str | os.PathLike[str], **types: Any) -> dict[str, Any]:
    """Returns the JSON object in `path`, whose values have the `types` given for their keys.

    A key may be absent where its type allows None.

    Raises ValueError, naming the file and what it lacks, for any other content; FileNotFoundError
    where there is no file.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it holds no JSON object")
    for key, kind in types.items():
        if not isinstance(content.get(key), kind):
            name = getattr(kind, "__name__", str(kind))
            raise ValueError(f"{path} is damaged: {key} is {content.get(key)!r:.80}, not {name}")
    return content


def read_record(path: str | os.PathLike[str], **types: Any) -> dict[str, Any]:
    """Returns the JSON object in `path` as `record` does, {} where there is none or it is
    damaged."""
    try:
        return record(path, **types)
    except (*ABSENT, ValueError):
        return {}


def study_record(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns study.json of a study's directory.

    Raises ValueError if there is none, or it is not a study's record.
    """
    path = pathlib.Path(directory) / STUDY
    try:
        content = record(path, **_STUDY_RECORD)
    except ABSENT:
        raise ValueError(f"{directory} is no study: it has no {STUDY}") from None
    for key, kind in (("stages", str), ("runs", dict), ("starts", dict)):
        if not all(isinstance(item, kind) for item in content.get(key) or ()):
            raise ValueError(
                f"{path} is damaged: {key} is {content[key]!r:.80}, not a list of {kind.__name__}"
            )
    return content


def planned(
    directory: str | os.PathLike[str], stage: str, *needed: str
) -> list[dict[str, Any]] | None:
    """Returns the trials of a stage's trials.json, None if the stage has not begun.

    Each has its path, and the keys that are `needed`, of _PLANNED. Raises ValueError if the file
    is damaged.
    """
    trials = planned_entries(directory, stage)
    types = {key: _PLANNED[key] for key in ("path", *needed)}
    for row in trials or ():
        values = row if isinstance(row, dict) else {}
        if wrong := [key for key, kind in types.items() if not isinstance(values.get(key), kind)]:
            raise ValueError(
                f"{pathlib.Path(directory) / stage / TRIALS} is damaged: a trial's {wrong[0]} is "
                f"{values.get(wrong[0])!r:.80}; {_written_again(directory)}"
            )
    return trials


def planned_entries(directory: str | os.PathLike[str], stage: str) -> list[Any] | None:
    """Returns what `planned` does, its entries as they stand, for who names each damaged one.

    Raises ValueError if the file holds no list of them.
    """
    try:
        trials: list[Any] = record(pathlib.Path(directory) / stage / TRIALS, trials=list)["trials"]
    except ABSENT:
        return None
    except ValueError as error:
        raise ValueError(f"{error}; {_written_again(directory)}") from None
    return trials


def planned_stage(
    directory: str | os.PathLike[str], record: dict[str, Any], wanted: str | None = None
) -> tuple[str, list[dict[str, Any]]]:
    """Returns a stage and its trials, as `planned` does; by default the last one that has begun,
    which results are read from.

    record: study.json. Raises ValueError if the study has no such stage, or no trials in it.
    """
    stages = record["stages"]
    if wanted is not None and wanted not in stages:
        raise ValueError(f"no stage {wanted!r} in {record['name']}; it has {', '.join(stages)}")
    for stage in reversed(stages) if wanted is None else [wanted]:
        listed = planned(directory, stage)
        if listed is not None:
            return stage, listed
    where = f"stage {wanted} of {directory}" if wanted else str(directory)
    raise ValueError(
        f"{where} has no trials yet; run it: python -m sweeps resume {files.quoted(directory)}"
    )


def study_of(directory: pathlib.Path) -> pathlib.Path:
    """Returns the study's directory that a trial's lies in, or that of an evaluation of it.

    No file is looked at: a heartbeat asks for it while the file server is away.
    """
    # <study>/<stage>/<variant>/<workload>_jax/trial_<n>[/downstream/<step>/<suite>]
    return directory.parents[6 if is_evaluation(directory) else 3]


def is_evaluation(directory: pathlib.Path) -> bool:
    """Whether a directory is that of an evaluation, TRIAL/downstream/<step>/<suite>."""
    return directory.parents[1].name == DOWNSTREAM


def finished_tasks(directory: pathlib.Path) -> int:
    """Returns how many tasks of an evaluation without results are on disk."""
    return len(list((directory / DOWNSTREAM_TASKS).glob("[!.]*.jsonl.gz")))


def _written_again(directory: str | os.PathLike[str]) -> str:
    return f"`python -m sweeps resume {files.quoted(directory)}` writes it again"
