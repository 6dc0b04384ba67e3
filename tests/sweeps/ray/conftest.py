"""A real Ray on loopback, stopped by process number: `ray stop` would end every other one, too."""

import contextlib
import importlib.util
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

from sweeps.launchers import local
from sweeps.launchers.ray import launcher
from sweeps.records import lease
from tests.sweeps import waiting

wait_for = waiting.wait_for
# Starting took 9 to 17 s on two idle cores, more than a minute on two busy ones.
START_S = 300
# Objects are not used, but Ray refuses less than 75 MB.
OBJECT_STORE = "--object-store-memory=80000000"
OPTIONS = ("--block", "--disable-usage-stats", OBJECT_STORE, "--include-log-monitor=false")
OPTIONS += ("--min-worker-port=0", "--max-worker-port=0")
VARIABLES = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    # Told to end, Ray would first wait 30 s for what runs.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    "RAY_JOB_START_TIMEOUT_SECONDS": "60",
    # A node that is gone is noticed in about 15 s, not a minute.
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "2",
}


@pytest.fixture(scope="session")
def installed():
    """Skips where this Python cannot start a Ray head; CI must not be such a place."""
    needed = (*launcher._NEEDED, "aiohttp_cors", "opencensus", "prometheus_client")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        waiting.absent("ray", f"this Python lacks {', '.join(missing)}")


@pytest.fixture(scope="session")
def share():
    """CPUs of one job: half of this host's, as each of a local driver's two workers has."""
    return max(1, len(os.sched_getaffinity(0)) // 2)


class Head:
    """A Ray head on loopback, with a token, ports and a folder of its own."""

    def __init__(self, folder, cpus):
        self.folder = folder
        # Of 107 characters of a socket's path Ray takes 85.
        self.temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        self.token_path = folder / "token"
        self.token_path.write_text(secrets.token_hex(32))
        dashboard, client = local.free_ports(2)
        self.address = f"http://127.0.0.1:{dashboard}"
        options = [
            *("--head", "--port=0", "--dashboard-host=127.0.0.1", f"--num-cpus={cpus}"),
            *(f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}"),
            # A second node could not reach 127.0.0.1: Ray takes that for this host's other address.
            *("--node-ip-address=127.0.0.2", "--dashboard-agent-listen-port=0"),
        ]
        self.process = self.start(options, folder / "ray.log")

    def start(self, options, log, before=()):
        """Starts `ray start` with options, with what this head's processes need."""
        plain = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        paths = {"RAY_TMPDIR": self.temporary, "RAY_AUTH_TOKEN_PATH": str(self.token_path)}
        command = [*before, sys.executable, "-m", "ray.scripts.scripts", "start"]
        with log.open("ab") as file:
            return subprocess.Popen(
                [*command, *OPTIONS, *options],
                env={**plain, **VARIABLES, **paths},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def cluster(self):
        """Returns Ray's client."""
        from sweeps.launchers.ray import client

        return client.Cluster(self.address)

    def answers(self):
        """Whether the head answers and has a node; fails where it has ended."""
        from sweeps.launchers.ray import client

        assert self.process.poll() is None, (self.folder / "ray.log").read_text()[-2000:]
        with contextlib.suppress(*client.ERRORS):
            return bool(self.cluster().resources())

    def stop(self):
        """Stops the head, and with it all that it started."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        mark = f"RAY_TMPDIR={self.temporary}".encode()
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # gone meanwhile, or another user's
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    os.kill(int(folder.name), signal.SIGKILL)
        shutil.rmtree(self.temporary, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory, installed, share):
    """A head for two jobs at a time that gives waiting jobs up after 60 s."""
    head = Head(tmp_path_factory.mktemp("ray"), cpus=2 * share)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_AUTH_MODE", "token")
            patch.setenv("RAY_AUTH_TOKEN_PATH", str(head.token_path))
            patch.delenv("RAY_AUTH_TOKEN", raising=False)
            read_token_anew()
            waiting.wait(head.answers, "Ray's head", START_S)
            yield head
    finally:
        head.stop()
    read_token_anew()
    assert lease.process_start(head.process.pid) is None


def read_token_anew():
    """Has Ray look for the token, which it reads once in a process, where it is now."""
    from ray._private import authentication_test_utils

    authentication_test_utils.reset_auth_token_state()


@pytest.fixture
def second_node(cluster, share):
    """Returns a function that adds a node with a host name of its own; returns its raylet."""
    started = []

    def start(name, jobs):
        rename = ["unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh"]
        done = subprocess.run([*rename, "true"], capture_output=True, check=False)
        if done.returncode:
            pytest.skip("a second Ray node needs a host name of its own, and unshare is refused")
        options = [f"--address={_gcs_address(cluster)}", f"--num-cpus={jobs * share}"]
        options += ["--node-ip-address=127.0.0.3", '--resources={"second": 1}']
        process = cluster.start(options, cluster.folder / "second.log", rename)
        started.append(process)
        return waiting.wait(lambda: _child(process.pid, "raylet"), "the second node's raylet")

    yield start
    for process in started:
        process.terminate()
        process.wait(60)


def _gcs_address(cluster):
    """Returns the address that nodes join: Ray writes it into its folder."""
    path = pathlib.Path(cluster.temporary) / "ray" / "ray_current_cluster"
    return waiting.wait(lambda: path.is_file() and path.read_text().strip(), "the head's address")


def _child(pid, name):
    """Returns the number of a process's child whose program has that name."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for child in map(int, children):
        try:
            if name in pathlib.Path(f"/proc/{child}/comm").read_text():
                return child
        except FileNotFoundError:
            continue
    return None
