"""`python -m sweeps export --format=algoperf STUDY_DIR`: a study as AlgoPerf's logs.

    <out>/<variant>/study_<seed>/<workload>_jax/trial_<point>/
        eval_measurements.csv measurements.csv hparams.json meta_data_<k>.json flags_<k>.json

A submission is a variant, a study a seed, a trial a hyperparameter point, seeds and points counted
from 1 as AlgoPerf's are. An export is of one stage; several, of other workloads or variants, may
share <out>. AlgoPerf's scoring (scoring/scoring_utils.py) takes everything in <out> for a
submission's directory, everything in that for a study's, and everything called trial_<number> in
a workload's for a trial: so the mark by which an export is known lies in the workloads'
directories. It writes a summary of every submission for any number of workloads, all of which its
registry must know: one that it lacks ends it with KeyError (scoring_utils.py), so that such
studies are not exported. Its performance profiles are of all its base workloads (eight, nine since
1.0) and raise KeyError for fewer, also without --strict (performance_profile.py).

Without JAX; `python -m analysis` reads the result, too.
"""

import pathlib
import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple

from attention import files
from sweeps.records import layout, measurements, status
from workloads import algoperf_specs, catalog
from workloads.storage import preparation

MARK = "attnperf_export.json"
# The workloads of AlgoPerf that a study can have: its own ones, and ours of the same name.
_SCORED = tuple(
    name.removeprefix(algoperf_specs.PREFIX)
    for name in (*catalog.ALGOPERF, *algoperf_specs.REFUSED)
)


class Exported(NamedTuple):
    """What an export wrote: its directory, the stage and the number of trials in it, and those
    left out with the reason."""

    directory: pathlib.Path
    stage: str
    trials: int
    left_out: tuple[str, ...]


def export(
    study: pathlib.Path, out: pathlib.Path | None = None, stage: str | None = None
) -> Exported:
    """Writes a stage of a study as AlgoPerf's logs: by default the last one that has begun.

    out: by default `<study>/export/algoperf_<stage>`. Repeating it brings the export up to date;
    files that no export of this study's stage wrote are never replaced, and exports of others
    stay. Trials that are not done, or have no evaluation, are left out by name.

    Raises ValueError where `study` is no study, has no such stage or nothing to export in it, or
    is of a workload that AlgoPerf lacks, where `out` holds what is no export or an export of such
    a workload, and where that of another study or stage is in the way.
    """
    record = layout.study_record(study)
    stage, trials = layout.planned_stage(study, record, stage)
    for folder in sorted({place(trial).parts[2] for trial in trials}):
        if not _is_scored(folder):
            raise ValueError(
                f"{study} is of {folder.removesuffix('_jax')}, which AlgoPerf lacks: its scoring "
                f"would end with KeyError. Its workloads: {', '.join(_SCORED)}. The study's own "
                f"files have AlgoPerf's names and columns; read them: python -m analysis table "
                f"{files.quoted(study)}"
            )
    out = out or study / "export" / f"algoperf_{stage}"
    files.check_output_directory(out, "--out")
    where = str(study.resolve())  # studies of several directories may have one name
    mark = {"format": "algoperf", "study": record["name"], "directory": where, "stage": stage}
    _check_free(out, {out / place(trial).parent for trial in trials}, mark)
    done, left_out = [], []
    for trial in trials:
        reason = _reason_to_leave_out(study / trial["path"], trial["steps"])
        if reason:
            left_out.append(f"{trial['path']}: {reason}")
        else:
            done.append(trial)
    if not done:
        reasons = "; ".join(left_out[:3])
        raise ValueError(f"{study}: stage {stage} has no trial to export ({reasons}); run it first")
    written = {_write(study, out, trial, mark) for trial in done}
    _remove_others(out, written, mark)
    return Exported(out, stage, len(done), tuple(left_out))


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


def _is_scored(folder: str) -> bool:
    """Whether AlgoPerf's registry has the workload of a folder `<workload>_jax`."""
    return folder.removesuffix("_jax") in _SCORED


