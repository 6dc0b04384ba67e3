"""`python -m sweeps tensors TRIAL_DIR`: q, k, v of a trained trial, for `attention reconstruct`.

The last checkpoint is restored, and the forward pass of its diagnostics (that of training without
dropout) is run once on the first examples of its seed's step-0 batch. Nothing is trained, and
nothing in the trial's directory is changed. The file's format:
attention/verification/cached_tensors.py.
"""

import math
import pathlib
from typing import Any

import jax
import numpy as np

from attention import files
from attention.hosts.probe import Layer
from attention.kernels.inputs import per_query_head
from attention.verification import cached_tensors
from sweeps.records import layout, provenance, status
from sweeps.study import trial
from sweeps.study.trial import Trial
from sweeps.training import checkpoints, diagnostics, train_step


def dump(
    directory: pathlib.Path, out: pathlib.Path, examples: int, data_dir: pathlib.Path | None = None
) -> dict[str, Any]:
    """Writes the file and returns its `about`: trial, step, dtype of the arrays, scales.

    data_dir: where the trial's data lie, by default where they lay when it was trained. Raises
    ValueError where the trial has no checkpoint, is running, or has fewer examples in a batch.
    """
    record = _record(directory, examples)
    files.check_output(out)
    provenance.pin_options()
    step_function = train_step.of_trial(record)
    with train_step.precise(record.matmul_precision):
        step = layout.checkpoint_steps(directory)[-1]
        workload = step_function.workload
        params, model_state = checkpoints.restore_trained(record, directory, step, workload)
        where = str(data_dir or _data_dir(directory))
        queue = workload._build_input_queue(record.seed, "train", where, record.batch_size)
        probe = diagnostics.of(step_function)
        batch = probe.first(next(queue), examples)
        layers: list[Layer] = jax.device_get(probe.observe(params, model_state, batch))
    about = {
        "trial": record.id,
        "workload": record.workload,
        "variant": record.variant,
        "seed": record.seed,
        "global_step": step,
        "examples": examples,
        "dtype": str(layers[0].query.dtype),
        "stored": "float32; a query is multiplied by its scale times the root of its head size, "
        "so that 1/root(D) is the scale of all",
        "scales": [layer.scale for layer in layers],
    }
    arrays = {
        name: _arrays(name, layer) for name, layer in zip(_names(layers), layers, strict=True)
    }
    cached_tensors.write(out, arrays, about)
    return about | {"layers": len(layers)}


def _record(directory: pathlib.Path, examples: int) -> Trial:
    if not (directory / layout.TRIAL).is_file():
        raise ValueError(f"{directory} is no trial: it has no {layout.TRIAL}")
    record = trial.read(directory)
    if not 1 <= examples <= record.batch_size:
        raise ValueError(f"--examples={examples}: a batch has 1 to {record.batch_size}")
    if not layout.checkpoint_steps(directory):
        raise ValueError(f"{directory} has no checkpoint yet; train it first")
    if status.read(directory)["state"] == "running":
        # Its last checkpoint is soon another one's predecessor, and removed.
        raise ValueError(f"{directory} is running; wait for its end, or cancel its study")
    return record


def _data_dir(directory: pathlib.Path) -> str:
    """Returns the data directory of the trial's last attempt."""
    notes = sorted(directory.glob("meta_data_*.json"), key=lambda path: path.stat().st_mtime)
    if not notes:
        raise ValueError(f"{directory} does not say where its data lie; give --data_dir")
    return str(layout.record(notes[-1], data_dir=str)["data_dir"])


def _names(layers: list[Layer]) -> list[str]:
    """Returns a name for each call: its module's path, with a number where that is not enough."""
    paths = [layer.path for layer in layers]
    return [
        path if path and paths.count(path) == 1 else f"{path}#{index}"
        for index, path in enumerate(paths)
    ]


def _arrays(name: str, layer: Layer) -> dict[str, Any]:
    """Returns what the file holds of a layer."""
    pairs = layer.masks.pairs
    if layer.query.ndim != 4:
        raise ValueError(f"{name}: its queries are {layer.query.shape}, not [examples, T, H, D]")
    if layer.score:
        raise ValueError(f"{name} changes its logits, for which the file has no place")
    visible = np.broadcast_to(True if pairs is None else pairs, layer.shape)
    bias = layer.bias.whole()
    if bias is not None and np.any(np.broadcast_to(bias, layer.shape)[visible] != 0):
        raise ValueError(f"{name} adds a bias to its logits, for which the file has no place")
    factor = layer.scale * math.sqrt(layer.query.shape[-1])
    query = np.asarray(layer.query, np.float32)
    return {
        "query": query if math.isclose(factor, 1, rel_tol=1e-6) else query * np.float32(factor),
        "key": per_query_head(layer.query, layer.key),
        "value": per_query_head(layer.query, layer.value),
        "visibility": None
        if pairs is None
        else np.reshape(pairs, (1,) * (4 - pairs.ndim) + pairs.shape),
    }
