"""Checks made before the first process starts, in seconds: kernel, devices, data."""

import json
import pathlib
from typing import Any

from attention import table as variants_table
from sweeps.launchers import table as launchers
from sweeps.monitoring import jax_calls
from sweeps.records import layout
from sweeps.study import checks, config
from sweeps.study.study import Study
from workloads import algoperf_specs, catalog
from workloads.algoperf import tiny_sizes


def check_kernel(study: Study) -> None:
    """Raises ValueError where the study's kernel cannot run where its launcher runs trials."""
    settings = study.settings
    platform = launchers.module(settings["launcher"]).platform(settings)
    head_size = catalog.get(study.workload).head_size
    for variant in settings["variants"]:
        variants_table.check_kernel(
            settings["kernel"],
            platform=platform,
            dtype=settings["compute_dtype"],
            head_size=head_size,
            value_size=variants_table.value_size(variant, head_size),
        )


def check_devices(study: Study) -> None:
    """Raises ValueError where mesh or batch do not fit the devices that a trial gets."""
    settings = study.settings
    launcher = settings["launcher"]
    devices = launchers.module(launcher).devices(settings)
    place = "on this host" if launcher == "local" else f"by launcher {launcher}"
    lever = "--config.local.workers" if launcher == "local" else f"the keys of --config.{launcher}"
    data, fsdp, tensor = checks.options(settings).mesh
    groups = data * fsdp or devices // tensor
    if groups * tensor != devices or groups % fsdp:
        raise ValueError(
            f"mesh.data={data}, mesh.fsdp={fsdp}, mesh.tensor={tensor} does not fit the "
            f"{devices} device(s) that a trial has {place}: the sizes must multiply to that "
            "(data 0: all that the others leave). Change --config.mesh.fsdp, .tensor or .data, or "
            f"{lever}; `python -m sweeps plan --devices N` says what fits"
        )
    if settings["batch_size"] % groups:
        raise ValueError(
            f"batch_size {settings['batch_size']} cannot be divided over {groups} devices "
            f"{place}; choose a multiple, or fewer devices"
        )


def check_data(study: Study) -> None:
    """Makes sure that the workload's data is there and whole; prepares embedded data itself.

    Copies the data's reference rows (errors of simple methods) into the study. Where an engine
    runs the trials and this host does not see the data, warns that every job checks it. Raises
    ValueError naming the directory, the file and the command that repairs it.
    """
    start_data_check(study).finish()


def start_data_check(study: Study) -> "DataCheck":
    """Begins `check_data` in a process of its own and returns at once; `finish()` waits.

    Reading the embedded data takes about a second: workers may start meanwhile.
    """
    elsewhere = study.settings["launcher"] != "local"
    if elsewhere and not pathlib.Path(study.data_dir).exists():
        config.warn(
            f"{study.data_dir} is not on this host, so the data is not checked here: each job "
            "checks it on its node"
        )
        return DataCheck(study.directory, study.workload, None)
    _check_fabricated(study)
    entry = catalog.get(study.workload)
    if entry.embedded:
        print(f"data: {study.data_dir} ({entry.description}; made there if absent)", flush=True)
    call = jax_calls.Call(
        jax_calls.data,
        workload=study.workload,
        data_dir=study.data_dir,
        extra_paths=study.extra_paths,
    )
    return DataCheck(study.directory, study.workload, call)


def _check_fabricated(study: Study) -> None:
    """Raises ValueError for a batch larger than AlgoPerf's data, where that is fabricated."""
    if algoperf_specs.is_algoperf(study.workload):
        name = algoperf_specs.own_name(study.workload)
        if sizes := tiny_sizes.read_sizes(study.data_dir, name):
            remedy = f"set --config.batch_size to {sizes['train']} or fewer"
            tiny_sizes.check_batch(study.settings["batch_size"], sizes, remedy)


class DataCheck:
    """A check of a study's data, under way; nothing where `call` is None."""

    def __init__(self, directory: pathlib.Path, workload: str, call: jax_calls.Call | None) -> None:
        self._directory, self._workload, self._call = directory, workload, call

    def finish(self) -> None:
        """Waits for the check's end, once; the study gets the reference rows. Raises ValueError."""
        if self._call is None:
            return
        with self._call as call:
            self._call = None
            found = call.result()
        _show(found["lines"])
        keep_reference(self._directory, self._workload, found["reference"])

    def close(self) -> None:
        """Ends a check that nobody waits for any more."""
        if self._call is not None:
            self._call.__exit__(None, None, None)
            self._call = None


def check_data_here(
    workload: str,
    data_dir: str,
    study_directory: pathlib.Path | None = None,
    extra_paths: dict[str, str] | None = None,
) -> None:
    """Checks a workload's data on this host, a job's node; prepares embedded data.

    The study in `study_directory` gets the reference rows where it has none yet. Raises ValueError
    naming the directory, the file and the command that repairs it.
    """
    found = jax_calls.call(
        jax_calls.data, workload=workload, data_dir=data_dir, extra_paths=extra_paths
    )
    _show(found["lines"])
    if study_directory is not None and not (study_directory / layout.REFERENCE).exists():
        keep_reference(study_directory, workload, found["reference"])


def keep_reference(directory: pathlib.Path, workload: str, reference: Any | None) -> None:
    """Writes the data's reference rows beside the study, unless they are there already."""
    if reference is None:
        return
    rows = {workload: {"note": reference["note"], "rows": reference["rows"]}}
    path = directory / layout.REFERENCE
    if layout.read_json_if_there(path) != json.loads(json.dumps(rows)):
        layout.write_json(path, rows)


def _show(lines: list[str]) -> None:
    for line in lines:
        print(f"data: {line}", flush=True)
