"""Batches of examples, where the batch at a step is a pure function of (seed, step).

Worker processes, threads and the step that reading starts at change nothing but the speed: a
batch is computed from its number alone, and grain only runs that computation ahead of time.

The order of an epoch is a NumPy permutation from (seed, epoch). grain's own `shuffle` adds the
epoch to the seed, so that the second epoch of seed 0 is the first of seed 1, and trials that
should be independent would see each other's order. With grain's shuffle, random map and batch, an
example of digits_vit took 89 µs instead of 19, and a training step 6 % longer.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import gc
import shutil
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cv2
import grain
import numpy as np
from absl import flags

from workloads.base import machine
from workloads.base.errors import DataError
from workloads.base.sources import Source

Transform = Callable[[dict[str, Any], np.random.Generator], dict[str, Any]]

# Purposes of random draws, so that no two of them share a stream.
_ORDER, _AUGMENT, _EVAL = 1, 2, 3
_ENDLESS = 2**48
_SHARED_MEMORY = "/dev/shm"
_HELD = 3  # batches that a worker process holds in shared memory: a buffer of two and the next
_ORDER_LOCK = threading.Lock()


class BatchStream(Iterator[dict[str, np.ndarray]], contextlib.AbstractContextManager[Any]):
    """`batches[start]`, `batches[start + 1]`, … made ahead by threads or worker processes.

    With `num_workers` > 0 the batches object is pickled to each worker, of which there are no more
    than batches, and each imports the main script again: what the script does belongs under
    `if __name__ == "__main__":`. `num_threads` is described at `train_batches`. Batches are the
    caller's own, and nothing of one is copied in its thread. `close()`, or the end of a `with`
    statement, ends them all.
    """

    def __init__(
        self,
        batches: "TrainBatches | EvalBatches",
        start: int,
        num_workers: int,
        num_threads: int | None,
    ) -> None:
        cv2.setNumThreads(0)  # one image per thread is faster than many threads per image
        data = grain.MapDataset.source(batches).slice(slice(start, len(batches)))
        num_workers = min(num_workers, len(data))
        if num_threads is None:
            num_threads = 1 if num_workers else min(machine.cpu_count(), 16)
        dataset = data.to_iter_dataset(
            grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=num_threads)
        )
        if num_workers:  # batch n comes from worker n mod `num_workers`
            if not flags.FLAGS.is_parsed():  # grain reads its absl flags in the workers
                flags.FLAGS.mark_as_parsed()
            options = grain.MultiprocessingOptions(num_workers, per_worker_buffer_size=_HELD - 1)
            dataset = dataset.mp_prefetch(options, worker_init_fn=_start_worker)
        self._open = [iter(dataset)]
        # Takes the next batch out of the workers' memory: 33 ms for 154 MB of ImageNet's images.
        # (grain's ThreadPrefetchIterDataset would start the workers one after the other.)
        self._thread = concurrent.futures.ThreadPoolExecutor(1) if num_workers else None
        self._left, self._batches = len(data), batches
        self._ahead: concurrent.futures.Future[dict[str, np.ndarray]] | None = None
        # When the stream is forgotten, and when the interpreter ends: grain's own clean-up comes
        # too late then, and would leave processes and shared memory behind.
        self._end = weakref.finalize(self, _forgotten, self._open, self._thread)

    def __next__(self) -> dict[str, np.ndarray]:
        if not self._open:
            raise ValueError("this stream of batches is closed")
        if self._thread is None:
            return next(self._open[0])
        if not self._left:
            raise StopIteration
        if self._ahead is None:
            self._ahead = self._thread.submit(_owned, self._open[0])
        try:
            batch = self._ahead.result()
        except RuntimeError as death:
            self._explain(str(death))
            raise
        self._left -= 1
        self._ahead = self._thread.submit(_owned, self._open[0]) if self._left else None
        return batch

    def _explain(self, death: str) -> None:
        """Raises what a worker's death by a signal says of memory; grain gives the code alone."""
        if "exit code -9" in death:
            raise RuntimeError(
                f"{death} It was killed, perhaps for lack of memory: raise the memory limit of the "
                "job or container, or set a smaller loader_workers"
            )
        if "exit code -7" in death:
            made = self._batches
            example = _batch(made.source, [0], made.transform, made.key, 0)
            rows = made.rows.stop - made.rows.start
            size = rows * sum(array.nbytes for array in example.values()) / 2**20
            limit = shutil.disk_usage(_SHARED_MEMORY).total / 2**20
            raise ValueError(
                f"a loader worker died: {_SHARED_MEMORY} has {limit:,.0f} MiB, and each worker "
                f"holds up to {_HELD} batches of {size:,.1f} MiB there. Give the container more "
                "(docker run --shm-size=…), or set loader_workers=0"
            )

    def close(self) -> None:
        """End threads and worker processes; harmless when repeated."""
        _close(self._open, self._thread)
        self._end.detach()
        self._ahead = None

    def __exit__(self, *problem: object) -> None:
        self.close()


