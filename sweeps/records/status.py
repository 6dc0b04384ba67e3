"""A trial's status.json: its state, how far it is, and why it ended."""

import contextlib
import pathlib
import socket
from typing import Any

from sweeps.records import clock, layout, lease

# States of a trial that will not be begun again.
COMPLETE = ("done", "diverged")
# The status of a trial that nobody has begun.
NEW = {"state": "pending", "reason": None, "global_step": 0, "preemption_count": 0}
_TYPES: dict[str, Any] = {
    "state": str,
    "reason": str | None,
    "global_step": int | None,
    "preemption_count": int | None,
}


def write(directory: pathlib.Path, state: str, **fields: Any) -> None:
    """Replaces the trial's status, keeping fields that are not given anew. An evaluation has none.

    state: one of layout.STATES.
    """
    if layout.is_evaluation(directory):
        return
    old = recorded(directory)
    old = NEW if "damaged" in old else old
    now = {"state": state, "heartbeat": clock.clock.time()}
    layout.write_json(directory / layout.STATUS, {**old, **fields, **now})


def say(
    attempt: lease.Attempt,
    state: str,
    id: str,
    done: int,
    of: int,
    reason: str | None = None,
    figures: dict[str, Any] | None = None,
    **fields: Any,
) -> None:
    """Writes how far an attempt is, `done` steps `of` so many, as long as it holds its trial.

    Raises lease.LostError if another job has taken over.
    """
    attempt.check()
    write(
        attempt.trial_directory,
        state,
        id=id,
        global_step=done,
        steps=of,
        reason=reason,
        attempt=attempt.number,
        preemption_count=attempt.number - 1,
        host=socket.gethostname(),
        figures=figures,
        **fields,
    )


def read(directory: pathlib.Path) -> dict[str, Any]:
    """Returns the status; `pending` where nothing was written yet.

    A trial that says `running` while no job is alive is reported as `pending` with the reason
    'interrupted': its job was killed before it could say so. A damaged status.json makes the
    trial `pending` too, with the damage as its reason and under the key `damaged`: its checkpoints
    say how far it is.
    """
    status = recorded(directory)
    begun = "heartbeat" in status  # neither new nor damaged
    if status["state"] in COMPLETE or not begun:
        return status
    attempt = lease.last(directory)
    # A job that was stopped between its check and its write may have replaced "done" since.
    outcome = layout.read_record(attempt / lease.OUTCOME).get("outcome")
    if outcome in COMPLETE:
        return {**status, "state": outcome, "reason": None}
    if status["state"] in ("running", "failed"):
        alive = outcome is None and lease.is_alive(attempt)
        if status["state"] == "failed":  # a new attempt says so only when it has begun to train
            return {**status, "state": "running"} if alive else status
        if not alive:
            return {
                **status,
                "state": "pending",
                "reason": f"interrupted at step {status['global_step']}",
            }
    return status


def seen(directory: pathlib.Path) -> dict[str, Any]:
    """Returns what `read` returns, whatever lies there: for those who only look.

    Where a lease is damaged or cannot be judged (a reader may not write there, for instance), or
    status.json cannot be opened, that is said under `damaged` beside what status.json says.
    """
    try:
        return read(directory)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        status = dict(NEW)
        with contextlib.suppress(OSError):
            status = recorded(directory)
        problem = f"{directory}: status.json says {status['state']}, but its lease cannot be read"
        return {**status, "damaged": f"{problem} ({error})"}


def recorded(directory: pathlib.Path) -> dict[str, Any]:
    """Returns what status.json says, whoever is alive; see `read`.

    An evaluation has none: it is done where its results are there, otherwise pending, after so many
    tasks.
    """
    if layout.is_evaluation(directory):
        state = "done" if (directory / layout.RESULTS).exists() else "pending"
        return {**NEW, "state": state, "global_step": layout.finished_tasks(directory)}
    path = directory / layout.STATUS
    try:
        status = NEW | layout.record(path, **_TYPES)
    except layout.ABSENT:
        return dict(NEW)
    except ValueError as error:
        problem = str(error)
    else:
        if status["state"] in layout.STATES:
            return status
        problem = f"{path} is damaged: its state is {status['state']!r}"
    return {**NEW, "reason": problem, "damaged": problem}
