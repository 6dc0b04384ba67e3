"""An iterator over random-access batches, made ahead of time by grain's threads or processes."""

import os
import signal
import time
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Protocol, Self

import cv2
import grain
import numpy as np
from absl import flags


class Batches(Protocol):
    """Batches by their number."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> dict[str, np.ndarray]: ...


class BatchStream(Iterator[dict[str, np.ndarray]]):
    """`batches[start]`, `batches[start + 1]`, … made ahead by threads or worker processes.

    With `num_workers` > 0 the batches object is pickled to each worker, and each imports the main
    script again: what the script does belongs under `if __name__ == "__main__":`. `num_threads` is
    described at `example_queue.train_batches`. `close()`, or the end of a `with` statement, ends
    them all.
    """

    def __init__(
        self, batches: Batches, start: int, num_workers: int, num_threads: int | None
    ) -> None:
        if num_workers < 0 or (num_threads is not None and num_threads < 0):
            raise ValueError(
                f"num_workers is {num_workers}, num_threads {num_threads}; neither may be negative"
            )
        cv2.setNumThreads(0)  # one image per thread is faster than many threads per image
        data = grain.MapDataset.source(batches).slice(slice(start, len(batches)))
        dataset = data.to_iter_dataset(_read_options(num_workers, num_threads))
        if num_workers:
            dataset = _in_processes(dataset, num_workers)
        self._open = [iter(dataset)]
        self._copies = num_workers > 0
        # Also runs when the stream is forgotten and when the interpreter ends: grain's own
        # clean-up comes too late then, and would leave processes and shared memory behind.
        self._end = weakref.finalize(self, _close, self._open)

    def __next__(self) -> dict[str, np.ndarray]:
        if not self._open:
            raise ValueError("this stream of batches is closed")
        batch = next(self._open[0])
        # A worker's arrays lie in shared memory that leaks if the program ends while one is held.
        return {name: np.array(array) for name, array in batch.items()} if self._copies else batch

    def close(self) -> None:
        """End threads and worker processes; harmless when repeated."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def measure_throughput(stream: Iterator[dict[str, np.ndarray]], batches: int) -> dict[str, float]:
    """Read one batch to warm up, then `batches`: how fast they come.

    Returns `examples_per_s`, `wall_ms_per_batch` and `cpu_ms_per_example` (CPU time of this
    process, all threads; worker processes are not in it).
    """
    if batches < 1:
        raise ValueError(f"batches is {batches}; it must be 1 or more")
    size = len(next(iter(next(stream).values())))
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(batches):
        next(stream)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    examples = batches * size
    return {
        "examples_per_s": examples / wall,
        "wall_ms_per_batch": 1e3 * wall / batches,
        "cpu_ms_per_example": 1e3 * cpu / examples,
    }


def _close(iterators: list[Any]) -> None:
    while iterators:
        iterators.pop().close()


def _read_options(num_workers: int, num_threads: int | None) -> grain.ReadOptions:
    if num_threads is None:
        num_threads = 1 if num_workers else min(len(os.sched_getaffinity(0)), 16)
    return grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=num_threads)


def _in_processes(dataset: Any, num_workers: int) -> Any:
    """The data set read by worker processes; batch n comes from worker n mod `num_workers`."""
    if not flags.FLAGS.is_parsed():  # grain reads its absl flags in the workers
        flags.FLAGS.mark_as_parsed()
    options = grain.MultiprocessingOptions(num_workers=num_workers, per_worker_buffer_size=2)
    return dataset.mp_prefetch(options, worker_init_fn=_start_worker)


def _start_worker(worker: int, workers: int) -> None:
    del worker, workers
    # An engine may tell a whole job to stop: these serve until the trial is saved, and are closed.
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    cv2.setNumThreads(0)
