"""A study's directory: made, checked to be this study's, filled with the records of its trials.

study.json, selection.json and the lists of trials are the study's plan. One driver at a time
changes it, under `locked`.
"""

import contextlib
import dataclasses
import datetime
import errno
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from attention.common import files
from sweeps.launchers.config_keys import PATH, Role
from sweeps.records import clock, layout, lease, outages, provenance, stages, status, submissions
from sweeps.study import config, keys, selection
from sweeps.study.study import Study
from sweeps.study.trial import CHANGEABLE, Trial, from_record
from workloads import catalog

# Between two attempts to get the lock of a plan.
_LOCK_POLL_S = 0.5
# Trials that are planned between two heartbeats of the lock.
_BEAT_EVERY = 100
# Roles of the keys that trials.json and trial.json depend on, and may change; of TABLE: seeds.
_PLAN_ROLES = (Role.EXTENT, Role.ROUNDING, Role.OBSERVATION)


@contextlib.contextmanager
def locked(
    directory: pathlib.Path, check_stop: Callable[[], None] = lambda: None
) -> Iterator[lease.Attempt]:
    """Holds the lock of a study's plan, which is a lease: `beat` renews it.

    While another driver holds the lock, a warning names that driver. `check_stop` is called at each
    look at the lock; what it raises ends the wait.

    It works on file systems without locks of their own. The lock of a driver that was killed is
    taken over, at once on its own host and after `lease.EXPIRES_AFTER_S` on others. Raises OSError
    EAGAIN where another driver took it over from this one, which must plan again.
    """
    named: dict[str, Any] = {}
    while (lock := lease.claim(directory / layout.LOCK)) is None:
        check_stop()
        holder = lease.unended(lease.last(directory / layout.LOCK))
        if holder not in ({}, named):
            named = holder
            config.warn(
                f"{directory}: process {holder['pid']} of host {holder['host']} changes the "
                "study's plan; this driver waits for it"
            )
        clock.clock.sleep(_LOCK_POLL_S)
    for number in layout.numbered(lock.directory.parent)[:-1]:
        shutil.rmtree(lock.directory.with_name(str(number)), ignore_errors=True)
    try:
        yield lock
    except lease.LostError as error:
        raise OSError(errno.EAGAIN, str(error)) from error
    finally:
        with contextlib.suppress(*layout.ABSENT):  # another driver took it over
            outages.retry_transient(lambda: lock.end("done"), lambda: False)


def prepare(study: Study, cancellation: Any = None, has_lost_lock: bool = False) -> None:
    """Makes the study's directory, or checks that the one there is this study.

    cancellation: of `submissions.cancellation` when this run began; a newer one stays.
    has_lost_lock: whether another driver took the lock over from this one, which then changes no
    other plan. Never asks a question. Raises ValueError, and changes nothing, if the directory
    holds another study, cannot be written, or the study lacks a point of its selection.
    """
    directory = study.directory

    def check_stop() -> None:
        if submissions.cancellation(directory) not in (None, cancellation):
            raise KeyboardInterrupt(f"{directory} was cancelled")

    try:
        directory.mkdir(parents=True, exist_ok=True)
        layout.remove_left_overs(directory, clock.clock.server_time(directory))
        with locked(directory, check_stop) as lock:
            known = check_same(study)
            if has_lost_lock and known:
                check_plan(study)
            _frozen_points(study)
            now = {"date": datetime.date.today().isoformat(), **provenance.code()}
            start = {key: known.get(key, value) for key, value in now.items()}
            began = config.completed(known["config"]) if known else study.settings
            runs = known.get("runs") or [_run(start["date"], start["git_commit"], began)]
            run = _run(now["date"], now["git_commit"], study.settings)
            # An entry of an older version lacks keys.
            if run | {"looks": [], "margin": ""} | runs[-1] | {"date": run["date"]} != run:
                runs.append(run)
            record = {
                "format": layout.FORMAT,
                "name": study.name,
                "config": study.settings,
                "points": study.points,
                "stages": study.stages,
                "starts": [dataclasses.asdict(start) for start in study.starts],
                "paper_table": study.settings["paper_table"],
                "paper_note": study.settings["paper_note"],
                **start,
                "runs": runs,
            }
            lock.beat()
            if not known:
                for listing in directory.glob(f"*/{layout.TRIALS}"):
                    listing.unlink()
                (directory / layout.SELECTION).unlink(missing_ok=True)
            layout.write_json(directory / layout.STUDY, record)
            if submissions.cancellation(directory) == cancellation:
                (directory / submissions.CANCELLED).unlink(missing_ok=True)
    except OSError as error:
        if isinstance(error.__cause__, lease.LostError):
            return prepare(study, cancellation, has_lost_lock=True)
        raise ValueError(
            f"{directory} cannot be written: {error.strerror or error}. Choose another "
            "--config.experiment_dir, or make room and permission there"
        ) from error


