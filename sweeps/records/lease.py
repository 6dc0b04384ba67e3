"""Claims: at most one live job has a trial, on local disks and network file systems alike.

`attempts/<k>` is the claim on attempt k and the fencing token: it appears by renaming a directory
that already holds the lease, which succeeds once. A lease is dead when its outcome is recorded or
its process is gone (same boot). Otherwise the heartbeat decides, by the file server's clock. A
process that wakes after its lease has expired sees the later attempt and stops writing.
"""

import contextlib
import dataclasses
import errno
import os
import pathlib
import shutil
import socket
import uuid
from collections.abc import Callable
from typing import Any

from sweeps.records import clock, layout

LEASE, HEARTBEAT, OUTCOME = "lease.json", "heartbeat", "outcome.json"
# How long the leases that this process writes last; each records it. Well above an NFS client's
# attribute cache (60 s by default).
EXPIRES_AFTER_S = float(os.environ.get("ATTNPERF_LEASE_S", "120"))
HEARTBEAT_EVERY_S = min(10.0, EXPIRES_AFTER_S / 6)


_PROC = pathlib.Path("/proc")
# Errors of a rename if another job was first; ENOENT: the draft was removed.
_LOST_RACE = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT)


class LostError(Exception):
    """Another job has taken over: this one must write nothing more."""


@dataclasses.dataclass(frozen=True)
class Attempt:
    """An attempt at a trial that a job holds, number from 1, in `<trial>/attempts/<number>`."""

    trial_directory: pathlib.Path
    number: int

    @property
    def directory(self) -> pathlib.Path:
        """Where this attempt alone writes."""
        return self.trial_directory / layout.ATTEMPTS / str(self.number)

    def beat(self) -> None:
        """Renews the lease. Raises LostError if a later attempt exists."""
        self.check()
        clock.clock.touch(self.directory / HEARTBEAT)

    def check(self) -> None:
        """Raises LostError if a later attempt exists; call it before writing shared files."""
        if latest(self.trial_directory) != self.number:
            raise LostError(f"{self.directory}: a later attempt has taken this trial over")

    def end(self, outcome: str, **fields: Any) -> None:
        """Records how the attempt ended, which gives the trial back: it can be claimed at once."""
        layout.write_json(self.directory / OUTCOME, {"outcome": outcome, **fields})


def latest(trial_directory: pathlib.Path) -> int:
    """Returns the number of the last attempt, 0 where there is none."""
    return max(layout.numbered(trial_directory / layout.ATTEMPTS), default=0)


def last(trial_directory: pathlib.Path) -> pathlib.Path:
    """Returns the folder of the last attempt; of number 0, which is never there, of none."""
    return trial_directory / layout.ATTEMPTS / str(latest(trial_directory))


def claim(trial_directory: pathlib.Path) -> Attempt | None:
    """Returns the next attempt, or None if a live job has the trial.

    Raises OSError if the attempt cannot be written; another job that was faster is no error.
    """
    number = latest(trial_directory)
    if number and is_alive(trial_directory / layout.ATTEMPTS / str(number)):
        return None
    folder = trial_directory / layout.ATTEMPTS
    folder.mkdir(parents=True, exist_ok=True)
    token = uuid.uuid4().hex
    draft, attempt = folder / layout.temporary(token), Attempt(trial_directory, number + 1)
    record = {**identity(), "expires_after_s": EXPIRES_AFTER_S, "token": token}
    try:
        draft.mkdir()
        clock.clock.touch(draft / HEARTBEAT)
        layout.write_json(draft / LEASE, record)
        # Never replaces: a directory that holds a lease is not empty.
        os.rename(draft, attempt.directory)
    except OSError as error:
        # A file server's answer may be lost, and its client asks again for what it has done.
        with contextlib.suppress(OSError):
            if layout.read_record(attempt.directory / LEASE).get("token") == token:
                return attempt
        shutil.rmtree(draft, ignore_errors=True)
        if error.errno in _LOST_RACE and attempt.directory.exists():
            return None
        raise
    return attempt


def unended(attempt: pathlib.Path) -> dict[str, Any]:
    """Returns the lease of an attempt; {} if its outcome is recorded or its process is gone."""
    if (attempt / OUTCOME).exists():
        return {}
    lease, here = layout.read_record(attempt / LEASE), identity()
    # None, or cut short by a crash of the host: claims appear whole otherwise.
    if not {*here, "expires_after_s"} <= lease.keys():
        return {}
    if _is_same_host(lease, here) and process_start(lease["pid"]) != lease["pid_start"]:
        return {}
    return lease


def is_alive(attempt: pathlib.Path) -> bool:
    """Whether the attempt's job still runs, as far as can be known from here."""
    lease = unended(attempt)
    if not lease:
        return False
    try:
        beat_at = os.stat(attempt / HEARTBEAT).st_mtime
    except FileNotFoundError:  # copies and archives may leave out empty files
        return False
    age = clock.clock.server_time(attempt) - beat_at
    # A heartbeat of the future: the file server's clock was set back, or the file system takes its
    # times from the clients. Clocks that differ by less than the lease end no lease either way.
    return bool(abs(age) < lease["expires_after_s"])


def await_heartbeat(trial_directory: pathlib.Path) -> None:
    """Waits for one heartbeat if the last attempt seems to have lost its lease.

    Its job may be alive: its host woke a moment ago, or the file server's clock was set.
    """
    attempt = last(trial_directory)
    if unended(attempt) and not is_alive(attempt):
        clock.clock.sleep(HEARTBEAT_EVERY_S)


def process_here(attempt: pathlib.Path) -> int | None:
    """Returns the process that has an attempt; None if it is gone, or of another host."""
    lease = unended(attempt)
    return int(lease["pid"]) if lease and _is_same_host(lease, identity()) else None


def _is_same_host(lease: dict[str, Any], here: dict[str, Any]) -> bool:
    """Whether a lease is of this host and its process numbers; False if that is not known."""
    keys, pid = ("boot_id", "pid_namespace"), lease.get("pid")
    known = isinstance(pid, int) and pid > 0  # a signal to -1 would reach every process
    return known and all(lease.get(key) == here[key] is not None for key in keys)


def identity() -> dict[str, Any]:
    """Returns what tells this process from all others: host, boot, process and its start."""
    pid = os.getpid()
    return {
        "host": socket.gethostname(),
        "boot_id": _known(_PROC / "sys/kernel/random/boot_id", pathlib.Path.read_text),
        # Containers share a boot but not their process numbers.
        "pid_namespace": _known(_PROC / "self/ns/pid", os.readlink),
        "pid": pid,
        "pid_start": process_start(pid),
        "claimed_at": clock.clock.time(),
    }


def process_start(pid: int) -> str | None:
    """Returns a process's start time in clock ticks since boot, None if it is gone.

    A zombie counts as gone: it will write nothing more.
    """
    text = _known(_PROC / str(pid) / "stat", pathlib.Path.read_text)
    if text is None:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else fields[19]


def _known(path: pathlib.Path, read: Callable[[pathlib.Path], str]) -> str | None:
    """Returns what `read` gives of a path, None if it cannot be read."""
    try:
        return read(path).strip()
    except OSError:
        return None
