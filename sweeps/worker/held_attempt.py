"""While a worker has trials: their logs, their heartbeats, and how each attempt is given back."""

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence

from sweeps.records import attempts, disk, lease, measurements, status, submissions


@contextlib.contextmanager
def logged(members: Sequence[lease.Attempt]) -> Iterator[None]:
    """Sends everything the process prints, from C++ too, to the first attempt's log.

    The others of a pack get a line that says where it is.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    first = members[0].directory / attempts.LOG
    for other in members[1:]:
        (other.directory / attempts.LOG).write_text(f"packed with others; see {first}\n")
    log = os.open(first, flags, 0o644)
    saved = [os.dup(1), os.dup(2)]
    try:
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        yield
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        for descriptor, old in zip((1, 2), saved, strict=True):
            os.dup2(old, descriptor)
        for descriptor in (log, *saved):
            os.close(descriptor)


@contextlib.contextmanager
def heartbeat(members: Sequence[lease.Attempt], stop: Callable[[], None]) -> Iterator[None]:
    """Renews the leases while trials run; calls `stop` once their study is cancelled.

    A lost lease is noticed by the training itself.
    """
    over = threading.Event()
    # <study>/<stage>/<variant>/<workload>_jax/trial_<n>
    study = members[0].trial_directory.parents[3]

    def beat() -> None:
        said = ""
        while not over.wait(lease.HEARTBEAT_EVERY_S):
            problems = [problem for member in members if (problem := _beaten(member))]
            try:
                if submissions.is_cancelled(study):
                    stop()
            except OSError as error:  # the file server may be back before the lease is over
                problems.append(str(error))
            if problems and problems[0] != said:
                said = problems[0]
                with contextlib.suppress(OSError, ValueError):
                    print(f"heartbeat: {said}; tried again", flush=True)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _beaten(member: lease.Attempt) -> str | None:
    """Renews a lease; returns what went wrong, unless it is lost."""
    try:
        member.beat()
    except lease.LostError:
        return None
    except OSError as error:
        return str(error)
    return None


def conclude(attempt: lease.Attempt, end: str | Exception) -> tuple[str, str | None]:
    """Gives an attempt back; returns the outcome and, where it failed, why.

    `end` is 'done', 'diverged' or the exception that ended the training. Raises OSError where the
    outcome cannot be written.
    """
    from sweeps.training import loop

    if isinstance(end, loop.Preempted):
        end = "preempted"
    if isinstance(end, Exception) and lease.latest(attempt.trial_directory) > attempt.number:
        # Whatever it failed in, it is what it met after it was superseded.
        end = lease.LostError(f"superseded, then {type(end).__name__}: {end}")
    if isinstance(end, lease.LostError):
        _publish_again(attempt)
        attempt.end("lost")
        return "lost", str(end)
    if isinstance(end, Exception):
        return "failed", _record_failure(attempt, end)
    attempt.end(end)
    if end in ("done", "diverged"):
        loop.clean_up(attempt.trial_directory)
    return end, None


def _publish_again(attempt: lease.Attempt) -> None:
    """Puts the CSVs together once more, from all attempts.

    A worker that slept between its check and its writing may have put older ones in their place.
    """
    with contextlib.suppress(OSError, ValueError):
        measurements.publish(attempt.trial_directory)


def _record_failure(attempt: lease.Attempt, problem: Exception) -> str:
    """Writes down why an attempt failed, as far as the disk allows; returns the reason."""
    error, full = disk.named(problem, attempt.trial_directory), disk.is_full(problem)
    with contextlib.suppress(OSError, lease.LostError):
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
        attempt.end("failed", error=error, retry=retry)
    return error
