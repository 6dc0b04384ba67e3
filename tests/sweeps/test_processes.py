"""Trials of several real processes: the numbers of one process, and faults of any of them."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from sweeps.distributed import process_group
from sweeps.launchers import local, protocol
from sweeps.records import attempts, layout, lease, status, submissions
from sweeps.training import loop
from tests.sweeps.chaos import equality

SHAPE = {"steps": 60, "eval_every": 12}
TWO = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"


# --- where the processes learn who they are ---


_STEP = {
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_JOB_ID": "4097",
    "SLURM_STEP_NODELIST": "gpu[007-008,011]",
}
_EXPLICIT = {
    "ATTNPERF_COORDINATOR": "10.0.0.1:1234",
    "ATTNPERF_NUM_PROCESSES": "4",
    "ATTNPERF_PROCESS_ID": "3",
}
_SLICES = {
    "TPU_WORKER_HOSTNAMES": "a,b",
    "TPU_WORKER_ID": "1",
    "MEGASCALE_NUM_SLICES": "2",
    "MEGASCALE_SLICE_ID": "1",
}


@pytest.mark.parametrize(
    ("environment", "group"),
    [
        (_EXPLICIT, (4, 3, "10.0.0.1:1234")),
        (_STEP, (2, 1, "gpu007:61441")),
        ({**_STEP, "ATTNPERF_COORDINATOR": "127.0.0.1:99"}, (2, 1, "127.0.0.1:99")),
        ({**_STEP, "SLURM_STEP_NODELIST": "rack[2-3]n[01-04],x9"}, (2, 1, "rack2n01:61441")),
        (_SLICES, (4, 3)),
        # One process is alone.
        ({}, None),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}, None),  # a batch script
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}, None),
        ({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}, None),
    ],
)
def test_processes_are_detected(environment, group):
    expected = process_group.ProcessGroup(*group) if group else process_group.SINGLE
    detected = process_group.detect(environment)
    assert detected == expected
    assert detected.is_primary == (group is None)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"ATTNPERF_PROCESS_ID": "1"},
            "ATTNPERF_COORDINATOR and ATTNPERF_NUM_PROCESSES is not set",
        ),
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
        process_group.detect(environment)


# --- a group of real processes ---


class Group:
    """Two real processes of a trial's job: number 0 is the primary one."""

    def __init__(self, worker, log, directory, second_directory=None):
        (port,) = local.free_ports(1)
        coordinator = {"ATTNPERF_COORDINATOR": f"127.0.0.1:{port}", "ATTNPERF_NUM_PROCESSES": "2"}
        self.primary = worker(directory, **coordinator, ATTNPERF_PROCESS_ID="0")
        self._log = log
        with log.open("w") as file:
            self.second = subprocess.Popen(
                self.primary.batch.command(0),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**self.primary.environment, "ATTNPERF_PROCESS_ID": "1"},
                cwd=second_directory,
            )

    def codes(self):
        """Waits for both processes; returns their exit codes and what they printed."""
        codes = [process.wait(240) for process in (self.primary.process, self.second)]
        return codes, self.primary.batch.log(0).read_text() + self._log.read_text()

    def finish(self, code=0):
        """Waits for both processes, which must end with that exit code."""
        codes, text = self.codes()
        assert codes == [code, code], text


@pytest.fixture
def group(worker, tmp_path):
    """Returns a function that starts a group on a trial; all of it is killed at the end."""
    groups = []

    def start(directory, **options):
        log = tmp_path / f"second-{len(groups)}.txt"
        groups.append(Group(worker, log, directory, **options))
        return groups[-1]

    yield start
    for two in groups:
        two.second.kill()
        two.second.wait()


@pytest.fixture
def alone(made_once, make_trial, worker):
    """Returns what one process with two devices measures."""

    def run(folder):
        trial = make_trial(name="alone", experiment_dir=folder, **SHAPE)
        assert worker(trial, XLA_FLAGS=TWO).end()[0] == "done"

    (written,) = made_once("alone", run).rglob(layout.EVAL_MEASUREMENTS)
    return equality.curves(written.parent)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, pytest.param(0, marks=pytest.mark.nightly)])
