"""How a trial's attempts ended, and whether another one makes sense."""

import pathlib
from typing import Any

from sweeps.records import layout, lease, measurements

LOG = "log.txt"


def fruitless(directory: pathlib.Path) -> tuple[int, int]:
    """Returns how many attempts in a row, the last included, ended at the step they began from.

    First those that failed with a reason, then those that were killed without a word. Preemptions
    do not count, and progress (a later checkpoint) starts the count anew: a trial that is killed
    often but moves on is never given up, one that always crashes is.
    """
    counts, began = {"failed": 0, "killed": 0}, None
    for number in range(lease.latest(directory), 0, -1):
        attempt = directory / layout.ATTEMPTS / str(number)
        # A damaged record counts as none: as after a kill.
        outcome = layout.read_record(attempt / lease.OUTCOME).get("outcome", "killed")
        if outcome not in counts:
            break
        # 0, too, of one that was killed before it could say.
        step = layout.read_record(attempt / measurements.RESUMED).get("global_step", 0)
        if any(counts.values()) and step != began:
            break
        counts[outcome], began = counts[outcome] + 1, step
    return counts["failed"], counts["killed"]


def last_error(directory: pathlib.Path) -> dict[str, Any]:
    """Returns the last attempt's {"outcome", "error", "retry"}; 'killed' if it left none."""
    found = layout.read_record(lease.last(directory) / lease.OUTCOME)
    killed = {"outcome": "killed", "error": "the worker process died", "retry": True}
    return found if isinstance(found.get("outcome"), str) else killed


def log_tail(directory: pathlib.Path, lines: int = 8) -> list[str]:
    """Returns the last lines of the last attempt's log."""
    path = lease.last(directory) / LOG
    if not path.is_file():
        return []
    return path.read_text("utf-8", errors="replace").splitlines()[-lines:]
