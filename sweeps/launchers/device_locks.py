"""Locks of this user on this host, on jobs, slots and devices, and who holds the devices.

A lock is an abstract Unix socket of the kernel's: no file that somebody tidies up, no home
directory that hosts share. It is held until the last copy of the socket is closed, in whichever
process, and is free as soon as the last process that holds it has ended.
"""

import contextlib
import errno
import glob
import hashlib
import os
import pathlib
import re
import socket
from collections.abc import Iterable, Mapping, Sequence

# Studies with different values of this variable do not see each other's locks: for tests.
NAMESPACE = "ATTNPERF_LOCK_NAMESPACE"
# The command of a job, and the study's directory in it.
_JOB = re.compile(rb"\0-m\0sweeps\0job\0([^\0]*)/jobs/[^/\0]*\.json\0")


def hold_name(name: str) -> socket.socket | None:
    """Returns a lock on a name, None if it is held."""
    return _bind(hashlib.sha256(os.fsencode(name)).hexdigest()[:32])


def hold_devices(kind: str, numbers: Iterable[str], count: int) -> dict[str, socket.socket]:
    """Returns locks on the first `count` devices that are free, by number; there may be fewer.

    kind: as people call them, such as 'GPU'.
    """
    locks: dict[str, socket.socket] = {}
    for number in numbers:
        if len(locks) < count and (lock := _bind(f"{kind} {number}")) is not None:
            locks[number] = lock
    return locks


def _prefix() -> str:
    return f"attnperf-{os.getuid()}-{os.environ.get(NAMESPACE, '')}-"


def _bind(name: str) -> socket.socket | None:
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(f"\0{_prefix()}{name}")
    except OSError as error:
        lock.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return lock


def is_held(name: str) -> bool:
    """Whether a process of this host holds a lock on a name."""
    lock = hold_name(name)
    release([lock] if lock else [])
    return lock is None


def release(locks: Iterable[socket.socket]) -> None:
    """Closes locks."""
    for lock in locks:
        lock.close()


def holders(kind: str = "") -> dict[str, list[str]]:
    """Returns the devices of this host that jobs of this user hold, by their study's directory.

    kind: of all devices by default. {} if /proc does not show sockets.
    """
    sockets: dict[str, str] = {}
    # Locks on jobs and slots have names without a space.
    pattern = re.compile(rf" (\d+) @{re.escape(_prefix())}(.*{kind} .*)")
    with contextlib.suppress(OSError):
        text = pathlib.Path("/proc/net/unix").read_text("utf-8", "replace")
        sockets = dict(pattern.findall(text))
    devices: dict[str, set[str]] = {}
    for descriptor in glob.iglob("/proc/[0-9]*/fd/*") if sockets else ():
        with contextlib.suppress(OSError):
            device = sockets.get(os.readlink(descriptor).removeprefix("socket:").strip("[]"))
            command = pathlib.Path(descriptor).parents[1] / "cmdline"
            job = _JOB.search(command.read_bytes()) if device else None
            if device and job:
                devices.setdefault(os.fsdecode(job[1]), set()).add(device)
    # 'core 9' comes before 'core 10'.
    return {study: sorted(sorted(names), key=len) for study, names in devices.items()}


def describe(holders: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns a sentence per study: which devices it holds."""
    return [f"{study} holds {', '.join(holders[study])} of this host" for study in holders]