def _marked(out: pathlib.Path) -> Iterator[tuple[pathlib.Path, dict[str, Any]]]:
    """Yields the workloads' directories of exports with their marks.

    Empty directories are passed over: an export that was killed may have made them. Raises
    ValueError for what is no export's.
    """
    level = [out]
    for _ in range(3):
        level = [inside for folder in level for inside in _inside(out, folder)]
    for folder in level:
        mark = layout.read_json_if_there(folder / MARK)
        if isinstance(mark, dict) and "study" in mark:
            yield folder, mark
        elif mark is not None:
            raise ValueError(f"{folder / MARK} is damaged: it has no study")
        elif _inside(out, folder):
            raise ValueError(_not_ours(out, folder))


def _inside(out: pathlib.Path, folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns what is in a folder, but for hidden files: of systems, and of killed writers."""
    if not folder.is_dir():
        raise ValueError(_not_ours(out, folder))
    return preparation.visible(folder)


def _check_free(out: pathlib.Path, needed: set[pathlib.Path], wanted: dict[str, Any]) -> None:
    """Raises ValueError unless `out` is absent or holds exports alone, where needed this one."""
    if not out.exists():
        return
    for folder, mark in _marked(out):
        if not _is_scored(folder.name):
            raise ValueError(
                f"--out={out} holds {folder.relative_to(out)}, an earlier export of a workload "
                "that AlgoPerf lacks, at which its scoring would end with KeyError; remove it, or "
                "give another --out"
            )
        if folder in needed and not _is_of(mark, wanted):
            raise ValueError(
                f"{folder} is an export of study {mark['study']!r} in {mark.get('directory')}, "
                f"stage {mark.get('stage')!r}; give another --out"
            )


def _is_of(mark: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(mark.get(key) == value for key, value in wanted.items())


def _not_ours(out: pathlib.Path, path: pathlib.Path) -> str:
    return f"--out={out} holds {path.relative_to(out)}, which no export wrote; give another --out"


def _write(
    study: pathlib.Path, out: pathlib.Path, trial: dict[str, Any], mark: dict[str, Any]
) -> pathlib.Path:
    """Writes one trial; returns its directory."""
    target, source = out / place(trial), study / trial["path"]
    target.parent.mkdir(parents=True, exist_ok=True)
    # First: an export without its mark is nobody's.
    layout.write_json(target.parent / MARK, {**mark, "seed": trial["seed"]})
    target.mkdir(exist_ok=True)
    names = (layout.EVAL_MEASUREMENTS, layout.MEASUREMENTS)
    measured = [source / name for name in names if (source / name).is_file()]
    for path in (*measured, *source.glob("meta_data_*.json")):
        layout.write_atomically(target / path.name, path.read_text("utf-8"))
    layout.write_json(target / layout.HPARAMS, trial["hyperparameters"])
    for path in source.glob("meta_data_*.json"):
        number = path.stem.rpartition("_")[2]
        layout.write_json(target / f"flags_{number}.json", _flags(source, trial))
    return target


def _flags(source: pathlib.Path, trial: dict[str, Any]) -> dict[str, Any]:
    """Returns what AlgoPerf's runner would have been told, beside the trial's own record."""
    return {
        **(layout.read_json_if_there(source / "flags_0.json") or {}),
        "workload": pathlib.PurePosixPath(trial["path"]).parent.name.removesuffix("_jax"),
        "framework": "jax",
        "tuning_ruleset": "external",
        "attention": trial["variant"],
        "max_global_steps": trial["steps"],
        "rng_seed": trial["seed"],
        "written_by": "attnperf",
    }


def _remove_others(out: pathlib.Path, written: set[pathlib.Path], wanted: dict[str, Any]) -> None:
    """Removes trials of an earlier export that are no more: a selection that changed."""
    for folder, mark in list(_marked(out)):
        for trial in sorted(folder.glob("trial_*")) if _is_of(mark, wanted) else ():
            if trial not in written:
                shutil.rmtree(trial)
