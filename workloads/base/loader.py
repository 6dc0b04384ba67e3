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
import functools
import gc
import shutil
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cv2
import grain
import numpy as np
from absl import flags

from attention.common import machine
from workloads.base import sources
from workloads.base.errors import DataError

Transform = Callable[[dict[str, Any], np.random.Generator], dict[str, Any]]
# Returns the batch of a number; it can be pickled.
Make = Callable[[int], dict[str, np.ndarray]]
# Returns the batch of records' numbers, a key and the first one's position in the stream.
Read = Callable[[Sequence[int], int, int], dict[str, np.ndarray]]

# Purposes of random draws, so that no two of them share a stream.
_ORDER, _AUGMENT, _EVAL = 1, 2, 3
_ENDLESS = 2**48
_SHARED_MEMORY = "/dev/shm"
_HELD = 3  # batches that a worker process holds in shared memory: a buffer of two and the next
_ORDER_LOCK = threading.Lock()


class BatchStream(Iterator[dict[str, np.ndarray]], contextlib.AbstractContextManager[Any]):
    """`make(start)`, `make(start + 1)`, … up to `end`, made ahead by threads or worker processes.

    Without workers, as many batches are made at a time as there are CPUs that this process may use,
    at most 16, and so many lie in memory. With `num_workers` > 0 `make` is pickled to each worker,
    of which there are no more than batches, and each imports the main script again: what the script
    does belongs under `if __name__ == "__main__":`. Batches are the caller's own, and nothing of
    one is copied in its thread. `close()`, or the end of a `with` statement, ends them all.
    """

    def __init__(self, make: Make, start: int, end: int, num_workers: int) -> None:
        cv2.setNumThreads(0)  # one image per thread is faster than many threads per image
        data = grain.MapDataset.range(start, end).map(make)
        num_workers = min(num_workers, end - start)
        threads = 1 if num_workers else min(machine.cpu_count(), 16)
        dataset = data.to_iter_dataset(
            grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads)
        )
        if num_workers:  # batch n comes from worker n mod `num_workers`
            if not flags.FLAGS.is_parsed():  # grain reads its absl flags in the workers
                flags.FLAGS.mark_as_parsed()
            options = grain.MultiprocessingOptions(num_workers, per_worker_buffer_size=_HELD - 1)
            dataset = dataset.mp_prefetch(options, worker_init_fn=_start_worker)
        self._make, self._start = make, start
        self._open = [iter(dataset)]
        # Takes the next batch out of the workers' memory: 33 ms for 154 MB of ImageNet's images.
        # (grain's ThreadPrefetchIterDataset would start the workers one after the other.)
        self._thread = concurrent.futures.ThreadPoolExecutor(1) if num_workers else None
        self._ahead = self._taken_over()
        # When the stream is forgotten, and when the interpreter ends: grain's own clean-up comes
        # too late then, and would leave processes and shared memory behind.
        self._end = weakref.finalize(self, _end, self._open, self._thread)

    def _taken_over(self) -> concurrent.futures.Future[dict[str, np.ndarray] | None] | None:
        return self._thread.submit(_owned, self._open[0]) if self._thread else None

    def __next__(self) -> dict[str, np.ndarray]:
        if not self._open:
            raise ValueError("this stream of batches is closed")
        if self._ahead is None:
            return next(self._open[0])
        try:
            batch = self._ahead.result()
        except RuntimeError as death:
            self._explain(str(death))
            raise
        if batch is None:
            raise StopIteration
        self._ahead = self._taken_over()
        return batch

    def _explain(self, death: str) -> None:
        """Raises what a worker's death by a signal says of memory; grain gives the code alone."""
        if "exit code -9" in death:
            raise RuntimeError(
                f"{death} It was killed, perhaps for lack of memory: raise the memory limit of the "
                "job or container, or set a smaller loader_workers"
            )
        if "exit code -7" in death:
            batch = self._make(self._start)
            size = sum(array.nbytes for array in batch.values()) / 2**20
            limit = shutil.disk_usage(_SHARED_MEMORY).total / 2**20
            raise ValueError(
                f"a loader worker died: {_SHARED_MEMORY} has {limit:,.0f} MiB, and each worker "
                f"holds up to {_HELD} batches of {size:,.1f} MiB there. Give the container more "
                "(docker run --shm-size=…), or set loader_workers=0"
            )

    def close(self) -> None:
        """Ends threads and worker processes; harmless when repeated."""
        self._end()

    def __exit__(self, *problem: object) -> None:
        self._end()