def _run(date: Any, commit: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the record of a run in study.json."""
    names = ("hypothesis", "seeds", "looks", "margin", "variants", "points", "baseline")
    return {"date": date, "git_commit": commit, **{key: settings[key] for key in names}}


def _was_begun(directory: pathlib.Path) -> bool:
    """Whether a trial has begun, or an engine may have a job that begins one."""
    batches = submissions.batches(directory, lambda problem: None)
    attempts = directory.glob(f"*/*/*/*/{layout.ATTEMPTS}")
    return any(batch.handles != [] for batch in batches) or any(True for _ in attempts)


def check_same(study: Study) -> dict[str, Any]:
    """Returns the record of the study that is there, {} without one or where it is another one of
    which nothing has begun: a command that was refused is corrected. Raises ValueError if it is
    another study, naming what differs."""
    directory = study.directory
    if not (directory / layout.STUDY).exists():
        return {}
    record = layout.study_record(directory)
    stored = config.of_this_version(record["config"])
    changeable = {key for key, role in keys.roles().items() if role.may_change}
    if stored["diagnostics"]:  # what is recorded would not fit what other examples give
        changeable.remove("diagnostics_examples")
    if (directory / layout.SELECTION).exists():
        # Another number would compare other seeds, or those that choose the points.
        changeable.remove("tuning_seeds")
    differing = [
        f"{key}: {stored.get(key)!r} there, {value!r} now"
        for key, value in study.settings.items()
        if key not in changeable and stored.get(key) != value
    ]
    common = min(len(record["points"]), len(study.points))
    if list(study.points[:common]) != record["points"][:common]:
        differing.append(
            f"space {study.settings['space']!r} gives other points than when the study began"
        )
    contents = {(row["variant"], row["seed"]): row["content"] for row in record.get("starts", ())}
    differing += [
        f"{start.checkpoint} holds other parameters than when the study began"
        for start in study.starts
        if contents.get((start.variant, start.seed), start.content) != start.content
    ]
    if differing and not _was_begun(directory):
        return {}
    if differing:
        raise ValueError(
            f"{directory} holds another study of that name ({'; '.join(differing)}). "
            "Choose another --config.name, or remove the directory"
        )
    return record


def check_plan(study: Study, chosen: dict[str, Any] | None = None) -> None:
    """Raises ValueError if the plan was changed since this driver wrote it, or other points are
    compared than those of its selection."""
    directory = study.directory
    stored = config.completed(layout.study_record(directory)["config"])
    roles = keys.roles()
    differing = [
        f"{key}: {stored[key]!r} there, {value!r} here"
        for key, value in study.settings.items()
        if (roles[key] in _PLAN_ROLES or key == "seeds" or not roles[key].may_change)
        and stored[key] != value
        # Points and contents of checkpoints decide, not where they were read.
        and not (key in keys.OWN and keys.OWN[key].allowed is PATH)
    ]
    points = layout.read_record(directory / layout.SELECTION).get("points")
    if chosen is not None and points != chosen["points"]:
        differing.append(f"points compared: {points} there, {chosen['points']} here")
    if differing:
        raise ValueError(
            f"{directory}: the study was changed since this driver began ({'; '.join(differing)}). "
            "This driver ends. If no other driver runs the study now, go on with its plan by: "
            f"python -m sweeps resume {files.quoted(directory)}"
        )


def check_data(study: Study, digest: str) -> None:
    """Raises ValueError if trials were planned on other data than those of a digest; '', of
    data or of a trial, is unknown."""
    directory = study.directory
    for stage in study.stages:
        try:
            rows = layout.planned(directory, stage) or ()
        except ValueError:  # it is written again
            continue
        others = {row.get("data_digest", "") for row in rows} - {"", digest}
        if digest and others and _was_begun(directory):
            stored = layout.study_record(directory)["config"].get("data_dir")
            raise ValueError(
                f"{directory}: the study's trials were trained on other data, those of {stored} "
                f"(SHA-256 {min(others)}); {study.data_dir} holds {digest}. Give the former by "
                "--config.data_dir, or choose another --config.name"
            )


def plan(
    study: Study, stage: str, check_stop: Callable[[], None] = lambda: None
) -> tuple[list[Trial], dict[str, Any] | None]:
    """Returns a stage's trials as they are recorded, and the selection that 'compare' begins with.

    check_stop: as `locked` calls it. Raises ValueError if another driver has changed the study's
    plan, and as `select` and `materialise` do; OSError, in which case it may be called again.
    """
    with locked(study.directory, check_stop) as lock:
        check_plan(study)
        check_data(study, study.data_digest)
        chosen = select(study, lock.beat) if stage == "compare" else None
        return materialise(study, stage, study.trials(stage, chosen), lock.beat), chosen


def select(study: Study, beat: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Writes selection.json and returns it: the points that 'compare' trains with.

    Points of a selection.json that is there stay, whatever validation would choose by now: a failed
    trial was repaired, points or seeds were added. Without that file they are chosen anew. A
    variant of which every point lost half of its seeds or more has no point. `beat` is called now
    and then. Raises ValueError if that is the baseline, and as `_frozen_points` does.
    """
    entry = catalog.get(study.workload)
    metric = f"validation/{entry.metric}"
    frozen = _frozen_points(study)
    # Of each tuned variant and point the trials' best validation metrics, None for a lost trial.
    values: dict[str, dict[int, list[float | None]]] = {}
    lost = []
    for trial in _beating(study.trials("tune"), beat):
        value = selection.trial_value(study.directory / trial.path, metric, entry.mode)
        values.setdefault(trial.variant, {}).setdefault(trial.point, []).append(value)
        if value is None:
            lost.append(trial.path)
    best = {
        variant: selection.best_point(by_point, entry.mode) for variant, by_point in values.items()
    }
    sources = stages.tuned(study.settings)
    points = {variant: frozen.get(source, best[source]) for variant, source in sources.items()}
    if points[study.settings["baseline"]] is None:
        unchosen = [variant for variant, point in best.items() if point is None]
        raise ValueError(
            f"{study.directory}: no point of {', '.join(unchosen)} ended with a finite validation "
            "metric for more than half of its seeds, so nothing can be selected to compare with; "
            "see `python -m sweeps status` for how they ended"
        )
    record = {
        "metric": metric,
        "mode": entry.mode,
        "from_stage": "tune",
        "points": {variant: point for variant, point in points.items() if point is not None},
        "lost": lost,
    }
    beat()
    layout.write_json(study.directory / layout.SELECTION, record)
    return record


def _frozen_points(study: Study) -> dict[str, int]:
    """Returns the points of selection.json by tuned variant; {} without that file.

    Raises ValueError if the file is damaged, or the study no longer has such a point.
    """
    path = study.directory / layout.SELECTION
    try:
        points: dict[str, int] = layout.record(path, points=dict)["points"]
    except layout.ABSENT:
        return {}
    except ValueError as error:
        raise ValueError(f"{error}; copy it back, or remove it to choose anew") from error
    if study.settings["protocol"] == "tune_then_compare" and points:
        points = {study.settings["tuning_variant"]: next(iter(points.values()))}
    sources = stages.tuned(study.settings).values()
    points = {variant: point for variant, point in points.items() if variant in sources}
    if not all(point in range(len(study.points)) for point in points.values()):
        raise ValueError(
            f"{path} selects points {points} and the study has {len(study.points)} points now: set "
            "a larger --config.points, or remove that file to choose anew"
        )
    return points


def materialise(
    study: Study, stage: str, trials: list[Trial], beat: Callable[[], None] = lambda: None
) -> list[Trial]:
    """Writes trials.json of a stage, and each trial's record where it is not there yet.

    A recorded trial that has not ended takes over what may change (`trial.CHANGEABLE`), for its
    next attempt. One that is done or diverged stays as it was recorded. Returns the trials as they
    are recorded. `beat` is called now and then. Raises ValueError if a trial's directory holds
    another trial.
    """
    folder = study.directory / stage
    folder.mkdir(exist_ok=True)
    recorded = [
        _write_trial(study.directory / trial.path, trial, beat) for trial in _beating(trials, beat)
    ]
    beat()
    rows = [{"path": trial.path, **trial.to_json()} for trial in recorded]
    layout.write_json(folder / layout.TRIALS, {"stage": stage, "trials": rows})
    return recorded


def _beating(trials: list[Trial], beat: Callable[[], None]) -> Iterator[Trial]:
    """Yields the trials; calls `beat` before every _BEAT_EVERY of them."""
    for number, trial in enumerate(trials):
        if number % _BEAT_EVERY == 0:
            beat()
        yield trial


def _write_trial(directory: pathlib.Path, trial: Trial, beat: Callable[[], None]) -> Trial:
    path = directory / layout.TRIAL
    record: Any = layout.read_json_if_there(path)
    recorded = None if record is None else from_record(record, path)
    is_other = recorded is not None and recorded.id != trial.id
    if recorded is None or (is_other and not lease.latest(directory)):
        beat()
        directory.mkdir(parents=True, exist_ok=True)
        layout.write_json(directory / layout.HPARAMS, trial.hyperparameters)
        layout.write_json(directory / "flags_0.json", trial.to_json())
        layout.write_json(path, {**trial.to_json(), **provenance.code()})
        return trial
    if is_other:
        raise ValueError(
            f"{directory} holds trial {recorded.id}, this study wants {trial.id} there. "
            "Choose another --config.name, or remove that directory"
        )
    changes = {name: getattr(trial, name) for name in CHANGEABLE}
    changes["data_digest"] = trial.data_digest or recorded.data_digest
    changed = dataclasses.replace(recorded, **changes)
    if changed == recorded or status.read(directory)["state"] in ("done", "diverged"):
        return recorded
    beat()
    layout.write_json(path, record | changed.to_json())
    return changed
