"""How a trial's attempts ended, and whether another one makes sense."""

import contextlib
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from sweeps.records import layout, lease, measurements
from sweeps.records.status import COMPLETE

LOG = "log.txt"


def ends(directory: pathlib.Path, after: int = 0) -> Iterator[tuple[str, int | None]]:
    """Yields the outcomes of a trial's attempts above number `after`, the last one first, and the
    steps that they began from.

    The outcome is 'killed' if the attempt left none, the step is None if the attempt ended before
    it could say. A damaged record counts as none.
    """
    for number in range(lease.latest(directory), after, -1):
        attempt = directory / layout.ATTEMPTS / str(number)
        outcome = layout.read_record(attempt / lease.OUTCOME).get("outcome", "killed")
        began = layout.read_record(attempt / measurements.RESUMED).get("global_step")
        yield str(outcome), began if isinstance(began, int) else None


def count_failures(newest_first: Iterable[tuple[str, int | None]]) -> tuple[int, int]:
    """Returns how many attempts have failed since the trial last made progress.

    First those that ended with a reason, then those that were killed without a word or lost their
    lease. Preemptions neither count nor begin the count anew. Progress does: an attempt began from
    a later checkpoint.
    """
    failed = killed = 0
    step: int | None = None
    for outcome, began in newest_first:
        if outcome in COMPLETE or (began is not None and step is not None and began < step):
            break
        step = began if step is None else step
        failed += outcome == "failed"
        killed += outcome not in ("failed", "preempted")
    return failed, killed


def last_error(directory: pathlib.Path) -> dict[str, Any]:
    """Returns the last attempt's {"outcome", "error", "retry", "is_disk_full"}.

    The outcome is 'killed' if the attempt left none.

    {} without an attempt.
    """
    attempt = lease.last(directory)
    if attempt.name == "0":
        return {}
    record = layout.read_record(attempt / lease.OUTCOME)
    killed = {"outcome": "killed", "error": "its process died", "retry": True}
    return record if isinstance(record.get("outcome"), str) else killed


def log_tail(directory: pathlib.Path, lines: int = 8) -> list[str]:
    """Returns the last lines of the last attempt's log, as `tail`."""
    with contextlib.suppress(OSError):
        return tail(lease.last(directory) / LOG, lines)
    return []


def tail(log: pathlib.Path, lines: int = 8) -> list[str]:
    """Returns the last lines of a log, or why it cannot be read; none where there is none."""
    try:
        return log.read_text("utf-8", errors="replace").splitlines()[-lines:]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        return [f"its log cannot be read: {error}"]