def _close(iterators: list[Any], thread: concurrent.futures.Executor | None) -> None:
    if thread is not None:
        thread.shutdown(cancel_futures=True)
    while iterators:
        iterators.pop().close()
        if thread is not None:
            # A worker's last batch stays with the frame that met the end, in a circle of
            # references: 308 MB of shared memory a worker after an evaluation of ImageNet.
            gc.collect()


def _end(iterators: list[Any], thread: concurrent.futures.Executor | None) -> None:
    if threading.current_thread() is threading.main_thread():
        _close(iterators, thread)
    else:  # garbage is collected in any thread, also in one that `_close` waits for
        threading.Thread(target=_close, args=(iterators, thread)).start()


def _owned(batches: Iterator[dict[str, np.ndarray]]) -> dict[str, np.ndarray] | None:
    """Returns a copy of the next batch, None at the end: a worker's arrays lie in shared memory,
    which leaks if the program ends while one is held."""
    batch = next(batches, None)
    return batch and {name: np.array(array) for name, array in batch.items()}


def _start_worker(worker: int, workers: int) -> None:
    # An engine may tell a whole job to stop: these serve until the trial is saved, and are closed.
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    machine.end_with_parent()
    cv2.setNumThreads(0)


def train_batches(
    source: sources.Source,
    *,
    seed: int,
    batch_size: int,
    transform: Transform,
    start_step: int = 0,
    rows: slice | None = None,
    num_workers: int = 0,
    id_limits: Mapping[str, int] | None = None,
) -> BatchStream:
    """Endless shuffled batches: each entry of the transformed examples, stacked to `[B, ...]`.

    Of images: `{"inputs": uint8 [B, H, W, 3], "targets": int32 [B]}`.

    Every epoch holds each example once, in an order of its own; a batch may span two epochs.
    `transform(record, generator)` returns the arrays and numbers of one example and draws all its
    randomness from the generator, which belongs to (seed, position in the stream) and must not be
    kept. It must be picklable if `num_workers` > 0.

    `rows` (None: all): those of each batch that are made, where several processes share one.
    `id_limits`: entries that are ids of a model, and how many ids it has; a batch with an id below
    0 or not below that is a DataError when it is read. Close the stream, or use it in a `with`
    statement, to end its threads and worker processes.
    """
    rows = rows or slice(0, batch_size)
    read = functools.partial(_batch, source, transform, dict(id_limits or {}))
    make = functools.partial(_train_batch, read, len(source), batch_size, rows, seed)
    return BatchStream(make, start_step, _ENDLESS, num_workers)


def _train_batch(
    read: Read, size: int, batch_size: int, rows: slice, seed: int, step: int
) -> dict[str, np.ndarray]:
    first = step * batch_size
    positions = range(first + rows.start, first + rows.stop)
    indices = [_index(seed, size, position) for position in positions]
    return read(indices, _key(seed, _AUGMENT), positions.start)


def _index(seed: int, size: int, position: int) -> int:
    """The number of the example at a position of the stream of `size` examples."""
    epoch, place = divmod(position, size)
    with _ORDER_LOCK:  # the permutation of a large set takes seconds and half a gigabyte
        return int(_epoch_order(seed, epoch, size)[place])


