"""The catalog of workloads: what a driver must know of each without loading JAX.

A workload of ours is one row of its domain's table (`image_specs`, `speech_specs`, `text_specs`). A
workload of a user has a name MODULE:NAME: row NAME of the table WORKLOADS of an importable module.
Standard library only.
"""

import dataclasses
import hashlib
import importlib
import json
import os
import pathlib
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

from attention import table as variants_table
from attention.backends import check_needs
from attention.common import files, machine
from workloads import algoperf_specs
from workloads.base.options import MESH_AXES, Options, check_batch
from workloads.base.workload_spec import KEEPS_SOFTMAX, WorkloadSpec
from workloads.images import image_specs
from workloads.speech import speech_specs
from workloads.text import finetuning_specs, text_specs

WORKLOADS: dict[str, WorkloadSpec] = {
    spec.name: spec for spec in (*image_specs.SPECS, *speech_specs.SPECS, *text_specs.SPECS)
}

# AlgoPerf's own workloads, which our loop trains if AlgoPerf is installed.
ALGOPERF: dict[str, WorkloadSpec] = {
    spec.name: spec for spec in algoperf_specs.specs(WORKLOADS.values())
}

# Workloads whose model predicts the next token of a text.
DECODERS = tuple(name for name, entry in WORKLOADS.items() if entry.support.decoder)
# A decoder trained on a suite's questions, 'pydoc_lm:pydoc_returns'. Python's source code, which
# those of `pysource` are trained on, holds the answers.
FINETUNED: dict[str, WorkloadSpec] = {
    spec.name: spec
    for spec in finetuning_specs.specs(
        WORKLOADS[name] for name in DECODERS if WORKLOADS[name].data_name != "pysource"
    )
}

# Names the folder of all data.
DATA_VARIABLE = "ATTNPERF_DATA"


def module_of(name: str) -> str:
    """Returns the user's module that a workload's name begins with, '' for a workload of ours."""
    module, _, short = name.rpartition(finetuning_specs.SEPARATOR)
    is_ours = module in (*WORKLOADS, "algoperf") or short in finetuning_specs.SUITES
    return "" if is_ours else module


def of_module(module: str) -> dict[str, WorkloadSpec]:
    """Returns the rows of a user's module by their full names, MODULE:NAME.

    Data lie below a folder of the module's name. Raises ValueError if the module cannot be
    imported, or if its WORKLOADS is no table of rows.
    """
    try:
        return {
            f"{module}:{name}": dataclasses.replace(
                row, name=f"{module}:{name}", data_name=f"{module}/{row.data_name or name}"
            )
            for name, row in importlib.import_module(module).WORKLOADS.items()
        }
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"module {module!r} gives no workloads: {type(error).__name__}: {error}. Its folder "
            "must be on PYTHONPATH, or its package installed, and it must define WORKLOADS, a dict "
            "of WorkloadSpec by name (docs/extending.md)"
        ) from error


def row_digest(name: str) -> str:
    """Returns 16 digits of the SHA-256 of a user's row: its factory, data and model; '' for ours.

    Functions and classes are hashed by their names.
    """
    if not module_of(name):
        return ""
    row = get(name)
    content = json.dumps(
        [row.factory, row.data, dataclasses.asdict(row)["model"]],
        sort_keys=True,
        default=lambda value: getattr(value, "__qualname__", str(value)),
    )
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def get(name: str) -> WorkloadSpec:
    """Returns the workload's row. Raises ValueError listing what exists and the nearest match."""
    known = WORKLOADS
    if module := module_of(name):
        known = of_module(module)
    elif name.startswith(algoperf_specs.PREFIX):
        known = ALGOPERF
    elif finetuning_specs.SEPARATOR in name:
        known = FINETUNED
    if name not in known:
        if name in algoperf_specs.REFUSED:
            raise ValueError(f"workload {name!r}: {algoperf_specs.REFUSED[name]}")
        raise ValueError(variants_table.unknown("workload", name, known))
    return known[name]


def model(name: str) -> str:
    """Returns the workload that a fine-tuning begins from; any other workload's name unchanged."""
    return finetuning_specs.split(name)[0]


def check(
    name: str,
    options: Options,
    *,
    variants: Sequence[str] = (),
    kernel: str = "xla",
    batch_size: int = 0,
    microbatches: int = 1,
    observed: bool = False,
) -> None:
    """Raises ValueError for the first setting of a study that a workload cannot take.

    An option that would change nothing but the identity of the trials is refused as well.
    batch_size: 0 for none. observed: whether diagnostics look into the model's attention.
    """
    for variant in variants:
        check_variant(name, variant, kernel)
    _check_options(name, options)
    if len(options.mesh) == len(MESH_AXES):
        check_needs(kernel, ("context",), f"mesh.context = {options.mesh[-1]}")
    _check_effect(options, variants)
    entry = get(name)
    if observed and not entry.support.observable:
        raise ValueError(f"the attention of {name} cannot be observed; set --config.diagnostics=0")
    if entry.train_examples and batch_size > entry.train_examples:
        raise ValueError(
            f"batch_size is {batch_size:,}, and {name} has {entry.train_examples:,} examples to "
            f"train on; set --config.batch_size={entry.train_examples} or fewer"
        )
    if microbatches > 1 and entry.support.whole_batch:
        raise ValueError(
            f"{name}: microbatches={microbatches} would change what is computed: "
            f"{entry.support.whole_batch}; set --config.microbatches=1"
        )
    check_batch(batch_size, 1, microbatches)


