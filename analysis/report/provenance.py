"""Where a study's numbers come from: commit, versions, devices, data, as its files say."""

import collections
import json
from collections.abc import Iterable
from typing import Any

from analysis.files.records import Run
from analysis.results.error_table import ErrorTable
from sweeps.records import layout

# Keys of `versions` in the order that a reader looks for them; the others follow.
FIRST = ("python", "jax", "jaxlib", "flax", "optax")
UNKNOWN = "not recorded"


def of_table(table: ErrorTable) -> list[tuple[str, str]]:
    """Returns (name, text) pairs on the trials that the table counts, and on their study."""
    study = table.study
    runs = _counted(table)
    records = [(_read(run, layout.TRIAL), _read(run, "meta_data_0.json")) for run in runs]
    own = _read_study(table)
    return [
        ("Study", study.name),
        ("Kind", "AlgoPerf's published logs" if study.published else "a study of attnperf"),
        ("Workload", table.workload),
        ("Protocol", str(study.config.get("protocol") or UNKNOWN)),
        ("Trials", _trials(table, runs)),
        ("Seeds", ", ".join(map(str, sorted({run.seed for run in runs}))) or "none"),
        ("Steps", _several(str(run.steps or run.last_step or UNKNOWN) for run in runs)),
        ("Commit", _commits(own, records)),
        ("Versions", _several(_versions(own, *pair) for pair in records) or _versions(own, {}, {})),
        ("Devices", _several(_devices(*pair) for pair in records)),
        ("Host", _several(_host(*pair) for pair in records)),
    ]


def config(table: ErrorTable) -> str:
    """Returns the study's resolved configuration, a line for each key as a command line would
    change it, empty where it has none."""
    return "\n".join(_lines(table.study.config))


def _lines(values: dict[str, Any], prefix: str = "") -> Iterable[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _lines(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name} = {json.dumps(value)}"


def _counted(table: ErrorTable) -> list[Run]:
    points = {row.variant: row.point for row in table.rows}
    return [
        run
        for run in table.study.stage(table.stage)
        if run.state == "done" and points.get(run.variant) == run.point
    ]


def _read(run: Run, file: str) -> dict[str, Any]:
    """Returns a JSON object of a trial; the study's problems name one that cannot be read."""
    try:
        record = layout.read_json_if_there(run.path / file)
    except (ValueError, OSError):
        return {}
    return record if isinstance(record, dict) else {}


def _read_study(table: ErrorTable) -> dict[str, Any]:
    record = layout.read_json_if_there(table.study.directory / layout.STUDY)
    return record or {}


def _trials(table: ErrorTable, runs: list[Run]) -> str:
    whole = len(table.study.runs)
    return f"{len(runs)} counted in this table, of {whole} in the study, stage {table.stage}"


def _several(texts: Iterable[str]) -> str:
    """Returns the text if all agree, else each with how many trials say so."""
    counts = collections.Counter(texts)
    if len(counts) < 2:
        return next(iter(counts), UNKNOWN)
    return "; ".join(
        f"{text} ({count} trial{'s' if count > 1 else ''})" for text, count in counts.most_common()
    )


def _commits(own: dict[str, Any], records: list[tuple[dict, dict]]) -> str:
    found = (trial.get("git_commit") or meta.get("git_commit_hash") for trial, meta in records)
    return _several(str(commit or own.get("git_commit") or UNKNOWN) for commit in found)


def _versions(own: dict[str, Any], trial: dict[str, Any], meta: dict[str, Any]) -> str:
    hardware = trial.get("hardware") or {}
    versions = hardware.get("versions") or trial.get("versions") or own.get("versions") or {}
    if not versions and meta.get("python_version"):
        versions = {"python": meta["python_version"]}
    names = sorted(versions, key=lambda name: (name not in FIRST, _rank(name), name))
    return ", ".join(f"{name} {versions[name]}" for name in names) or UNKNOWN


def _rank(name: str) -> int:
    return FIRST.index(name) if name in FIRST else len(FIRST)


def _devices(trial: dict[str, Any], meta: dict[str, Any]) -> str:
    hardware = trial.get("hardware") or meta
    if kind := hardware.get("device_kind"):
        processes = hardware.get("process_count", 1)
        split = f" in {processes} processes" if processes > 1 else ""
        return f"{hardware.get('device_count', '?')} × {kind}{split}"
    if meta.get("gpu_model_name"):  # AlgoPerf's logs
        return f"{meta.get('gpu_count', '?')} × {meta['gpu_model_name']}"
    return UNKNOWN


def _host(trial: dict[str, Any], meta: dict[str, Any]) -> str:
    hardware = trial.get("hardware") or meta
    if not hardware.get("cpu_model_name"):
        return UNKNOWN
    cores = hardware.get("cpu_count", "?")
    name = hardware["cpu_model_name"].strip()
    return f"{name}, {cores} CPU{'' if cores == 1 else 's'}, {hardware.get('os_platform', '')}"
