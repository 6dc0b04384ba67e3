"""A study's directory: made, checked to be this study's, filled with the records of its trials."""

import dataclasses
import datetime
import pathlib
from typing import Any

from sweeps.records import clock, layout, provenance, stages, status
from sweeps.study import config, keys, selection
from sweeps.study.study import Study
from sweeps.study.trial import CHANGEABLE, Trial, from_record
from workloads import catalog


def prepare(study: Study) -> None:
    """Makes the study's directory, or checks that the one there is this study.

    Never asks a question. Raises ValueError where it is another study's or not writable.
    """
    directory = study.directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
        layout.remove_left_overs(directory, clock.clock.server_time(directory))
        known = check_same(study)
        record = {
            "format": layout.FORMAT,
            "name": study.name,
            "config": study.settings,
            "points": study.points,
            "stages": study.stages,
            "starts": [dataclasses.asdict(start) for start in study.starts],
            "paper_table": study.settings["paper_table"],
            "paper_note": study.settings["paper_note"],
            "date": known.get("date") or datetime.date.today().isoformat(),  # on which it began
            **provenance.code(),
        }
        layout.write_json(directory / layout.STUDY, record)
    except OSError as error:
        raise ValueError(
            f"{directory} cannot be written: {error.strerror or error}. Choose another "
            "--config.experiment_dir, or make room and permission there"
        ) from error


def check_same(study: Study) -> dict[str, Any]:
    """Returns the record of the study that is there, {} without one. Raises ValueError where it is
    another study, naming what differs."""
    directory = study.directory
    if not (directory / layout.STUDY).exists():
        return {}
    record = layout.study_record(directory)
    stored = config.of_this_version(record["config"])
    changeable = {key for key, role in keys.roles().items() if role.may_change}
    if stored["diagnostics"]:  # what is recorded would not fit what other examples give
        changeable.remove("diagnostics_examples")
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
    if differing:
        raise ValueError(
            f"{directory} holds another study of that name ({'; '.join(differing)}). "
            "Choose another --config.name, or remove the directory"
        )
    return record


def select(study: Study, choice: str = "") -> dict[str, Any]:
    """Writes selection.json and returns it: the points that 'compare' trains with.

    Once 'compare' has begun its points stay. Where validation would now choose another (a failed
    trial was repaired, points or seeds were added), `choice` 'keep' goes on with the old ones and
    'new' begins with the new ones; without it ValueError names both. What was kept is remembered
    for as long as validation would choose the same instead. ValueError is raised, too, where 'tune'
    chooses nothing.
    """
    entry, path = catalog.get(study.workload), study.directory / layout.SELECTION
    metric = f"validation/{entry.metric}"
    begun = _begun(study)
    # Of each tuned variant and point the trials' best validation metrics, None for a lost trial.
    values: dict[str, dict[int, list[float | None]]] = {}
    lost = []
    for trial in study.trials("tune"):
        value = selection.trial_value(study.directory / trial.path, metric, entry.mode)
        values.setdefault(trial.variant, {}).setdefault(trial.point, []).append(value)
        if value is None:
            lost.append(trial.path)
    # What a person has decided against, by tuned variant.
    remembered = {} if choice else layout.read_record(path).get("kept", {})
    chosen: dict[str, int] = {}
    kept: dict[str, int | None] = {}
    for variant, by_point in values.items():
        best, before = selection.best_point(by_point, entry.mode), begun.get(variant)
        again = variant in remembered and remembered[variant] == best
        if before is not None and before != best and (choice == "keep" or again):
            kept[variant], best = best, before
        if best is None:
            raise ValueError(
                "no point of the stage ended with a finite validation metric for more than half of "
                "its seeds, so nothing can be selected; see `python -m sweeps status` for how they "
                "ended"
            )
        chosen[variant] = best
    _check_begun(study, begun, chosen, choice)
    record = {
        "metric": metric,
        "mode": entry.mode,
        "from_stage": "tune",
        "points": {
            variant: chosen[source] for variant, source in stages.tuned(study.settings).items()
        },
        "lost": lost,
    }
    if kept:  # what validation would choose instead
        record["kept"] = kept
    layout.write_json(path, record)
    return record


def _check_begun(study: Study, begun: dict[str, int], chosen: dict[str, int], choice: str) -> None:
    """Raises ValueError where 'compare' began with points that it does not go on with unasked."""
    changed = [
        f"{variant}: point {point}, now {chosen[variant]}"
        for variant, point in begun.items()
        if chosen.get(variant, point) != point
    ]
    if changed and choice != "new":
        raise ValueError(
            f"{study.directory}: validation would not choose the points again that stage 'compare' "
            f"began with ({'; '.join(changed)}). Run or resume with --selection=keep to go on "
            "with the points it began with, or with --selection=new to compare at the new ones "
            "(finished trials of the others stay on disk and leave the tables)"
        )
    beyond = [point for point in chosen.values() if not 0 <= point < len(study.points)]
    if beyond:
        raise ValueError(
            f"{study.directory}: the comparison began with point {beyond[0]} and the study has "
            f"{len(study.points)} points now; set --config.points={beyond[0] + 1} or more"
        )


def _begun(study: Study) -> dict[str, int]:
    """Returns the points that 'compare' has begun with, by tuned variant; {} where it has not."""
    try:
        rows = layout.planned(study.directory, "compare", "variant", "point") or ()
    except ValueError as error:
        raise ValueError(
            f"{study.directory / 'compare' / layout.TRIALS} is damaged, so the points that the "
            "comparison began with are not known; copy it back, or remove it to choose anew"
        ) from error
    points = {row["variant"]: row["point"] for row in rows}
    if study.settings["protocol"] == "tune_then_compare" and points:
        return {study.settings["tuning_variant"]: next(iter(points.values()))}
    return points


def materialise(study: Study, stage: str, trials: list[Trial]) -> list[Trial]:
    """Writes trials.json of a stage, and each trial's record where it is not there yet.

    A recorded trial that has not ended takes over what may change (`trial.CHANGEABLE`), for its
    next attempt. One that is done or diverged stays as it was recorded. Returns the trials as they
    are recorded. Raises ValueError where a trial's directory holds another trial.
    """
    folder = study.directory / stage
    folder.mkdir(exist_ok=True)
    recorded = [_write_trial(study.directory / trial.path, trial) for trial in trials]
    rows = [{"path": trial.path, **trial.to_json()} for trial in recorded]
    layout.write_json(folder / layout.TRIALS, {"stage": stage, "trials": rows})
    return recorded


def _write_trial(directory: pathlib.Path, trial: Trial) -> Trial:
    path = directory / layout.TRIAL
    record = layout.read_json_if_there(path)
    if record is None:
        directory.mkdir(parents=True, exist_ok=True)
        layout.write_json(directory / layout.HPARAMS, trial.hyperparameters)
        layout.write_json(directory / "flags_0.json", trial.to_json())
        layout.write_json(path, {**trial.to_json(), **provenance.code()})
        return trial
    recorded = from_record(record, path)
    if recorded.id != trial.id:
        raise ValueError(
            f"{directory} holds trial {recorded.id}, this study wants {trial.id} there. "
            "Choose another --config.name, or remove that directory"
        )
    changes = {name: getattr(trial, name) for name in CHANGEABLE}
    changed = dataclasses.replace(recorded, **changes)
    if changed == recorded or status.read(directory)["state"] in ("done", "diverged"):
        return recorded
    layout.write_json(path, record | changed.to_json())
    return changed
