"""A trial that this process has claimed: its heartbeats, its end."""

import contextlib
import faulthandler
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator

from sweeps.records import disk, layout, lease, measurements, status, submissions
from sweeps.study.trial import Trial

# Without progress for so long a process ends itself. Compiling and a whole evaluation lie between
# two updates, so it is an hour.
HANGS_AFTER_S = float(os.environ.get("ATTNPERF_HANG_S", "3600"))
_STDERR = 2  # the descriptor, which leads to the attempt's log


@contextlib.contextmanager
def watchdog() -> Iterator[None]:
    """Ends this process where its trial hangs, with what each thread does in the attempt's log."""
    expect_progress()
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def expect_progress() -> None:
    """Gives the trial time for another update, or another batch of an evaluation.

    A thread of C waits for it, which needs no lock of Python's; to start it takes 35 µs.
    """
    faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True, file=_STDERR)


@contextlib.contextmanager
def heartbeat(attempt: lease.Attempt, stop: Callable[[], None]) -> Iterator[None]:
    """Renews the lease while the trial runs; calls `stop` once its study is cancelled.

    The training notices by itself that the lease is lost.
    """
    over = threading.Event()
    study = layout.study_of(attempt.trial_directory)

    def beat() -> None:
        printed = ""
        while not over.wait(lease.HEARTBEAT_EVERY_S):
            if submissions.is_cancelled(study):
                stop()
            try:
                with contextlib.suppress(lease.LostError):
                    attempt.beat()
            except OSError as error:  # the file server may be back before the lease is over
                if str(error) != printed:
                    printed = str(error)
                    with contextlib.suppress(OSError, ValueError):
                        print(f"heartbeat: {printed}; tried again", flush=True)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def conclude(
    attempt: lease.Attempt, end: str | Exception, trained: Trial | None = None
) -> tuple[str, str | None]:
    """Gives an attempt back; returns the outcome and, where it failed, why.

    `end` is 'done', 'diverged' or the exception that ended the work. trained: the trial whose
    training it was, None for an evaluation. Raises OSError if the outcome cannot be written.
    """
    from sweeps.training import checkpoints, loop

    if isinstance(end, loop.Preempted):
        end = "preempted"
    if isinstance(end, Exception) and lease.latest(attempt.trial_directory) > attempt.number:
        # Whatever it failed in, it is what it met after it was superseded.
        end = lease.LostError(f"superseded, then {type(end).__name__}: {end}")
    if isinstance(end, lease.LostError):
        # A worker that slept between its check and its writing may have put older CSVs in place.
        with contextlib.suppress(OSError, ValueError):
            if (attempt.trial_directory / layout.TRIAL).exists():  # an evaluation has none
                measurements.publish(attempt.trial_directory)
        attempt.end("lost")
        return "lost", str(end)
    if isinstance(end, Exception):
        return "failed", _record_failure(attempt, end)
    attempt.end(end)
    if trained is not None and end in ("done", "diverged"):
        checkpoints.keep_the_last(trained, attempt.trial_directory)
    return end, None


def _record_failure(attempt: lease.Attempt, problem: Exception) -> str:
    """Writes down why an attempt failed, as far as the disk allows; returns the reason."""
    error, full = disk.named(problem, attempt.trial_directory), disk.is_full(problem)
    with contextlib.suppress(OSError):
        if full:
            print(error, file=sys.stderr)
        else:
            traceback.print_exception(problem)
        sys.stderr.flush()
    with contextlib.suppress(OSError, lease.LostError):
        attempt.check()
        status.write(attempt.trial_directory, "failed", reason=error)
    with contextlib.suppress(OSError):
        # Bad input is as bad the second time, and a disk as full.
        retry = not (full or isinstance(problem, ValueError))
        attempt.end("failed", error=error, retry=retry, is_disk_full=full)
    return error
