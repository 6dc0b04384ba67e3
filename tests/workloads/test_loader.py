"""Batches: a pure function of (seed, step), whoever computes them and wherever reading starts."""

import functools
import gc
import itertools
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from multiprocessing import connection
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from attention.common import machine
from tests.sweeps.waiting import wait
from tests.workloads.conftest import REPOSITORY
from workloads.base import loader, sources
from workloads.base.errors import DataError
from workloads.images import images

SHIFT = functools.partial(images.shifted_view, max_shift=2)
PLAIN = images.shifted_view

Batch = dict[str, np.ndarray]


class Pictures:
    """`size` distinct pictures as PNG; the label is the number."""

    def __init__(self, size: int) -> None:
        pictures = np.random.default_rng(0).integers(0, 256, (size, 6, 5, 3), np.uint8)
        self._encoded = [cv2.imencode(".png", picture)[1].tobytes() for picture in pictures]

    def __len__(self) -> int:
        return len(self._encoded)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"image": self._encoded[number], "label": number}


def _train(
    count: int,
    start_step: int = 0,
    source: sources.Source | None = None,
    seed: int = 1,
    batch_size: int = 4,
    transform: loader.Transform = SHIFT,
) -> list[Batch]:
    with loader.train_batches(
        source or Pictures(23),
        seed=seed,
        batch_size=batch_size,
        transform=transform,
        start_step=start_step,
    ) as stream:
        return [next(stream) for _ in range(count)]


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = []
    for count in (1, 3):
        monkeypatch.setattr(machine, "cpu_count", lambda count=count: count)
        batches.append(_train(12, 2))
    np.testing.assert_equal(*batches)


@pytest.mark.slow
def test_worker_processes_change_nothing_and_end_with_the_stream(started_processes) -> None:
    stream = loader.train_batches(
        Pictures(23), seed=1, batch_size=4, transform=SHIFT, start_step=5, num_workers=2
    )
    np.testing.assert_equal([next(stream) for _ in range(5)], _train(5, 5))
    assert len(started_processes) == 2
    stream.close()
    for worker in started_processes:
        worker.join(10)
        assert not worker.is_alive()
    with pytest.raises(ValueError, match="closed"):
        next(stream)


def test_every_epoch_holds_each_example_once_in_another_order() -> None:
    batches = _train(23, batch_size=4)  # 23 batches of 4 are 4 epochs of 23
    labels = np.concatenate([batch["targets"] for batch in batches]).reshape(4, 23)
    assert all(sorted(epoch) == list(range(23)) for epoch in labels)
    assert len({tuple(epoch) for epoch in labels}) == 4


def test_seeds_and_epochs_share_no_order() -> None:
    orders = Counter(
        tuple(
            label
            for batch in _train(3, step, seed=seed, source=Pictures(6), batch_size=2)
            for label in batch["targets"]
        )
        for seed in range(8)
        for step in (0, 3, 6)
    )  # 24 draws of 720 orders: a repeated seed-plus-epoch would show up many times
    assert max(orders.values()) <= 2


def test_augmentation_differs_by_seed_epoch_and_example() -> None:
    source = [Pictures(1)[0]] * 12
    shift = functools.partial(images.shifted_view, max_shift=5)
    batches = [*_train(2, seed=0, source=source, batch_size=12, transform=shift)]
    batches += _train(1, seed=1, source=source, batch_size=12, transform=shift)
    pictures = {picture.tobytes() for batch in batches for picture in batch["inputs"]}
    assert len(pictures) > 25  # 36 draws of 121 shifts


@pytest.mark.parametrize(("count", "batches"), [(10, 3), (12, 3), (1, 1), (None, 6)])
def test_evaluation_sees_each_example_once_in_order(count: int | None, batches: int) -> None:
    source = Pictures(23)
    with loader.eval_batches(source, batch_size=4, transform=PLAIN, num_examples=count) as stream:
        evaluated = list(stream)
    assert len(evaluated) == batches
    assert {batch["inputs"].shape for batch in evaluated} == {(4, 6, 5, 3)}
    inputs, labels, weights = (
        np.concatenate([batch[name] for batch in evaluated])
        for name in ("inputs", "targets", "weights")
    )
    number = 23 if count is None else count
    filling = [0] * (4 * batches - number)
    assert (labels.dtype, weights.dtype) == (np.int32, np.float32)
    assert weights.tolist() == [1] * number + filling
    assert labels.tolist() == [*range(number), *filling]
    expected = [images.decode(source[label]["image"]) for label in range(number)]
    np.testing.assert_array_equal(inputs[:number], expected)
    assert not inputs[number:].any()


@pytest.mark.slow
def test_workers_that_came_to_the_end_leave_no_shared_memory() -> None:
    def shared() -> int:
        return Path("/proc/self/maps").read_text().count("/dev/shm/psm_")

    large = [{"image": np.zeros((1024, 1024, 1), np.uint8), "label": 0}] * 8  # a megabyte each
    gc.collect()
    gc.disable()
    before = shared()
    try:
        with loader.eval_batches(large, batch_size=4, transform=PLAIN, num_workers=2) as stream:
            batches = list(stream)
        assert len(batches) == 2
        # grain unmaps in threads.
        wait(lambda: shared() <= before, "no shared memory", 10)
    finally:
        gc.enable()