def _close(iterators: list[Any], thread: concurrent.futures.Executor | None) -> None:
    if thread is not None:
        thread.shutdown(cancel_futures=True)
    while iterators:
        iterators.pop().close()
        if thread is not None:
            # A worker's last batch stays with the frame that met the end, in a circle of
            # references: 308 MB of shared memory a worker after an evaluation of ImageNet.
            gc.collect()


def _forgotten(iterators: list[Any], thread: concurrent.futures.Executor | None) -> None:
    if threading.current_thread() is threading.main_thread():
        _close(iterators, thread)
    else:  # garbage is collected in any thread, also in one that `_close` waits for
        threading.Thread(target=_close, args=(iterators, thread)).start()


def _owned(batches: Iterator[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """A worker's arrays lie in shared memory that leaks if the program ends while one is held."""
    return {name: np.array(array) for name, array in next(batches).items()}


def _start_worker(worker: int, workers: int) -> None:
    del worker, workers
    # An engine may tell a whole job to stop: these serve until the trial is saved, and are closed.
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    machine.end_with_parent()
    cv2.setNumThreads(0)


def train_batches(
    source: Source,
    *,
    seed: int,
    batch_size: int,
    transform: Transform,
    start_step: int = 0,
    rows: slice | None = None,
    num_workers: int = 0,
    num_threads: int | None = None,
) -> BatchStream:
    """Endless shuffled batches: each entry of the transformed examples, stacked to `[B, ...]`.

    Of images: `{"inputs": uint8 [B, H, W, 3], "targets": int32 [B]}`.

    Every epoch holds each example once, in an order of its own; a batch may span two epochs.
    `transform(record, generator)` returns the arrays and numbers of one example and draws all its
    randomness from the generator, which belongs to (seed, position in the stream) and must not be
    kept. It must be picklable if `num_workers` > 0.

    `rows` (None: all): those of each batch that are made, where several processes share one.

    `num_threads` (None: the CPUs this process may use, at most 16; in worker processes 1) batches
    are made at a time, so as many lie in memory; 0 makes each when it is asked for. Close the
    stream, or use it in a `with` statement, to end its threads and worker processes.
    Raises ValueError for an empty source, a batch_size below 1, a seed or start_step below 0.
    """
    _check_positive(batch_size=batch_size, examples=len(source))
    for name, number in (("seed", seed), ("start_step", start_step)):
        if number < 0:
            raise ValueError(f"{name} is {number}; it must be 0 or more")
    rows = rows or slice(0, batch_size)
    batches = TrainBatches(source, transform, batch_size, rows, _key(seed, _AUGMENT), seed)
    return BatchStream(batches, start_step, num_workers, num_threads)


def eval_batches(
    source: Source,
    *,
    batch_size: int,
    transform: Transform,
    num_examples: int | None = None,
    rows: slice | None = None,
    num_workers: int = 0,
    num_threads: int | None = None,
) -> BatchStream:
    """The first `num_examples` examples (None: all) once, in order, in batches of one shape.

    Batches are as `train_batches` gives them, plus `"weights"` float32 `[B]`: 1 for an example,
    0 for the zeros that fill up the last batch. `rows` as at `train_batches`.
    """
    count = len(source) if num_examples is None else num_examples
    _check_positive(batch_size=batch_size, num_examples=count)
    if count > len(source):
        raise ValueError(f"num_examples is {count}, but {source} has {len(source)} examples")
    rows = rows or slice(0, batch_size)
    batches = EvalBatches(source, transform, batch_size, rows, _key(0, _EVAL), count)
    return BatchStream(batches, 0, num_workers, num_threads)


@dataclasses.dataclass(frozen=True, eq=False)
class _Batches:
    """What batches are made of; key: of the generators that transforms draw from."""

    source: Source
    transform: Transform
    batch_size: int
    rows: slice
    key: int


@dataclasses.dataclass(frozen=True, eq=False)
class TrainBatches(_Batches):
    """`batches[step]`: the training batch of a step, computed from (seed, step) alone."""

    seed: int

    def __len__(self) -> int:
        return _ENDLESS

    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        first = step * self.batch_size
        positions = range(first + self.rows.start, first + self.rows.stop)
        indices = [self._index(position) for position in positions]
        return _batch(self.source, indices, self.transform, self.key, positions.start)

    def _index(self, position: int) -> int:
        epoch, place = divmod(position, len(self.source))
        with _ORDER_LOCK:  # the permutation of a large set takes seconds and half a gigabyte
            order = _epoch_order(self.seed, epoch, len(self.source))
        return int(order[place])


@dataclasses.dataclass(frozen=True, eq=False)
class EvalBatches(_Batches):
    """`batches[n]`: examples `n·B … (n + 1)·B - 1` in order, the last batch filled with zeros."""

    num_examples: int

    def __len__(self) -> int:
        return -(-self.num_examples // self.batch_size)

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        first = number * self.batch_size
        start = first + self.rows.start
        count = max(0, min(first + self.rows.stop, self.num_examples) - start)
        # Without an example of its own, a process takes its zeros' shapes from the batch's first.
        indices = range(start, start + count) if count else range(first, first + 1)
        batch = _batch(self.source, indices, self.transform, self.key, indices.start)
        batch = {name: array[:count] for name, array in batch.items()}
        batch["weights"] = np.ones(count, np.float32)
        size = self.rows.stop - self.rows.start
        return {name: _padded(array, size) for name, array in batch.items()}


def _batch(
    source: Source, indices: Sequence[int], transform: Transform, key: int, position: int
) -> dict[str, np.ndarray]:
    """The transformed examples at `indices`; the first one is at `position` of the stream."""
    generator = np.random.Generator(np.random.Philox(key=key))
    start = generator.bit_generator.state
    examples = []
    for offset, index in enumerate(indices):
        # The generator is set to a block of its own for every position, so a draw depends on
        # (key, position) alone. A new generator each time would take 12 µs instead of 3.
        start["state"]["counter"] = np.array([0, 0, 0, position + offset], np.uint64)
        generator.bit_generator.state = start
        examples.append(_example(source, index, transform, generator))
    return {name: _stacked([example[name] for example in examples]) for name in examples[0]}


def _stacked(values: list[Any]) -> np.ndarray:
    """One array of an entry's values; Python's and NumPy's default integers become int32."""
    array = np.stack([np.asarray(value) for value in values])
    return array.astype(np.int32) if array.dtype == np.int64 else array


def _example(
    source: Source, index: int, transform: Transform, generator: np.random.Generator
) -> dict[str, Any]:
    record = source[index]
    try:
        return transform(record, generator)
    except DataError as problem:
        raise DataError(f"{source}: example {index}: {problem}") from problem


def _padded(array: np.ndarray, size: int) -> np.ndarray:
    missing = size - len(array)
    if not missing:
        return array
    return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])


@functools.lru_cache(maxsize=4)
def _epoch_order(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """The order of an epoch's examples; int32 `[num_examples]` (50 ms for ImageNet)."""
    sequence = np.random.SeedSequence([seed, _ORDER, epoch])
    generator = np.random.Generator(np.random.Philox(sequence))
    return generator.permutation(np.arange(num_examples, dtype=np.int32))


def _key(seed: int, purpose: int) -> int:
    """A 128-bit Philox key for one purpose."""
    low, high = np.random.SeedSequence([seed, purpose]).generate_state(2, np.uint64)
    return int(low) | int(high) << 64


def _check_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be 1 or more")
