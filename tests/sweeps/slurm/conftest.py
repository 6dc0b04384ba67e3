"""A real Slurm on this machine (.ci/slurm.sh), and jobs that write down what happens to them."""

import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest

from tests.sweeps import waiting

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
wait_for = waiting.wait_for
PROGRAMS = ("sbatch", "slurmctld", "slurmd", "munged")


class Cluster:
    """Two nodes, n1 and n2, of 4 CPUs and 2 GPUs (not real) each; arrays of at most 10."""

    def __init__(self, root):
        self.root = root
        self.prolog_fails = root / "prolog_fails"
        (root / "prolog").write_text(f"#!/bin/sh\n[ ! -e {self.prolog_fails} ]\n")
        (root / "prolog").chmod(0o755)
        self._settings = {
            **os.environ,
            "SLURM_CI_ROOT": str(root),
            "SLURM_CI_PORT": str(_free_ports(0, 11, 12)),
            "SLURM_CI_ARRAY": "11",
            "SLURM_CI_MESSAGE_TIMEOUT": "5",
            "SLURM_CI_KILL_WAIT": "30",
            "SLURM_CI_GRACE": "60",
            "SLURM_CI_PROLOG": str(root / "prolog"),
        }

    def script(self, verb):
        """Runs .ci/slurm.sh."""
        command = ["bash", str(REPOSITORY / ".ci" / "slurm.sh"), verb]
        # Into a file: the daemons keep it open.
        with (self.root / "script.log").open("ab") as log:
            done = subprocess.run(
                command, env=self._settings, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        assert not done.returncode, (self.root / "script.log").read_text()

    def run(self, *command):
        """Returns what a command of Slurm prints."""
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert not done.returncode, done.stderr
        return done.stdout.strip()

    def pid(self, daemon):
        """Returns the process of slurmctld, slurmd-n1 or slurmd-n2."""
        return int((self.root / "run" / f"{daemon}.pid").read_text())

    def restart(self, daemon):
        """Kills a daemon with SIGKILL and starts it again."""
        os.kill(self.pid(daemon), signal.SIGKILL)
        name, _, node = daemon.partition("-")
        self.run(name, "-f", os.environ["SLURM_CONF"], *(["-N", node] if node else []))

    def urgent(self, seconds=1.0):
        """Submits a job that preempts everything; returns its id."""
        return self.run(
            *("sbatch", "--parsable", "--partition=high", "--nodes=2", "--exclusive"),
            *("--output=/dev/null", f"--wrap=sleep {seconds}"),
        )

    def tidy(self):
        """Ends what a test left behind and waits for idle nodes."""
        self.prolog_fails.unlink(missing_ok=True)
        self.run("scancel", "--user=root")
        self.run("scancel", "--user=root", "--signal=KILL", "--full")
        idle = ("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N")

        def are_idle():
            # Again and again: on a busy machine a node is lost, or drained, after this began, too.
            for node in ("n1", "n2"):
                command = ["scontrol", "update", f"NodeName={node}", "State=RESUME"]
                subprocess.run(command, capture_output=True)
            return len(self.run(*idle).split()) == 2 or time.sleep(0.5)

        waiting.wait(are_idle, "idle nodes")


def _free_ports(*offsets):
    """Returns a port with its neighbours free, below those that the kernel hands out."""
    for port in random.Random(os.getpid()).sample(range(20_000, 32_000), 100):
        with socket.socket() as one, socket.socket() as two, socket.socket() as three:
            try:
                for single, offset in zip((one, two, three), offsets, strict=True):
                    single.bind(("127.0.0.1", port + offset))
            except OSError:
                continue
            return port
    raise AssertionError("no free ports")


@pytest.fixture(scope="session")
def _cluster():
    missing = [f"{name} is not installed" for name in PROGRAMS if not shutil.which(name)]
    missing += ["it needs root"] if os.geteuid() else []
    if missing:
        waiting.absent("slurm", missing[0])
    # munged refuses a socket below a folder that only its owner may enter.
    root = pathlib.Path(tempfile.mkdtemp(prefix="slurm-"))
    root.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(root / "slurm.conf"))
        cluster = Cluster(root)
        cluster.script("up")
        yield cluster
        cluster.tidy()
        cluster.script("down")
    shutil.rmtree(root)


@pytest.fixture
def cluster(_cluster):
    """The cluster, idle before and after the test."""
    yield _cluster
    _cluster.tidy()


# A job that works until it is told to stop or a file says that it may finish.
STAND_IN = """
import json, os, pathlib, signal, sys, time
from sweeps.launchers.slurm import launcher

folder, index, signals = pathlib.Path(sys.argv[1]), int(sys.argv[2].split("=")[1]), []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: signals.append(number))

def note(event, **fields):
    line = {"event": event, "index": index, "at": time.time(), **fields}
    for key in ("SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES", "MARK"):
        line[key] = os.environ.get(key)
    with (folder / "events").open("a") as file:
        file.write(json.dumps(line) + "\\n")

note("start")
print("index", index, flush=True)
while not signals and not (folder / "finish").exists():
    time.sleep(0.05)
if signals:
    note("signal", signal=signals[0])
    while (folder / "saving").exists():
        time.sleep(0.05)
    if not (folder / "cancelled").exists():
        note("asked", requeued=launcher.Slurm.requeue())
    sys.exit(75)
note("end")
"""


class StandIns:
    """Jobs of a batch: what they wrote down."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "job.py").write_text(STAND_IN)

    def command(self, index):
        """Returns a job's command."""
        return [sys.executable, str(self.folder / "job.py"), str(self.folder), f"--index={index}"]

    def events(self, name):
        """Returns the events of that name, in order."""
        path = self.folder / "events"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def wait(self, name, count):
        """Returns the events of that name when there are `count` of them."""
        waiting.wait(lambda: len(self.events(name)) >= count, f"{count} × {name}")
        return self.events(name)

    def finish(self):
        """Lets all jobs end."""
        (self.folder / "finish").touch()


@pytest.fixture
def stand_ins(tmp_path):
    """Stand-in jobs of this test."""
    return StandIns(tmp_path)
