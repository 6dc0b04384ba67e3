"""How a trial's attempts ended, and whether another one makes sense."""

import pathlib
from typing import Any

from sweeps import layout, lease, measurements

LOG = "log.txt"


def fruitless(directory: pathlib.Path) -> int:
    """Returns how many attempts in a row, the last included, failed from the same step.

    Preemptions do not count, and progress (a later checkpoint) starts the count anew: a trial
    that is killed often but moves on is never given up, one that always crashes is.
    """
    count, place = 0, None
    for number in range(lease.latest(directory), 0, -1):
        attempt = directory / layout.ATTEMPTS / str(number)
        outcome = (layout.read_json_if_there(attempt / lease.OUTCOME) or {}).get(
            "outcome", "killed"
        )
        if outcome not in ("killed", "failed"):
            break
        resumed = layout.read_json_if_there(attempt / measurements.RESUMED) or {}
        step = resumed.get("global_step")
        if count and step != place:
            break
        count, place = count + 1, step
    return count


def last_error(directory: pathlib.Path) -> dict[str, Any]:
    """Returns the last attempt's {"outcome", "error", "retry"}; 'killed' if it left none."""
    attempt = directory / layout.ATTEMPTS / str(lease.latest(directory))
    found = layout.read_json_if_there(attempt / lease.OUTCOME)
    return found or {"outcome": "killed", "error": "the worker process died", "retry": True}


def log_tail(directory: pathlib.Path, lines: int = 8) -> list[str]:
    """Returns the last lines of the last attempt's log."""
    path = directory / layout.ATTEMPTS / str(lease.latest(directory)) / LOG
    if not path.is_file():
        return []
    return path.read_text(errors="replace").splitlines()[-lines:]