def test_two_processes_train_as_one_and_stop_at_the_same_step(alone, make_trial, group, number):
    """Bit for bit; SIGTERM to either stops both."""
    stopped = make_trial(name="stopped", **SHAPE)
    two = group(stopped)
    two.primary.wait_for("eval")
    (two.primary.process, two.second)[number].terminate()
    two.finish(protocol.AGAIN)
    step = status.read(stopped)["global_step"]
    assert step < SHAPE["steps"]
    assert step % loop.AGREE_EVERY == 0
    assert layout.checkpoint_steps(stopped)[-1] == step
    two = group(stopped)
    two.finish()
    assert two.primary.start == step
    assert equality.curves(stopped) == alone
    assert layout.read_json(stopped / "meta_data_0.json")["process_count"] == 2


@pytest.mark.nightly
@pytest.mark.parametrize("loses", ["trial", "study"])
def test_a_trial_that_is_lost_or_cancelled_is_left_by_both(make_trial, group, loses):
    directory = make_trial(name="left", steps=2000)
    two = group(directory)
    two.primary.wait_for("train")
    if loses == "trial":
        (directory / layout.ATTEMPTS / "2").mkdir()
    else:
        layout.write_json(layout.study_of(directory) / submissions.CANCELLED, {})
    two.finish()
    assert two.primary.end()[0] == {"trial": "lost", "study": "preempted"}[loses]


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_killed_process_ends_both_and_one_process_goes_on(
    alone, make_trial, group, worker, number
):
    """The job is killed, and the trial has not failed."""
    directory = make_trial(name="killed", **SHAPE)
    two = group(directory)
    two.primary.wait_for("eval", 2)
    (two.primary.process, two.second)[number].kill()
    began = time.monotonic()
    codes, text = two.codes()
    assert time.monotonic() - began < 2 * process_group.HEARTBEAT_S, text
    assert codes[number] == -signal.SIGKILL
    assert codes[1 - number] in (protocol.AGAIN, -signal.SIGABRT), text
    assert [outcome for outcome, _ in attempts.ends(directory)] == ["killed"]
    assert status.read(directory)["state"] != "failed"
    one = worker(directory, XLA_FLAGS=TWO)
    assert one.end()[0] == "done"
    assert one.start >= 12
    assert equality.curves(directory) == alone


@pytest.mark.nightly
def test_a_process_without_heartbeats_ends_the_others(make_trial, group):
    """As where a host is lost, and no connection breaks."""
    directory = make_trial(name="frozen", steps=2000)
    two = group(directory)
    two.primary.wait_for("train")
    two.second.send_signal(signal.SIGSTOP)
    assert two.primary.process.wait(2 * process_group.HEARTBEAT_S) == -signal.SIGABRT
    assert [outcome for outcome, _ in attempts.ends(directory)] == ["killed"]


@pytest.mark.nightly
def test_a_second_process_that_fails_ends_all_and_says_why(
    make_trial, group, data_dir, tmp_path, monkeypatch
):
    """The data is in the primary process's working folder alone."""
    directory = make_trial(name="partly", data_dir="/proc/self/cwd/data")
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(data_dir)
    two = group(directory, second_directory=tmp_path / "there")
    codes, text = two.codes()
    assert codes[0] in (protocol.AGAIN, -signal.SIGABRT), text
    assert codes[1] == 1, text
    outcome = layout.read_json(directory / layout.ATTEMPTS / "1" / lease.OUTCOME)
    assert outcome["outcome"] == "failed"
    assert not outcome["retry"]
    assert "DataError: /proc/self/cwd/data" in outcome["error"]
    assert "process 1 of 2" in text
    assert status.read(directory)["reason"] == outcome["error"]


def _join(environment, port, number, start_s):
    code = f"from sweeps.distributed import process_group; process_group.join(start_s={start_s})"
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
    assert done.returncode == -signal.SIGABRT
    assert "process 1 of 2" in done.stderr
    assert f"(coordinator 127.0.0.1:{port};" in done.stderr
    assert "DEADLINE_EXCEEDED" in done.stderr


def test_a_taken_port_is_named(environment):
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        done = _join(environment, port, 0, start_s=3)
    assert done.returncode == 1
    assert f"port {port} cannot be opened here" in done.stderr
