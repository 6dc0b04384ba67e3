"""`python -m sweeps export --format=algoperf STUDY_DIR...`: studies as AlgoPerf's logs.

    <out>/<variant>/study_<seed>/<workload>_jax/trial_<point>/
        eval_measurements.csv measurements.csv hparams.json meta_data_<k>.json flags_<k>.json

A submission is a variant, a study a seed, a trial a hyperparameter point. Seeds and points count
from 1, as AlgoPerf's do. An export holds one stage of every study. It is written whole or not at
all, and never into a directory that exists.

AlgoPerf's scoring (scoring/scoring_utils.py) takes every entry of <out> for a submission's
directory, every entry of that for a study's, and every trial_<number> of a workload's for a trial.
It summarises submissions of any number of workloads. A workload that its registry lacks ends it
with KeyError, so studies of such a workload are refused. Its performance profiles need all of its
base workloads (eight, nine since 1.0) and raise KeyError for fewer, also without --strict
(performance_profile.py).

Without JAX; `python -m analysis` reads the result, too.
"""

import os
import pathlib
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

from attention.common import files
from sweeps.records import layout, measurements, status
from workloads import algoperf_specs, catalog

# The workloads of AlgoPerf that a study can have: its own ones, and ours of the same name.
_SCORED = tuple(
    name.removeprefix(algoperf_specs.PREFIX)
    for name in (*catalog.ALGOPERF, *algoperf_specs.REFUSED)
)


class Exported(NamedTuple):
    """An export: its directory, the stage of each study, the number of trials, and those left out
    with the reason."""

    directory: pathlib.Path
    stages: tuple[str, ...]
    trials: int
    left_out: tuple[str, ...]


def export(
    studies: Sequence[pathlib.Path], out: pathlib.Path | None = None, stage: str | None = None
) -> Exported:
    """Writes a stage of each study as AlgoPerf's logs: by default the last one that has begun.

    out: by default `export/algoperf_<stage>` in the first study. Trials that are not done, or have
    no evaluation, are left out by name.

    Raises ValueError for a study whose record is missing or damaged, that has no such stage or no
    trial to export in it, or whose workload AlgoPerf lacks. Raises it, too, if `out` exists and if
    two trials would have one directory.
    """
    stages: list[str] = []
    sources: dict[pathlib.PurePosixPath, tuple[pathlib.Path, dict[str, Any]]] = {}
    left_out: list[str] = []
    for study in studies:
        study_stage, trials = layout.planned_stage(study, layout.study_record(study), stage)
        reasons = _check_trials(study, study_stage, trials)
        targets = {place(trial): trial for trial in trials if trial["path"] not in reasons}
        for target in targets.keys() & sources.keys():
            first = sources[target][0]
            raise ValueError(f"{study} and {first} both have {target}; export them apart")
        sources |= {target: (study, trial) for target, trial in targets.items()}
        stages.append(study_stage)
        left_out += [f"{path}: {reason}" for path, reason in reasons.items()]
    out = out or studies[0] / "export" / f"algoperf_{stages[0]}"
    if os.path.lexists(out):
        raise ValueError(f"--out={out} exists; remove it, or give another --out")
    files.check_output_directory(out, "--out")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        for target, (study, trial) in sources.items():
            _write(study / trial["path"], trial, pathlib.Path(folder, "export", target))
        os.rename(pathlib.Path(folder, "export"), out)
    return Exported(out, tuple(stages), len(sources), tuple(left_out))


def _check_trials(study: pathlib.Path, stage: str, trials: list[dict[str, Any]]) -> dict[str, str]:
    """Returns why trials of a study are left out, by their paths.

    Raises ValueError for a workload that AlgoPerf lacks, and if no trial is left.
    """
    for workload in sorted({_workload(trial) for trial in trials} - set(_SCORED)):
        raise ValueError(
            f"{study} is of {workload}, which AlgoPerf lacks: its scoring would end with KeyError. "
            f"Its workloads: {', '.join(_SCORED)}. The study's own files have AlgoPerf's names and "
            f"columns; read them: python -m analysis table {files.quoted(study)}"
        )
    checked = {
        trial["path"]: _reason_to_leave_out(study / trial["path"], trial["steps"])
        for trial in trials
    }
    reasons = {path: reason for path, reason in checked.items() if reason}
    if len(reasons) == len(trials):
        examples = "; ".join(f"{path}: {reason}" for path, reason in list(reasons.items())[:3])
        raise ValueError(
            f"{study}: stage {stage} has no trial to export ({examples}); run it first"
        )
    return reasons


def _reason_to_leave_out(trial: pathlib.Path, steps: int) -> str | None:
    state = status.read(trial)["state"]
    if state not in ("done", "diverged"):
        return f"it is {state}"
    if not (trial / layout.EVAL_MEASUREMENTS).is_file():
        return f"it is {state} and has no {layout.EVAL_MEASUREMENTS}"
    if state == "done" and not measurements.are_whole(trial, steps):
        return "it is done, and its CSVs are not whole: `python -m sweeps resume` writes them anew"
    return None


def place(trial: dict[str, Any]) -> pathlib.PurePosixPath:
    """Returns a trial's directory in an export, from its line in trials.json."""
    folder = pathlib.PurePosixPath(trial["path"]).parent.name
    return pathlib.PurePosixPath(
        trial["variant"], f"study_{trial['seed'] + 1}", folder, f"trial_{trial['point'] + 1}"
    )


def _workload(trial: dict[str, Any]) -> str:
    return pathlib.PurePosixPath(trial["path"]).parent.name.removesuffix("_jax")


def _write(source: pathlib.Path, trial: dict[str, Any], target: pathlib.Path) -> None:
    target.mkdir(parents=True)
    for pattern in (layout.EVAL_MEASUREMENTS, layout.MEASUREMENTS, "meta_data_*.json"):
        for path in source.glob(pattern):
            shutil.copyfile(path, target / path.name)
    layout.write_json(target / layout.HPARAMS, trial["hyperparameters"])
    for path in source.glob("meta_data_*.json"):
        number = path.stem.rpartition("_")[2]
        # The flags that AlgoPerf's runner would have had, beside the trial's record.
        flags = {
            **(layout.read_json_if_there(source / "flags_0.json") or {}),
            "workload": _workload(trial),
            "framework": "jax",
            "tuning_ruleset": "external",
            "attention": trial["variant"],
            "max_global_steps": trial["steps"],
            "rng_seed": trial["seed"],
            "written_by": "attnperf",
        }
        layout.write_json(target / f"flags_{number}.json", flags)
