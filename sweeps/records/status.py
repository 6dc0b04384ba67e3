"""A trial's status.json: its state, how far it is, and why it ended."""

import contextlib
import pathlib
from typing import Any

from sweeps.records import clock, layout, lease

# Of a trial that will not be begun again.
COMPLETE = ("done", "diverged")
# Of a trial that nobody has begun.
NEW = {"state": "pending", "reason": None, "global_step": 0, "preemption_count": 0}


def write(directory: pathlib.Path, state: str, **fields: Any) -> None:
    """Replaces the trial's status, keeping fields that are not given anew. An evaluation has none.

    Raises ValueError for a state that does not exist.
    """
    if state not in layout.STATES:
        raise ValueError(f"unknown state {state!r}. Known: {', '.join(layout.STATES)}")
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
    **fields: Any,
) -> None:
    """Writes how far an attempt is, `done` steps `of` so many, as long as it holds its trial.

    Raises lease.LostError where another worker has taken over.
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
        **fields,
    )


def read(directory: pathlib.Path) -> dict[str, Any]:
    """Returns the status; `pending` where nothing was written yet.

    A trial that says `running` while no worker is alive is reported as `pending` with the reason
    'interrupted': its worker was killed before it could say so. A damaged status.json makes the
    trial `pending` too, with the damage as its reason and under the key `damaged`: its checkpoints
    say how far it is.
    """
    status = recorded(directory)
    begun = "heartbeat" in status  # neither new nor damaged
    if status["state"] in COMPLETE or not begun:
        return status
    attempt = lease.last(directory)
    # A worker that was stopped between its check and its write may have replaced "done" since.
    outcome = layout.read_record(attempt / lease.OUTCOME).get("outcome")
    if outcome in COMPLETE:
        return {**status, "state": outcome, "reason": None}
    if status["state"] in ("running", "failed"):
        alive = outcome is None and lease.is_alive(attempt)
        if status["state"] == "failed":  # a new attempt says so only when it has begun to train
            return {**status, "state": "running"} if alive else status
        if not alive:
            reason = f"interrupted at step {status['global_step']}"
            return {**status, "state": "pending", "reason": reason}
    return status


def seen(directory: pathlib.Path) -> dict[str, Any]:
    """Returns what `read` returns, whatever lies there: for those who only look.

    Where a lease is damaged or cannot be judged (a reader may not write there, for instance), or
    status.json cannot be opened, that is said under `damaged` beside what status.json says.
    """
    try:
        return read(directory)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        found = dict(NEW)
        with contextlib.suppress(OSError):
            found = recorded(directory)
        problem = f"{directory} says {found['state']}, but not whether it lives"
        return {**found, "damaged": f"{problem} ({error})"}


def recorded(directory: pathlib.Path) -> dict[str, Any]:
    """Returns what status.json says, whoever is alive; see `read`.

    An evaluation has none: it is done where its results are there, otherwise pending, after so many
    tasks.
    """
    if layout.is_evaluation(directory):
        done = (directory / layout.RESULTS).exists()
        state = "done" if done else "pending"
        return {**NEW, "state": state, "global_step": layout.finished_tasks(directory)}
    path = directory / layout.STATUS
    try:
        found = layout.read_json_if_there(path)
    except ValueError as error:
        return _damaged(str(error))
    if found is None:
        return dict(NEW)
    if not isinstance(found, dict):
        return _damaged(f"{path}: not a trial's status: not a JSON object")
    if found.get("state") not in layout.STATES:
        known = ", ".join(layout.STATES)
        return _damaged(
            f"{path}: not a trial's status: state is {found.get('state')!r}, not one of {known}"
        )
    status = {**NEW, **found}
    if not isinstance(status["reason"], str | None):
        return _damaged(f"{path}: reason is {status['reason']!r}, not text")
    for key in ("global_step", "preemption_count"):
        if not isinstance(status[key], int):
            return _damaged(f"{path}: {key} is {status[key]!r}")
    return status


def _damaged(problem: str) -> dict[str, Any]:
    return {**NEW, "reason": problem, "damaged": problem}
