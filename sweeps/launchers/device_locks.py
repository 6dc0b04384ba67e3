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
import socket
from collections.abc import Iterable, Mapping, Sequence

# Studies with different values of this variable do not see each other's locks: for tests.
NAMESPACE = "ATTNPERF_LOCK_NAMESPACE"
_MANY = 9


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
    if lock is None:
        return True
    lock.close()
    return False


def holders(kind: str = "") -> dict[str, list[str]]:
    """Returns the devices of this host that jobs of this user hold, by their study's directory.

    kind: of all devices by default. {} if /proc does not show sockets.
    """
    prefix, sockets = f"@{_prefix()}", {}
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/net/unix").read_text("utf-8", "replace").splitlines():
            *_, inode, name = ["", "", *line.split(maxsplit=7)]
            if name.startswith(prefix):
                sockets[f"socket:[{inode}]"] = name.removeprefix(prefix)
    devices: dict[str, set[str]] = {}
    for descriptor in glob.iglob("/proc/[0-9]*/fd/*") if sockets else ():
        with contextlib.suppress(OSError):
            device = sockets.get(os.readlink(descriptor), "")
            if f"{kind} " not in device:  # locks on jobs and slots have names without a space
                continue
            command = pathlib.Path(descriptor).parents[1] / "cmdline"
            words = command.read_text("utf-8", "surrogateescape").split("\0")
            if words[2:4] == ["sweeps", "job"]:
                devices.setdefault(str(pathlib.Path(words[4]).parents[1]), set()).add(device)
    return {
        study: sorted(names, key=lambda name: (len(name), name)) for study, names in devices.items()
    }


def describe(holders: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns a clause per study: which devices it holds, many of them by their number."""
    return [
        f"{study} holds {', '.join(names) if len(names) < _MANY else f'{len(names)} devices'}"
        for study, names in holders.items()
    ]


def release(locks: Iterable[socket.socket]) -> None:
    """Closes locks."""
    for lock in locks:
        lock.close()