def test_the_fixed_subset_is_fixed_and_mixed() -> None:
    labels = [
        [record["label"] for record in map(subset.__getitem__, range(len(subset)))]
        for subset in (sources.fixed_subset(Pictures(10), count) for count in (6, 10))
    ]
    # numpy.random.RandomState(0).permutation(10), whose stream NumPy has frozen.
    assert labels == [[2, 8, 4, 9, 1, 6], [2, 8, 4, 9, 1, 6, 7, 3, 0, 5]]
    with pytest.raises(DataError, match="has 10 examples; 11 are"):
        sources.fixed_subset(Pictures(10), 11)


class Damaged(Pictures):
    """Number 3 is no image."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        return super().__getitem__(number) | ({"image": b"junk"} if number == 3 else {})

    def __str__(self) -> str:
        return "damaged pictures"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_is_named(workers: int) -> None:
    with (
        loader.eval_batches(
            Damaged(6), batch_size=2, transform=PLAIN, num_workers=workers
        ) as stream,
        pytest.raises(DataError, match=r"damaged pictures: example 3: 4 bytes .* no JPEG or PNG"),
    ):
        list(stream)


@pytest.mark.parametrize(("size", "count"), [(23, 24), (0, None), (0, 0)])
def test_an_evaluation_of_more_examples_than_there_are_is_refused(size: int, count: Any) -> None:
    with pytest.raises(DataError, match=f"has {size} examples"):
        loader.eval_batches(Pictures(size), batch_size=2, transform=PLAIN, num_examples=count)


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGBUS, signal.SIGKILL])
def test_a_death_for_lack_of_memory_says_what_to_do(signal_number, started_processes) -> None:
    """SIGBUS: Docker's /dev/shm of 64 MB is full; SIGKILL: the memory limit of a job."""
    stream = loader.train_batches(
        Pictures(23), seed=1, batch_size=4, transform=SHIFT, num_workers=1
    )
    size = sum(array.nbytes for array in next(stream).values())
    (worker,) = started_processes
    os.kill(worker.pid, signal_number)
    for _ in range(2):  # and again, when asked again
        with pytest.raises((RuntimeError, ValueError), match="loader_workers") as death:
            list(itertools.islice(stream, 20))
    stream.close()
    if signal_number == signal.SIGBUS:  # a retry would end the same
        assert death.type is ValueError
        assert f"{size / 2**20:,.1f} MiB" in str(death.value)
        assert "--shm-size" in str(death.value)


@pytest.mark.nightly
def test_a_forgotten_stream_ends_its_workers_whichever_thread_finds_it(started_processes) -> None:
    """Garbage is collected in any thread, also in the one that takes batches over."""
    stream = loader.train_batches(
        Pictures(23), seed=1, batch_size=4, transform=SHIFT, num_workers=2
    )
    next(stream)
    assert len(started_processes) == 2
    iterators = stream._open  # else grain's would be collected, too
    assert stream._thread is not None
    stream._thread.submit(stream._end).result(20)  # as the collector would, from there
    for worker in started_processes:
        # No join: grain's thread joins it, too, and of two threads one may be told that it lives.
        assert connection.wait([worker.sentinel], 20)
    assert iterators == []


@pytest.mark.slow
def test_a_forgotten_stream_ends_its_threads() -> None:
    stream = loader.train_batches(Pictures(5), seed=0, batch_size=2, transform=SHIFT)
    next(stream)
    assert any(thread.name.startswith("grain-prefetch") for thread in threading.enumerate())
    del stream
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("grain-prefetch"):
            thread.join(10)
            assert not thread.is_alive()


SCRIPT = """
    import numpy as np
    from workloads.base import loader
    from workloads.images import images

    class Noise:
        def __len__(self): return 9
        def __getitem__(self, number):
            return {"image": np.full((4, 4, 3), number, np.uint8), "label": number}

    def main():
        stream = loader.train_batches(
            Noise(), seed=0, batch_size=3, num_workers=2,
            transform=images.shifted_view,
        )
        batch = next(stream)
        print(batch["targets"].shape)
        globals()["kept"] = stream, batch  # ends without close()
"""


ENVIRONMENT = {"PYTHONPATH": str(REPOSITORY), "PATH": ""}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("ending", "output", "error"),
    [
        ("if __name__ == '__main__':\n    main()\n", "(3,)\n", "^$"),  # nothing is left behind
        ("main()\n", "", "if __name__ == '__main__':"),
    ],
)
def test_a_program_ends_without_closing_or_is_told_of_the_main_guard(
    tmp_path: Path, ending: str, output: str, error: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT) + ending)
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=100)
    assert (done.returncode == 0, done.stdout) == (bool(output), output)
    assert re.search(error, done.stderr)


@pytest.mark.slow
def test_workers_end_with_a_program_that_is_killed(tmp_path: Path) -> None:
    """Else they keep what they hold, gigabytes of shared memory; the next attempt adds its own."""
    script = tmp_path / "script.py"
    ending = "\nif __name__ == '__main__':\n    main()\n    input()\n"
    script.write_text(textwrap.dedent(SCRIPT).replace("shape)", "shape, flush=True)") + ending)
    with subprocess.Popen(
        [sys.executable, str(script)],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "(3,)\n"
        tasks = Path(f"/proc/{program.pid}/task").glob("*/children")
        started = [child for task in tasks for child in task.read_text().split()]
        program.kill()
    assert len(started) == 3  # two workers, and Python's own that looks after shared memory

    # A process that has ended has no program, also where nobody has asked for its exit code.
    wait(lambda: not any(Path(f"/proc/{child}/exe").exists() for child in started), "all ended", 30)
