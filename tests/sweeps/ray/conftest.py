"""A real Ray on loopback, started by the launcher's own code and stopped by process number."""

import os
import pathlib
import subprocess
import sys
import time

import pytest

from sweeps.launchers.ray import head, launcher
from sweeps.launchers.ray import start as ray_start
from sweeps.records import lease

DEADLINE_S = 120


def _wait(condition, what, deadline_s=DEADLINE_S):
    """Returns what `condition` returns once that is true; fails after the deadline."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.1)
    pytest.fail(f"not within {deadline_s} s: {what}")


@pytest.fixture(scope="session")
def wait_for():
    """Returns the function that waits until a condition holds, 120 s at most."""
    return _wait


@pytest.fixture(scope="session")
def installed():
    """Skips where this Python cannot start a Ray head; CI must not be such a place."""
    try:
        launcher.check_installed()
    except ValueError as error:
        if "ray" in os.environ.get("ATTNPERF_REQUIRED_ENGINES", "").split(","):
            pytest.fail(f"Ray is required here: {error}")
        pytest.skip(f"no Ray here: {error}")


@pytest.fixture(scope="session")
def share():
    """CPUs of one job: half of this host's, as each of a local driver's two workers has."""
    return max(1, len(os.sched_getaffinity(0)) // 2)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory, installed, share):
    """A head on loopback for two jobs at a time that gives waiting jobs up after 60 s."""
    directory = tmp_path_factory.mktemp("ray")
    patch = pytest.MonkeyPatch()
    environment, options = ray_start._environment, ray_start._options
    changed = {"RAY_JOB_START_TIMEOUT_SECONDS": "60", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    # A node that is gone is noticed in about 15 s, not a minute.
    changed |= {"RAY_health_check_period_ms": "2000", "RAY_health_check_timeout_ms": "5000"}
    changed |= {"RAY_health_check_failure_threshold": "2"}
    # The second node could not reach 127.0.0.1: Ray takes that for this host's other address.
    node = {"--node-ip-address=127.0.0.1": "--node-ip-address=127.0.0.2"}
    patch.setattr(ray_start, "_environment", lambda *given: {**environment(*given), **changed})
    patch.setattr(ray_start, "_options", lambda *p: [node.get(o, o) for o in options(*p)])
    patch.setattr(ray_start, "_cpus", lambda: 2 * share)
    with head.locked(directory):
        record = head.start(directory, idle_s=3600)
    patch.undo()
    yield record
    with head.locked(directory):
        head.stop(directory, record)
    assert lease.process_start(record["pid"]) is None


@pytest.fixture
def second_node(cluster, share):
    """Returns a function that adds a node with a host name of its own; returns its raylet."""
    started = []

    def start(name, jobs):
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": cluster["token_path"]}
        plain = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        address = _gcs_address(cluster)
        options = [
            f"--address={address}",
            "--block",
            f"--num-cpus={jobs * share}",
            "--disable-usage-stats",
        ]
        options += ["--node-ip-address=127.0.0.3", '--resources={"second": 1}']
        options += [f"--object-store-memory={ray_start.OBJECT_STORE_BYTES}"]
        options += ["--min-worker-port=0", "--max-worker-port=0", "--include-log-monitor=false"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options]
        rename = ["unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh"]
        done = subprocess.run([*rename, "true"], capture_output=True, check=False)
        if done.returncode:
            pytest.skip("a second Ray node needs a host name of its own, and unshare is refused")
        environment = {**plain, **token, "RAY_TMPDIR": cluster["temporary"]}
        environment["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = "0"
        environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "1"
        started.append(
            subprocess.Popen(
                [*rename, *command],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        process = started[-1]
        return _wait(lambda: _child(process.pid, "raylet"), "the second node's raylet")

    yield start
    for process in started:
        process.terminate()
        process.wait(60)


def _gcs_address(cluster):
    """Returns the address that nodes join: Ray writes it into its folder."""
    path = pathlib.Path(cluster["temporary"]) / "ray" / "ray_current_cluster"
    return _wait(lambda: path.is_file() and path.read_text().strip(), "the head's address")


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
