"""A Ray head of the study's own, on this host's loopback: found again, started and stopped.

`<study>/ray.json` says where it is. It outlives drivers, so that the next one finds its jobs. A
driver that ends while no job is queued or running stops it; so does a watcher beside it
(`python -m sweeps.launchers.ray.head STUDY_DIR`) once it has been idle for `idle_seconds`: after
`cancel`, and when no driver ever comes back. It is stopped by process number and start time:
`ray stop` would end every Ray of the machine.
"""

import argparse
import contextlib
import fcntl
import os
import pathlib
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from sweeps.launchers.protocol import EngineError
from sweeps.launchers.ray import api as ray_api
from sweeps.launchers.ray import start as ray_start
from sweeps.records import layout, lease

RECORD, _LOCK = "ray.json", "ray.lock"
ACTIVE = ("PENDING", "RUNNING")
# Starting took 9 to 17 s on two idle cores, more than a minute on two busy ones.
_START_S, _STOP_S = 300.0, 30.0
_HERE = pathlib.Path(__file__).resolve().parents[3]


@contextlib.contextmanager
def locked(directory: pathlib.Path) -> Iterator[None]:
    """Keeps other drivers of this study from starting or stopping its head meanwhile."""
    with (directory / _LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def find(directory: pathlib.Path) -> dict[str, Any] | None:
    """Returns the record of the study's head, None where it has none that lives.

    Raises EngineError where the head is on another host, or in another container: nobody can tell
    from here whether it lives.
    """
    record = layout.read_json_if_there(directory / RECORD)
    if record is None:
        return None
    here = lease.identity()
    if (record["boot_id"], record["pid_namespace"]) == (here["boot_id"], here["pid_namespace"]):
        return record if lease.process_start(record["pid"]) == record["pid_start"] else None
    if record["host"] == here["host"] and record["boot_id"] != here["boot_id"]:
        return None  # this host was restarted since
    raise EngineError(
        f"the study's Ray head runs on {record['host']} (process {record['pid']}), for that host "
        f"alone: continue there, or remove {directory / RECORD} if it is gone for good"
    )


def api(record: dict[str, Any]) -> ray_api.JobsApi:
    """Returns the Jobs API of a recorded head."""
    token = ray_api.read_token(pathlib.Path(record["token_path"]))
    return ray_api.JobsApi(record["address"], token, proxies=False)


def start(directory: pathlib.Path, idle_s: float) -> dict[str, Any]:
    """Starts a head and returns its record; call it `locked`. Raises EngineError where it fails."""
    _clear(directory)
    record = ray_start.launch(directory)
    layout.write_json(directory / RECORD, record)
    try:
        _wait(directory, record)
    except EngineError:
        stop(directory, record)
        raise
    command = ["-m", "sweeps.launchers.ray.head", str(directory)]
    environment = {**os.environ, "PYTHONPATH": str(_HERE), "PYTHONSAFEPATH": "1"}
    options = [f"--pid={record['pid']}", f"--idle={idle_s}"]
    ray_start.detached([sys.executable, *command, *options], environment, directory / ray_start.LOG)
    return record


def _wait(directory: pathlib.Path, record: dict[str, Any]) -> None:
    """Returns once the head answers and has a node. Raises EngineError with the log's end."""
    jobs_api, deadline = api(record), time.monotonic() + _START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(EngineError):
            if jobs_api.resources() and jobs_api.jobs() is not None:
                return
        if lease.process_start(record["pid"]) is None:
            break
        time.sleep(0.2)
    tail = "\n".join((directory / ray_start.LOG).read_text(errors="replace").splitlines()[-8:])
    raise EngineError(f"Ray's head did not start; {directory / ray_start.LOG} ends with\n{tail}")


def stop(directory: pathlib.Path, record: dict[str, Any]) -> None:
    """Stops a head, and with it all that it started; call it `locked`."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _STOP_S
        with contextlib.suppress(ProcessLookupError):
            if lease.process_start(record["pid"]) == record["pid_start"]:
                os.kill(record["pid"], number)
        while lease.process_start(record["pid"]) == record["pid_start"]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
    _clear(directory)


def _clear(directory: pathlib.Path) -> None:
    """Removes what a head that is gone has left."""
    record = layout.read_json_if_there(directory / RECORD)
    if record is not None:
        _end_left_over(record["temporary"])
        shutil.rmtree(record["temporary"], ignore_errors=True)
    for name in (RECORD, ray_start.TOKEN):
        (directory / name).unlink(missing_ok=True)


def _end_left_over(temporary: str) -> None:
    """Kills what a killed head leaves: processes that were started with its folder."""
    mark = f"RAY_TMPDIR={temporary}".encode()
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


def stop_if_idle(directory: pathlib.Path) -> bool:
    """Stops the study's head where it has no job queued or running; whether it is stopped."""
    with locked(directory):
        record = find(directory)
        if record is not None:
            if _busy(record):
                return False
            stop(directory, record)
        return True


def _busy(record: dict[str, Any]) -> bool:
    return any(job["status"] in ACTIVE for job in api(record).jobs().values())


def watch(directory: pathlib.Path, pid: int, idle_s: float) -> None:
    """Returns when the head with this process number is gone, stopped here after `idle_s`."""
    since = time.monotonic()
    while (record := find(directory)) is not None and record["pid"] == pid:
        with contextlib.suppress(EngineError):
            if _busy(record):
                since = time.monotonic()
            elif time.monotonic() - since > idle_s and stop_if_idle(directory):
                return
        time.sleep(min(10.0, idle_s / 4))


def main() -> None:
    """Watches a study's head."""
    parser = argparse.ArgumentParser(prog="python -m sweeps.launchers.ray.head")
    parser.add_argument("directory", type=pathlib.Path, metavar="STUDY_DIR")
    parser.add_argument("--pid", type=int, required=True, help="the head's process number")
    parser.add_argument("--idle", type=float, required=True, help="seconds without a job")
    options = parser.parse_args()
    watch(options.directory, options.pid, options.idle)


if __name__ == "__main__":
    main()
