"""What a machine or a container gives: CPU cores, a cache folder. Standard library only."""

import contextlib
import math
import multiprocessing.connection
import os
import pathlib
import threading
from collections.abc import Mapping

# Where control groups are mounted and what they say of this process; tests replace both.
CONTROL_GROUPS = pathlib.Path("/sys/fs/cgroup")
OWN_GROUPS = pathlib.Path("/proc/self/cgroup")


def cpu_count() -> int:
    """Returns how many CPU cores this process can keep busy.

    Those that it may run on, but no more than the CPU quota of its control groups (the limit of a
    container), rounded up.
    """
    return max(1, min([len(os.sched_getaffinity(0)), *map(math.ceil, _quotas())]))


def _quotas() -> list[float]:
    """Returns the cores that each limited control group above this process may use, v1 and v2."""
    quotas = []
    for line in _text(OWN_GROUPS).splitlines():
        _, controllers, group = line.split(":", 2)
        if "cpu" not in (controllers or "cpu").split(","):
            continue
        mount = CONTROL_GROUPS / controllers
        place = mount / group.strip("/")
        # A container may see its own group as the root, under the path that the host knows.
        for folder in {mount, place, *place.parents}:
            limit = _text(folder / "cpu.max") or " ".join(
                _text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")
            )
            with contextlib.suppress(ValueError):  # "max", or no such file
                quota, period = map(int, limit.split())
                quotas += [quota / period] if quota > 0 else []  # -1 is no limit
    return quotas


def _text(path: pathlib.Path) -> str:
    return path.read_text("utf-8") if os.access(path, os.R_OK) else ""


def end_with_parent() -> None:
    """Ends this process as soon as the one that started it has ended.

    A worker whose parent was killed would otherwise wait for it, and hold its memory, for ever.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    # Of two threads that join one process, one may be told that it lives: each waits by itself.
    threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def cache_folder(environment: Mapping[str, str] = os.environ) -> pathlib.Path:
    """Returns this project's cache folder, which need not exist: $ATTNPERF_CACHE, else attnperf in
    $XDG_CACHE_HOME, else in ~/.cache.

    `environment` is this process's or a job's. A relative XDG_CACHE_HOME counts as none (the XDG
    specification). A user without a home, as in a container with a bare user number, gets a folder
    below /, like one whose home is /.
    """
    if chosen := environment.get("ATTNPERF_CACHE"):
        return pathlib.Path(os.path.expanduser(chosen)).absolute()
    base = pathlib.Path(environment.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = "/" / pathlib.Path(os.path.expanduser("~").removeprefix("~")) / ".cache"
    return base / "attnperf"
