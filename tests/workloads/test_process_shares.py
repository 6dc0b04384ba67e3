"""Two processes load their shares of one batch: losses and metrics of one process with two devices.

A speech model with the batch divided over processes, a language model divided over them.
"""

import dataclasses
import itertools
import json

import jax
import numpy as np
import pytest

from sweeps.distributed import process_group
from sweeps.launchers import local
from tests.python_processes import start_python
from tests.workloads import short_training, small_speech, small_text
from tests.workloads.conftest import result_of
from workloads.base import loader, sharding

# --- rows of a batch, made without the others ---


def _noisy(record, generator):
    return {"tokens": record["tokens"] + generator.integers(0, 9, small_text.TINY.context)}


@pytest.mark.parametrize("make", [loader.train_batches, loader.eval_batches])
def test_rows_are_those_of_the_whole_batch(make):
    """Of the third batch of four, of nine examples in evaluations: one row, and three of zeros."""
    seed = {"seed": 3} if make is loader.train_batches else {}
    options = {"batch_size": 4, "transform": _noisy, **seed}
    spans = [None, slice(0, 2), slice(2, 3), slice(3, 4)]
    streams = [make(small_text.records("test"), rows=rows, **options) for rows in spans]
    for _ in range(3):
        whole, *parts = [next(stream) for stream in streams]
        for name, array in whole.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), array)
            assert {part[name].dtype for part in parts} == {array.dtype}
    for stream in streams:
        stream.close()


# --- two processes ---


def _train(workload, data_dir):
    """Two steps and an evaluation."""
    queue = workload._build_input_queue(0, "train", data_dir, 4)
    _, state, losses = short_training.train(workload, itertools.islice(queue, 2))
    metrics = workload._eval_model_on_split(
        "validation",
        workload.eval_batch_size,
        state.params,
        state.model_state,
        jax.random.key(0),
        data_dir,
    )
    return [*itertools.chain(*losses), *(metrics[name] for name in sorted(metrics))]


def measure(folder):
    """Prints the losses, gradient norms and metrics of each workload, by this process's group."""
    process_group.join()
    size = dataclasses.replace(small_text.TINY, layers=1)
    made = (
        small_text.make("pydoc_lm", "laser", size, mesh=(1, 2, 1)),
        small_speech.make(),
    )
    print(json.dumps([_train(workload, folder) for workload in made]))


@pytest.mark.nightly
def test_two_processes_train_as_one(tmp_path):
    """Within rounding: XLA may add up parts of a sum in another order across processes."""
    folder = small_speech.write(tmp_path)
    code = f"from tests.workloads import test_process_shares as t; t.measure({folder!r})"
    (port,) = local.free_ports(1)
    alone, _ = result_of(start_python(code, devices=2))
    two = [
        start_python(
            code,
            ATTNPERF_COORDINATOR=f"127.0.0.1:{port}",
            ATTNPERF_NUM_PROCESSES="2",
            ATTNPERF_PROCESS_ID=str(number),
        )
        for number in range(2)
    ]
    (first, _), (second, _) = map(result_of, two)
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
