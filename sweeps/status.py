"""A trial's status.json: its state, how far it is, and why it ended."""

import pathlib
import time
from typing import Any

from sweeps import layout, lease


def write(directory: pathlib.Path, state: str, **fields: Any) -> None:
    """Replaces the trial's status, keeping fields that are not given anew.

    Raises ValueError for a state that does not exist.
    """
    if state not in layout.STATES:
        raise ValueError(f"unknown state {state!r}. Known: {', '.join(layout.STATES)}")
    old = layout.read_json_if_there(directory / layout.STATUS) or {}
    new = {"reason": None, "global_step": 0, "preemption_count": 0, **old, **fields}
    layout.write_json(directory / layout.STATUS, {**new, "state": state, "heartbeat": time.time()})


def read(directory: pathlib.Path) -> dict[str, Any]:
    """Returns the status; `pending` where nothing was written yet.

    A trial that says `running` while no worker is alive is reported as `pending` with the reason
    'interrupted': its worker was killed before it could say so.
    """
    status = layout.read_json_if_there(directory / layout.STATUS)
    if status is None:
        return {"state": "pending", "reason": None, "global_step": 0, "preemption_count": 0}
    if status["state"] in ("running", "failed"):
        attempt = directory / layout.ATTEMPTS / str(lease.latest(directory))
        alive = lease.is_alive(attempt)
        if status["state"] == "failed":  # a new attempt says so only when it has begun to train
            return {**status, "state": "running"} if alive else dict(status)
        if not alive:
            reason = f"interrupted at step {status['global_step']}"
            return {**status, "state": "pending", "reason": reason}
    return dict(status)
