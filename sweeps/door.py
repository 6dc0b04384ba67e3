"""Checks that need the data: made before the first process starts, in seconds."""

import importlib
import json

from attention import table as variants_table
from sweeps import layout, study_checks
from sweeps.launchers import local
from sweeps.study import Study
from workloads import table as workloads_table


def check_kernel(study: Study) -> None:
    """Raises ValueError where the study's kernel cannot run on this host."""
    variable, devices = local.accelerators()
    platform = {"CUDA_VISIBLE_DEVICES": "gpu", "TPU_VISIBLE_CHIPS": "tpu"}.get(variable, "cpu")
    head_size = workloads_table.entry(study.workload).head_size
    for variant in study.settings["variants"]:
        variants_table.check_kernel(
            study.settings["kernel"],
            platform=platform if devices else "cpu",
            dtype=study.settings["compute_dtype"],
            head_size=head_size,
            value_size=variants_table.value_size(variant, head_size),
        )


def check_devices(study: Study) -> None:
    """Raises ValueError where mesh or batch do not fit the devices that a trial gets here."""
    settings, devices = study.settings, local.devices_per_worker(study.settings["local"])
    data, fsdp, tensor = study_checks.options(settings).mesh
    groups = data * fsdp or devices // tensor
    if groups * tensor != devices or groups % fsdp:
        raise ValueError(
            f"mesh.data={data}, mesh.fsdp={fsdp}, mesh.tensor={tensor} does not fit the "
            f"{devices} device(s) that a trial has on this host: the sizes must multiply to that "
            "(data 0: all that the others leave). Change --config.mesh.fsdp, .tensor or .data, or "
            "--config.local.workers; `python -m sweeps plan --devices N` says what fits"
        )
    if settings["batch_size"] % groups:
        raise ValueError(
            f"batch_size {settings['batch_size']} cannot be divided over {groups} devices of this "
            "host; choose a multiple, or fewer devices"
        )


def check_data(study: Study) -> None:
    """Makes sure that the workload's data is there and whole; prepares embedded data itself.

    Copies the data's reference rows (errors of simple methods) into the study. Raises ValueError
    naming the directory, the file and the command that repairs it.
    """
    entry = workloads_table.entry(study.workload)
    data = importlib.import_module(entry.data)
    if entry.embedded:
        print(f"data: {study.data_dir} ({entry.description}; made there if absent)", flush=True)
        data.prepare(study.data_dir)
    else:
        for line in data.check(study.data_dir):
            print(f"data: {line}", flush=True)
    if hasattr(data, "read_reference"):
        reference = data.read_reference(study.data_dir)
        rows = {study.workload: {"note": reference["note"], "rows": reference["rows"]}}
        path = study.directory / layout.REFERENCE
        if layout.read_json_if_there(path) != json.loads(json.dumps(rows)):
            layout.write_json(path, rows)
