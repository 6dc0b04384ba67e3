"""Trials of several real processes: the numbers of one process, and faults of any of them."""

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from sweeps.distributed import bootstrap
from sweeps.launchers import local, protocol
from sweeps.records import layout, lease, status

TWO = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
# What equality is judged on: not on times.
EXACT = ("global_step", "loss", "grad_norm", "train/", "validation/", "test/")


# --- where the processes learn who they are ---


def test_detects_explicit_slurm_and_tpu():
    explicit = {
        "ATTNPERF_COORDINATOR": "10.0.0.1:1234",
        "ATTNPERF_NUM_PROCESSES": "4",
        "ATTNPERF_PROCESS_ID": "3",
    }
    assert bootstrap.detect(explicit) == bootstrap.Processes(4, 3, "10.0.0.1:1234")
    step = {
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_PROCID": "1",
        "SLURM_JOB_ID": "4097",
        "SLURM_STEP_NODELIST": "gpu[007-008,011]",
    }
    assert bootstrap.detect(step) == bootstrap.Processes(2, 1, "gpu007:61441")
    named = {**step, "ATTNPERF_COORDINATOR": "127.0.0.1:99"}
    assert bootstrap.detect(named) == bootstrap.Processes(2, 1, "127.0.0.1:99")
    several = {**step, "SLURM_STEP_NODELIST": "rack[2-3]n[01-04],x9"}
    assert bootstrap.detect(several).coordinator == "rack2n01:61441"
    slices = {
        "TPU_WORKER_HOSTNAMES": "a,b",
        "TPU_WORKER_ID": "1",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "1",
    }
    assert bootstrap.detect(slices) == bootstrap.Processes(4, 3, None)
    assert not bootstrap.detect(slices).is_primary


def test_one_process_is_alone():
    batch_script = {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}
    assert bootstrap.detect(batch_script) is None
    assert bootstrap.detect({**batch_script, "SLURM_STEP_NUM_TASKS": "1"}) is None
    assert bootstrap.detect({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}) is None
    assert bootstrap.detect({}) is None


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"ATTNPERF_PROCESS_ID": "1"}, "without ATTNPERF_COORDINATOR and ATTNPERF_NUM_PROCESSES"),
        (
            {
                "ATTNPERF_COORDINATOR": "host",
                "ATTNPERF_NUM_PROCESSES": "2",
                "ATTNPERF_PROCESS_ID": "1",
            },
            "must be host:port",
        ),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "x"}, "SLURM_JOB_ID='x'"),
        (
            {
                "ATTNPERF_COORDINATOR": "host:1",
                "ATTNPERF_NUM_PROCESSES": "2",
                "ATTNPERF_PROCESS_ID": "2",
            },
            "process 2 of 2",
        ),
    ],
)
def test_contradicting_environments_are_refused(environment, message):
    with pytest.raises(ValueError, match=message):
        bootstrap.detect(environment)


# --- a group of real processes ---


class Group:
    """Two real processes: number 0 is the primary one."""

    def __init__(self, environment, cache_dir, logs, primary_directory=None):
        (self._port,), self._logs = local.free_ports(1), logs
        self.events = []
        self.processes = [
            self._start(number, environment, cache_dir, cwd=None if number else primary_directory)
            for number in range(2)
        ]
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _start(self, number, environment, cache_dir, cwd):
        program = ["-m", "sweeps.worker", "--secondary" if number else "--primary"]
        with (self._logs / f"process-{self._port}-{number}.txt").open("w") as log:
            return subprocess.Popen(
                [sys.executable, *program, f"--cache_dir={cache_dir}"],
                stdin=subprocess.DEVNULL if number else subprocess.PIPE,
                stdout=log if number else subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(
                    ATTNPERF_COORDINATOR=f"127.0.0.1:{self._port}",
                    ATTNPERF_NUM_PROCESSES="2",
                    ATTNPERF_PROCESS_ID=str(number),
                ),
                cwd=cwd,
            )

    def _listen(self):
        for line in self.processes[0].stdout:
            self.events.append(json.loads(line))

    def run(self, directory, data_dir):
        """Sends a trial to the primary process."""
        order = {"trial": str(directory), "data_dir": data_dir}
        self.processes[0].stdin.write(json.dumps(order) + "\n")
        self.processes[0].stdin.flush()

    def count(self, event):
        """Returns how many events of that name have come."""
        return sum(e["event"] == event for e in list(self.events))

    def wait_for(self, event, count=1, timeout=240):
        """Returns the count-th event of that name."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            found = [e for e in list(self.events) if e["event"] == event]
            if len(found) >= count:
                return found[count - 1]
            if not self._listener.is_alive():
                pytest.fail(f"the primary process ended before {event}: {self.logs()}")
            time.sleep(0.005)
        pytest.fail(f"no {event} within {timeout} s; had {self.events}; {self.logs()}")

    def close(self):
        """Ends the primary process as a driver does; returns all exit codes."""
        self.processes[0].stdin.close()
        return self.codes()

    def codes(self, timeout=120):
        """Waits for all processes and returns their exit codes."""
        codes = [process.wait(timeout) for process in self.processes]
        self._listener.join(timeout)
        return codes

    def logs(self):
        """Returns the ends of the processes' error outputs."""
        files = sorted(self._logs.glob(f"process-{self._port}-*"))
        return "\n".join(f"{file.name}: {file.read_text()[-1500:]}" for file in files)

    def kill(self):
        """Kills what still runs."""
        for process in self.processes:
            process.kill()
            process.wait()
        self._listener.join(10)
        self.processes[0].stdin.close()
        self.processes[0].stdout.close()