def check_variant(name: str, variant: str, kernel: str = "xla") -> None:
    """Raises ValueError if a workload's model cannot have a variant or a kernel."""
    support = get(name).support
    if KEEPS_SOFTMAX in support.lacks and kernel != "xla":
        raise ValueError(
            f"{name} weighs the values by its own function, so kernel={kernel!r} cannot run there; "
            "use kernel='xla', which leaves the sum to the model"
        )
    variants_table.check_model(variant, dict(support.lacks), name)


def _check_options(name: str, options: Options) -> None:
    """Raises ValueError for an option that a workload lacks or a size that does not divide."""
    support = get(name).support
    for field in dataclasses.fields(Options):
        value, default = getattr(options, field.name), field.default
        if field.name == "mesh":
            value, default = options.mesh[1:], (1, 1)
        if value != default and field.name not in support.options:
            able = ", ".join(
                workload
                for workload, entry in WORKLOADS.items()
                if field.name in entry.support.options
            )
            what = "mesh (fsdp, tensor, context)" if field.name == "mesh" else field.name
            raise ValueError(
                f"{name} has no {what} {value!r}, only {default!r}; workloads that have: {able}"
            )
    devices = dict(zip(MESH_AXES, (*options.mesh, 1), strict=False))
    heads = {dimension: size for dimension, size, _ in support.divided}.get("heads", 0)
    tensor = devices["tensor"]
    if options.kv_heads and (heads % options.kv_heads or options.kv_heads % tensor):
        raise ValueError(
            f"kv_heads={options.kv_heads}: {name} has {heads} heads, so it must divide {heads} and "
            f"be divisible by mesh.tensor = {tensor}"
        )
    if options.kv_heads and options.kv_heads == heads:
        raise ValueError(f"kv_heads={heads}: {name} has {heads} heads anyway; set kv_heads=0")
    if options.global_every and support.layers % options.global_every:
        raise ValueError(
            f"global_every={options.global_every}: {name} has {support.layers} layers, so it must "
            f"divide {support.layers}"
        )
    for dimension, size, axis in support.divided:
        if size % devices[axis]:
            raise ValueError(
                f"{dimension} {size} cannot be divided over mesh.{axis} = {devices[axis]}; choose "
                f"a mesh.{axis} that divides it"
            )


def _check_effect(options: Options, variants: Sequence[str]) -> None:
    """Raises ValueError for an option that changes none of the variants."""
    modifiers = [{*variants_table.modifiers(variant)} for variant in variants]
    if options.global_every and not any("window" in names for names in modifiers):
        raise ValueError(
            f"global_every={options.global_every} says which layers ignore +window, and no "
            "variant has it; set global_every=0"
        )
    rotated = [not names.isdisjoint(("rope", "alibi")) for names in modifiers]
    if options.positions == "none" and rotated and all(rotated):
        raise ValueError(
            "positions='none': every variant has +rope or +alibi, with which nothing is added to "
            "the embeddings anyway; set positions='sinusoids'"
        )


def check_decoder(name: str) -> None:
    """Raises ValueError if a workload's model does not predict the next token of a text."""
    if not get(name).support.decoder:
        raise ValueError(
            f"{name} is no decoder: its model does not say how probable a text's continuation is, "
            f"which suites ask; workloads that can be evaluated: {', '.join(DECODERS)}"
        )


def paper_rows(name: str) -> tuple[str, ...]:
    """Returns the variants of the paper's table that a workload can have: eight, six for speech."""
    lacks = {lack for lack, _ in get(name).support.lacks}
    return tuple(
        row for row in variants_table.PAPER_ROWS if not lacks & {*variants_table.modifiers(row)}
    )


def data_module(name: str) -> Any:
    """Returns the module or object with a workload's `check(data_dir, **paths)` and `prepare`.

    A row may name a class: an instance is made from the workload's name. Loads no JAX. Raises
    ValueError as `resolve` does.
    """
    data = resolve(name, get(name).data)
    if not hasattr(data, "check") or not hasattr(data, "prepare"):
        raise ValueError(f"workload {name!r}: its row's data has no check and prepare: {data!r}")
    return data(name) if isinstance(data, type) else data


def resolve(name: str, target: str) -> Any:
    """Returns the module or object of a workload's row, 'module' or 'module:object'.

    Raises ValueError if a user's row names something that cannot be imported.
    """
    try:
        return pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError) as error:
        if not module_of(name):
            raise
        raise ValueError(f"workload {name!r}: its row names {target!r}: {error}") from error


def default_data_dir(name: str, environment: Mapping[str, str] = os.environ) -> pathlib.Path:
    """Returns the data directory of a workload if there is no --data_dir.

    It is $ATTNPERF_DATA/<data_name>, else a folder of the user's cache.
    """
    folder = get(name).data_name or name
    root = environment.get(DATA_VARIABLE)
    if root:
        try:
            return files.typed_path(root) / folder
        except files.PathError as error:
            raise ValueError(f"{DATA_VARIABLE}: {error}") from error
    return machine.cache_folder(environment) / "data" / folder
