"""Two processes load their shares of one batch: losses and metrics of one process with two devices.

In each domain, with the batch divided over processes and with the model divided over them.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from attention import registry as variants
from sweeps.distributed import process_group
from sweeps.launchers import local
from sweeps.training import train_step
from tests.workloads import small_speech
from workloads import catalog
from workloads.base import loader, sharding
from workloads.base.options import Options
from workloads.base.workload import Sizes
from workloads.text.language_models import BertWorkload, LMWorkload
from workloads.text.specs import TransformerSize

HERE = pathlib.Path(__file__).resolve()
TINY = TransformerSize(1, 16, 32, 4, 8, vocabulary=64, context=16)
POINT = {
    "learning_rate": 1e-2, "one_minus_beta1": 0.1, "beta2": 0.99, "epsilon": 1e-8,
    "weight_decay": 0.1, "label_smoothing": 0.1, "dropout_rate": 0.1, "grad_clip": np.inf,
    "warmup_steps": 1.0, "step_hint": 10.0,
}  # fmt: skip


# --- rows of a batch, made without the others ---


def _records(count):
    random = np.random.default_rng(count)
    shape = (count, TINY.context)
    return [{"tokens": row} for row in random.integers(4, TINY.vocabulary, shape)]


def _noisy(record, generator):
    return {"tokens": record["tokens"] + generator.integers(0, 9, TINY.context)}


@pytest.mark.parametrize("make", [loader.train_batches, loader.eval_batches])
def test_rows_are_those_of_the_whole_batch(make):
    """Of the third batch of four, of nine examples in evaluations: one row, and three of zeros."""
    seed = {"seed": 3} if make is loader.train_batches else {}
    options = {"batch_size": 4, "transform": _noisy, **seed}
    spans = [None, slice(0, 2), slice(2, 3), slice(3, 4)]
    streams = [make(_records(9), rows=rows, **options) for rows in spans]
    for _ in range(3):
        whole, *parts = [next(stream) for stream in streams]
        for name, array in whole.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), array)
            assert {part[name].dtype for part in parts} == {array.dtype}
    for stream in streams:
        stream.close()


# --- two processes ---


def _text(kind, name, mesh):
    workload = kind(
        catalog.get(name), variants.get("laser"), Options(mesh=mesh), TINY, Sizes(8, 4, 5, 5, 4)
    )
    workload._cached.sources |= {("train", "-"): _records(8), ("validation", "-"): _records(5)}
    return workload, "-"


def _train(workload, data_dir):
    """Two steps and an evaluation."""
    step_function = train_step.TrainStep(workload, "adamw")
    state, key = step_function.first_state(0), train_step.seed_key(0, train_step.DROPOUT)
    scalars = {name: jax.numpy.float32(value) for name, value in POINT.items()}
    queue, measured = workload._build_input_queue(0, "train", data_dir, 4), []
    for _ in range(2):
        batch = next(queue)
        update = step_function.compile(state, batch, scalars, key)
        state, step_metrics = update(state, batch, scalars, key)
        measured += [float(step_metrics.loss), float(step_metrics.grad_norm)]
    size = workload.eval_batch_size
    metrics = workload._eval_model_on_split(
        "validation", 5, size, state.params, state.model_state, key, data_dir
    )
    queue.close() if hasattr(queue, "close") else None
    return measured + [metrics[name] for name in sorted(metrics)]


def measure(folder):
    """Prints the losses, gradient norms and metrics of each workload, by this process's group."""
    process_group.join()
    made = (
        _text(LMWorkload, "pydoc_lm", (1, 2, 1)),
        _text(BertWorkload, "pydoc_bert", (0, 1, 1)),
        _text(LMWorkload, "pydoc_lm", (1, 1, 2)),
        (small_speech.make(), folder),
    )
    print("RESULT", json.dumps([_train(*each) for each in made]), flush=True)


def _start(folder, **extra):
    code = f"import sys; sys.path.insert(0, {str(HERE.parent)!r})"
    code += f"; import {HERE.stem} as t; t.measure({folder!r})"
    flags = f"{os.environ['XLA_FLAGS']} {extra.pop('flags', '')}"
    environment = {
        **os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": str(HERE.parents[2])
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, **extra},
    )


def _result(process):
    out, errors = process.communicate()
    line = next((x for x in out.splitlines() if x.startswith("RESULT")), None)
    assert line, errors[-2000:]
    return json.loads(line.removeprefix("RESULT "))


@pytest.mark.slow
def test_every_domain_trains_alike_in_two_processes(tmp_path):
    """Within rounding: XLA may add up parts of a sum in another order across processes."""
    folder = small_speech.write(tmp_path)
    (port,) = local.free_ports(1)
    alone = _result(_start(folder, flags="--xla_force_host_platform_device_count=2"))
    two = [
        _start(
            folder,
            ATTNPERF_COORDINATOR=f"127.0.0.1:{port}",
            ATTNPERF_NUM_PROCESSES="2",
            ATTNPERF_PROCESS_ID=str(number),
        )
        for number in range(2)
    ]
    first, second = map(_result, two)
    assert first == second
    for ours, theirs in zip(first, alone, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@dataclasses.dataclass(frozen=True)
class _Chip:
    """A TPU's chip, as a mesh looks at it."""

    id: int
    process_index: int
    slice_index: int
    platform: str = "tpu"
    device_kind: str = "TPU v4"
    client: None = None


def test_data_alone_crosses_slices():
    """Processes of two slices come mixed; a group that shares parameters is of one slice."""
    chips = tuple(_Chip(number, number // 4, (number // 4) % 2) for number in range(16))
    groups = sharding.mesh((0, 4, 2), chips).devices.reshape(2, 8)
    assert [{chip.slice_index for chip in group} for group in groups] == [{0}, {1}]
    with pytest.raises(ValueError, match=r"groups of 16 devices in more than one of the 2 slices"):
        sharding.mesh((0, 16, 1), chips)