def eval_batches(
    source: sources.Source,
    *,
    batch_size: int,
    transform: Transform,
    num_examples: int | None = None,
    rows: slice | None = None,
    num_workers: int = 0,
    id_limits: Mapping[str, int] | None = None,
) -> BatchStream:
    """The first `num_examples` examples (None: all) once, in order, in batches of one shape.

    Batches are as `train_batches` gives them, plus `"weights"` float32 `[B]`: 1 for an example,
    0 for the zeros that fill up the last batch. `rows` and `id_limits` as at `train_batches`.
    Raises DataError for a source that has fewer examples, or none.
    """
    count = len(source) if num_examples is None else num_examples
    sources.check_size(source, max(count, 1))
    rows = rows or slice(0, batch_size)
    read = functools.partial(_batch, source, transform, dict(id_limits or {}))
    make = functools.partial(_eval_batch, read, batch_size, rows, count)
    return BatchStream(make, 0, -(-count // batch_size), num_workers)


def _eval_batch(
    read: Read, batch_size: int, rows: slice, end: int, number: int
) -> dict[str, np.ndarray]:
    """Examples `number·B … (number + 1)·B - 1`, zeros for those from `end` on."""
    first = number * batch_size
    start = first + rows.start
    count = max(0, min(first + rows.stop, end) - start)
    # Without an example of its own, a process takes its zeros' shapes from the batch's first.
    indices = range(start, start + count) if count else range(first, first + 1)
    batch = read(indices, _key(0, _EVAL), indices.start)
    batch = {name: array[:count] for name, array in batch.items()}
    batch["weights"] = np.ones(count, np.float32)
    return {name: _padded(array, rows.stop - rows.start) for name, array in batch.items()}


def _batch(
    source: sources.Source,
    transform: Transform,
    id_limits: Mapping[str, int],
    indices: Sequence[int],
    key: int,
    position: int,
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
    batch = {
        name: np.stack([np.asarray(example[name]) for example in examples]) for name in examples[0]
    }
    for name, limit in id_limits.items():
        _check_ids(source, indices, name, batch[name], limit)
    # Python's and NumPy's default integers, and stored token ids, become int32.
    return {
        name: array.astype(np.int32) if array.dtype in (np.int64, np.uint16) else array
        for name, array in batch.items()
    }


def _check_ids(
    source: sources.Source, indices: Sequence[int], name: str, ids: np.ndarray, limit: int
) -> None:
    """Raises DataError for the first example with an id that the model does not have.

    A model's loss of such an id is 0 or too small, and no device raises. For whole batches: 2 µs
    for 64 records of 1024 tokens, which take 400 µs to read.
    """
    if (ids.dtype.kind == "u" or ids.min() >= 0) and ids.max() < limit:
        return
    outside = (ids < 0) | (ids >= limit)
    row = int(outside.reshape(len(ids), -1).any(axis=1).argmax())
    raise DataError(
        f"{source}: example {indices[row]} has {ids[outside][0]} among its {name}; the model has "
        f"the ids 0 to {limit - 1:,}",
        "give data that were prepared for this model, or prepare the directory again",
    )


def _example(
    source: sources.Source, index: int, transform: Transform, generator: np.random.Generator
) -> dict[str, Any]:
    record = source[index]
    try:
        return transform(record, generator)
    except DataError as problem:
        raise DataError(f"{source}: example {index}: {problem}") from problem


def _padded(array: np.ndarray, size: int) -> np.ndarray:
    zeros = np.zeros((size - len(array), *array.shape[1:]), array.dtype)
    return np.concatenate([array, zeros]) if len(zeros) else array


@functools.lru_cache(maxsize=4)
def _epoch_order(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """The order of an epoch's examples; int32 `[num_examples]` (50 ms for ImageNet)."""
    sequence = np.random.SeedSequence([seed, _ORDER, epoch])
    generator = np.random.Generator(np.random.Philox(sequence))
    return generator.permutation(np.arange(num_examples, dtype=np.int32))


@functools.cache
def _key(seed: int, purpose: int) -> int:
    """A 128-bit Philox key for one purpose."""
    low, high = np.random.SeedSequence([seed, purpose]).generate_state(2, np.uint64)
    return int(low) | int(high) << 64