@pytest.fixture
def group(environment, cache_dir, tmp_path):
    """Returns a function that starts a group; all of it is killed at the end."""
    started = []

    def start(**options):
        started.append(Group(environment, cache_dir, tmp_path, **options))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def _rows(directory, name):
    with (directory / name).open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if k.startswith(EXACT)} for row in rows]


def _measured(directory):
    return _rows(directory, layout.EVAL_MEASUREMENTS), _rows(directory, layout.MEASUREMENTS)


def _saved(directory):
    return sorted(int(path.name) for path in (directory / layout.CHECKPOINTS).iterdir())


@pytest.fixture
def alone(made_once, make_trial, worker, data_dir):
    """Returns what one process with two devices measures."""

    def run(folder):
        one = worker(XLA_FLAGS=TWO)
        one.run(make_trial(name="alone", experiment_dir=folder), data_dir)
        assert one.wait_for("end", timeout=240)["outcome"] == "done"
        one.close()

    (written,) = made_once("alone", run).rglob(layout.EVAL_MEASUREMENTS)
    return _measured(written.parent)


@pytest.mark.slow
def test_two_processes_train_as_one_and_stop_at_the_same_step(alone, make_trial, group, data_dir):
    """Bit for bit; a trial that is lost is left by all; SIGTERM to the second one stops all."""
    whole, lost, stopped = (make_trial(name=name) for name in ("whole", "lost", "stopped"))
    two = group()
    two.run(whole, data_dir)
    assert two.wait_for("end")["outcome"] == "done"
    assert _measured(whole) == alone
    assert layout.read_json(whole / layout.TRIAL)["hardware"]["process_count"] == 2
    two.run(lost, data_dir)
    two.wait_for("compiled", 2)
    (lost / layout.ATTEMPTS / "2").mkdir()
    assert two.wait_for("end", 2)["outcome"] == "lost"
    two.run(stopped, data_dir)
    two.wait_for("eval", two.count("eval") + 1)
    two.processes[1].terminate()
    assert two.wait_for("end", 3)["outcome"] == "preempted"
    assert two.close() == [0, 0], two.logs()
    step = status.read(stopped)["global_step"]
    assert 4 <= step < 12
    assert _saved(stopped)[-1] == step

    again = group()
    again.run(stopped, data_dir)
    assert again.wait_for("compiled")["step"] == step
    assert again.wait_for("end")["outcome"] == "done"
    assert _measured(stopped) == alone
    led = make_trial(name="led")
    again.run(led, data_dir)
    again.wait_for("eval", again.count("eval") + 1)
    again.processes[0].terminate()
    assert again.wait_for("end", 2)["outcome"] == "preempted"
    assert again.codes() == [0, 0], again.logs()
    assert _saved(led)[-1] == status.read(led)["global_step"]


@pytest.mark.slow
def test_a_killed_second_process_ends_all_and_one_process_goes_on(
    alone, make_trial, group, worker, data_dir
):
    directory = make_trial(name="killed")
    two = group()
    two.run(directory, data_dir)
    two.wait_for("eval", 2)
    two.processes[1].kill()
    began = time.monotonic()
    codes = two.codes()
    assert time.monotonic() - began < 2 * bootstrap.HEARTBEAT_S, two.logs()
    assert codes == [protocol.AGAIN, -signal.SIGKILL] or codes[0] == -signal.SIGABRT, two.logs()
    found = status.read(directory)
    assert found["state"] != "done"
    one = worker(XLA_FLAGS=TWO)
    one.run(directory, data_dir)
    assert one.wait_for("compiled")["step"] in (4, 8)
    assert one.wait_for("end")["outcome"] == "done"
    assert _measured(directory) == alone


@pytest.mark.slow
def test_a_second_process_that_fails_ends_all_and_says_why(make_trial, group, data_dir, tmp_path):
    """The data is on the primary process's host alone."""
    directory = make_trial(name="partly")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "data").symlink_to(data_dir)
    two = group(primary_directory=tmp_path / "here")
    two.run(directory, "data")
    ended = two.wait_for("end")
    assert ended["outcome"] == "failed"
    assert "process 1 of 2" in ended["error"]
    assert "DataError" in ended["error"]
    primary, secondary = two.codes()
    assert primary == protocol.AGAIN, two.logs()
    assert secondary != 0
    outcome = layout.read_json(directory / layout.ATTEMPTS / "1" / lease.OUTCOME)
    assert outcome["outcome"] == "failed"
    assert "process 1 of 2" in status.read(directory)["reason"]


def _join(environment, port, number, **limits):
    code = f"from sweeps.distributed import process_group; process_group.join(**{limits!r})"
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment(
            ATTNPERF_COORDINATOR=f"127.0.0.1:{port}",
            ATTNPERF_NUM_PROCESSES="2",
            ATTNPERF_PROCESS_ID=str(number),
        ),
        capture_output=True,
        text=True,
    )


def test_a_group_that_is_not_complete_is_given_up_by_name(environment):
    (port,) = local.free_ports(1)
    done = _join(environment, port, 1, start_s=3)
    assert done.returncode == protocol.AGAIN
    assert "process 1 of 2" in done.stderr
    assert f"(coordinator 127.0.0.1:{port};" in done.stderr
    assert "not all of 2 processes were connected after 3 s" in done.stderr


def test_a_taken_port_is_named(environment):
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        done = _join(environment, port, 0)
    assert done.returncode == 1
    assert f"port {port} cannot be opened here" in done.stderr
