"""Checks made before the first process starts, in seconds: kernel, devices, libraries, data."""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

from attention import backends
from attention import table as variants_table
from attention.common import files, machine, messages
from sweeps.launchers import table as launchers
from sweeps.launchers.protocol import EngineError
from sweeps.records import event_files, layout
from sweeps.study import checks, config, jax_calls, study_directory
from sweeps.study.study import Study
from workloads import catalog
from workloads.base.options import check_batch, mesh_shape
from workloads.downstream import suites
from workloads.storage import preparation


def check_kernel(study: Study) -> None:
    """Raises ValueError if the study's kernel cannot run where its launcher runs trials."""
    settings = study.settings
    platform = launchers.launcher_class(settings["launcher"]).hardware(settings).kind
    head_size = catalog.get(study.workload).head_size
    for variant in settings["variants"]:
        backends.check_kernel(
            settings["kernel"],
            platform=platform,
            dtype=settings["compute_dtype"],
            head_size=head_size,
            value_size=variants_table.value_size(variant, head_size),
        )


def check_model(study: Study) -> None:
    """Raises ValueError if the row of a user's workload makes no model, or says another one."""
    if catalog.module_of(study.workload):
        jax_calls.call(jax_calls.model, workload=study.workload)


def check_devices(study: Study) -> None:
    """Raises ValueError if mesh or batch do not fit the devices that a trial gets."""
    check_batch(study.settings["batch_size"], check_mesh(study), study.settings["microbatches"])


def check_mesh(study: Study) -> int:
    """Returns over how many groups of devices a batch is divided.

    Raises ValueError if the mesh does not fit the devices that a trial gets.
    """
    settings = study.settings
    launcher = settings["launcher"]
    devices = launchers.launcher_class(launcher).hardware(settings).of_a_trial()
    lever = "--config.local.workers" if launcher == "local" else f"the keys of --config.{launcher}"
    try:
        data, fsdp, *_ = mesh_shape(checks.options(settings).mesh, devices)
    except ValueError as error:
        raise ValueError(
            f"a trial by launcher {launcher}: {error}. Change --config.mesh.fsdp, .tensor or "
            f".data, or {lever}; `python -m sweeps compile --topology=...` says what fits"
        ) from error
    return data * fsdp


def check_engine(study: Study) -> None:
    """Raises ValueError if the engine would refuse the study's jobs.

    Warns where it cannot be asked.
    """
    settings = study.settings
    name = settings["launcher"]
    engine = launchers.launcher_class(name)(
        settings, pathlib.Path(os.path.realpath(study.directory))
    )
    try:
        with contextlib.closing(engine):
            engine.verify()
    except EngineError as error:
        config.warn(f"{name} cannot be asked whether it takes this study's jobs: {error}")


def check_event_files(study: Study, here: bool = False) -> None:
    """Raises ValueError if this host runs trials whose event files it has no library for.

    here: whether it is a job's node; the driver's host runs those of launcher local.
    """
    settings, library = study.settings, event_files.LIBRARY
    is_needed = settings["tensorboard"] and (here or settings["launcher"] == "local")
    if is_needed and importlib.util.find_spec(library) is None:
        raise ValueError(
            f"tensorboard=True needs {library}, which is not installed here: pip install "
            "'attnperf[tensorboard]', or set --config.tensorboard=False"
        )


def check_laws(study: Study) -> None:
    """Raises ValueError if a variant lets examples of a batch reach each other, in a causal
    model later tokens reach earlier ones, or documents each other that a study keeps apart.

    Measured once for each variant and state of the code; a cache that cannot be written costs a
    measurement each time.
    """
    settings, lacks = study.settings, dict(catalog.get(study.workload).support.lacks)
    hidden = {"causality": "causal" not in lacks, "segments": settings["document_mask"]}
    laws = ("batch", *(law for law, is_hidden in hidden.items() if is_hidden))
    variants = {
        variant: checks.variant_hyperparameters(variant, settings)
        for variant in sorted({*settings["variants"], settings["tuning_variant"]})
    }
    folder, code = machine.cache_folder() / "laws", _mechanisms()
    entries = {
        variant: folder / layout.digest([variant, hyperparameters, laws, code])
        for variant, hyperparameters in variants.items()
    }
    unknown = {name: variants[name] for name, entry in entries.items() if not os.path.exists(entry)}
    if not unknown:
        return
    names = ", ".join(unknown)
    print(f"laws of attention: measured for {names}, once for this code", flush=True)
    jax_calls.call(jax_calls.check_laws, variants=unknown, laws=laws)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        for name in unknown:
            entries[name].touch()


