"""Starts the processes of a Ray head on loopback, with a token, ports and a folder of its own."""

import contextlib
import os
import pathlib
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

from sweeps.records import lease

LOG, TOKEN = "ray.log", "ray.token"
# Objects are not used, but Ray refuses less than 75 MB.
OBJECT_STORE_BYTES = 80_000_000


def launch(directory: pathlib.Path) -> dict[str, Any]:
    """Starts a head and returns its record at once, before it answers."""
    temporary = tempfile.mkdtemp(prefix="ray-", dir=_short_folder())
    token_path = directory / TOKEN
    token_path.unlink(missing_ok=True)
    with os.fdopen(os.open(token_path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    dashboard, client = _free_ports(2)
    pid = detached(
        [sys.executable, "-m", "ray.scripts.scripts", "start", *_options(dashboard, client)],
        _environment(temporary, token_path),
        directory / LOG,
    )
    identity = lease.identity()
    return {
        "address": f"http://127.0.0.1:{dashboard}",
        **{key: identity[key] for key in ("host", "boot_id", "pid_namespace")},
        "pid": pid,
        "pid_start": lease.process_start(pid),
        "started_at": time.time(),
        "token_path": str(token_path),
        "temporary": temporary,
    }


def _options(dashboard: int, client: int) -> list[str]:
    return [
        "--head",
        "--block",  # one process to know; Ray's others die with it
        "--node-ip-address=127.0.0.1",
        "--port=0",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={dashboard}",
        f"--ray-client-server-port={client}",
        "--dashboard-agent-listen-port=0",
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--include-log-monitor=false",
        "--disable-usage-stats",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--num-cpus={_cpus()}",
    ]


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _environment(temporary: str, token_path: pathlib.Path) -> dict[str, str]:
    """Returns the environment of the head, which its jobs inherit."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return {
        **inherited,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_TMPDIR": temporary,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_path),
        # Told to end, Ray would first wait 30 s for what runs.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        # Ray fails a job that waits longer than 900 s for its turn; nothing else uses this head.
        "RAY_JOB_START_TIMEOUT_SECONDS": str(10**9),
    }


def _short_folder() -> str:
    """Returns where Ray's files go: of 107 characters of a socket's path Ray takes 85."""
    folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    return folder if len(folder) <= 20 else "/tmp"


def _free_ports(count: int) -> list[int]:
    """Returns ports of loopback that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def detached(command: list[str], environment: dict[str, str], log: pathlib.Path) -> int:
    """Starts a process that outlives this one, in a session of its own; returns its number."""
    script = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!'
    done = subprocess.run(
        ["sh", "-c", script, "sh", str(log), *command],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        start_new_session=True,
    )
    return int(done.stdout)