def _mechanisms() -> list[str]:
    """Returns what measured laws depend on: the version of JAX, and digests of attention/."""
    folder = pathlib.Path(files.__file__).parent
    digests = [files.sha256(path) for path in sorted(folder.rglob("*.py"))]
    return [importlib.metadata.version("jax"), *digests]


def refusals(study: Study) -> list[str]:
    """Returns why `run` would refuse the study here, and whether its data is seen: for `plan`."""
    wanted: tuple[Callable[[Study], Any], ...] = (
        check_kernel,
        check_devices,
        check_model,
        check_event_files,
        study_directory.check_same,
        _check_places,
    )
    problems = []
    for check in wanted:
        try:
            check(study)
        except (ValueError, OSError) as error:
            problems.append(f"run would refuse this: {messages.message(error)}")
    return [*problems, *filter(None, [_unseen(study)])]


def _check_places(study: Study) -> None:
    """Raises ValueError if the study cannot be written, or its data is missing on this host.

    Embedded data need no more than a place.
    """
    files.check_output_directory(
        pathlib.Path(study.settings["experiment_dir"]), "--config.experiment_dir"
    )
    if study.settings["downstream"] and study.settings["launcher"] == "local":
        suites.check_harness()
    if _unseen(study):
        return
    if catalog.get(study.workload).embedded:
        preparation.check_place(pathlib.Path(study.data_dir), "--config.data_dir")
        return
    _ask(study)


def _unseen(study: Study) -> str:
    """Returns what to say of data that nodes may have and this host has not; '' of any other."""
    if study.settings["launcher"] == "local" or os.path.exists(study.data_dir):
        return ""
    return (
        f"{study.data_dir} is not on this host, so the data is not checked here: each job checks "
        "it on its node"
    )


def check_data(study: Study, suite: str = "", here: bool = False) -> str:
    """Makes sure that the workload's data is there and whole; prepares embedded data itself.

    Returns the SHA-256 of the data, '' where it is unknown.

    suite: it is a suite's data that is needed, and the library that judges by it. here: whether it
    is a job's node; otherwise a driver, which warns where an engine's nodes alone see the data.
    The study gets the reference rows of its data, errors of simple methods; a node leaves those
    that are there. Raises ValueError naming the directory, the file and the command that repairs
    it; or, where trials were planned on other data, both.
    """
    if not here:
        if unseen := _unseen(study):
            config.warn(unseen)
            return ""
        entry = catalog.get(study.workload)
        if entry.embedded:
            print(f"data: {study.data_dir} ({entry.description}; made there if absent)", flush=True)
    answer = _ask(study, suite)
    for line in answer["lines"]:
        print(f"data: {line}", flush=True)
    digest = str(answer["digest"])
    study_directory.check_data(study, digest)
    path = study.directory / layout.REFERENCE
    if answer["reference"] is not None and not (path.exists() and here):
        rows = {study.workload: answer["reference"]}
        if layout.read_json_if_there(path) != json.loads(json.dumps(rows)):
            layout.write_json(path, rows)
    return digest


def _ask(study: Study, suite: str = "") -> dict[str, Any]:
    """Returns what `jax_calls.data` says of the workload's data, or `check_suite` of a suite's."""
    where = {"workload": study.workload, "data_dir": study.data_dir}
    if suite:
        answer = jax_calls.call(jax_calls.check_suite, suite=suite, **where)
    else:
        downstream = study.settings["downstream"]
        answer = jax_calls.call(
            jax_calls.data, suite=downstream, extra_paths=study.extra_paths, **where
        )
    return dict(answer)
