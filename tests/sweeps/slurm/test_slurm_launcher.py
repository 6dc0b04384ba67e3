"""The launcher against a real Slurm: submission, states, signals, lost answers."""

import collections
import dataclasses
import os
import pathlib
import shutil
import signal
import uuid

import pytest

from sweeps.launchers.protocol import EngineError, State
from sweeps.launchers.slurm import launcher
from sweeps.records.submissions import Batch
from tests.sweeps import defaults

# One Slurm for all of them.
pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.slow]

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]


@dataclasses.dataclass(frozen=True)
class StandInBatch(Batch):
    """A batch of stand-in jobs."""

    stand_ins: object = None

    def command(self, index, python=""):
        return self.stand_ins.command(index)


@pytest.fixture
def make(cluster, stand_ins):
    """Returns a function that makes a launcher and a batch of stand-ins."""

    def make(size, avoid=(), **keys):
        settings = {"slurm": {**defaults.of(launcher.Slurm), "cpus": 1, **keys}}
        name = f"s-{uuid.uuid4().hex[:8]}"
        # Slurm has patterns in the names of logs, and the shell its quotes.
        file = stand_ins.folder / "lab's 100% study" / f"{name}.json"
        file.parent.mkdir(exist_ok=True)
        environment = {"PYTHONPATH": str(REPOSITORY), "MARK": "two words"}
        batch = StandInBatch(file, ((),) * size, environment, avoid, stand_ins=stand_ins)
        return launcher.Slurm(settings, stand_ins.folder), batch

    return make


@pytest.fixture
def wait_for_states(wait_for):
    """Returns a function that waits until so many jobs are in each state."""

    def wait(engine, handles, **counts):
        expected = {State(name): count for name, count in counts.items()}
        wait_for(lambda: collections.Counter(engine.status(handles).values()) == expected, counts)

    return wait


def test_a_batch_above_the_array_limit(make, stand_ins, monkeypatch, wait_for_states):
    """12 jobs of 1 CPU on 8 CPUs, as arrays of 10 and 2, whatever the user's variables say."""
    for name, value in (
        ("SQUEUE_STATES", "FAILED"),
        ("SQUEUE_FORMAT", "%N"),
        ("SQUEUE_PARTITION", "high"),
        ("SLURM_GPUS", "7"),
        ("SBATCH_TIMELIMIT", "1"),
        ("SBATCH_ARRAY_INX", "0-3"),
        ("SLURM_JOB_ID", "1"),
        ("SLURM_CPUS_PER_TASK", "64"),
    ):
        monkeypatch.setenv(name, value)
    engine, batch = make(12)
    assert engine.find(batch) is None
    handles = engine.submit(batch)
    assert len(set(handles)) == 12
    assert len({handle.split("_")[0] for handle in handles}) == 2
    assert {event["MARK"] for event in stand_ins.wait("start", 8)} == {"two words"}
    wait_for_states(engine, handles, running=8, queued=4)
    assert engine.find(batch) == handles
    assert engine.submit(batch) == handles
    stand_ins.finish()
    wait_for_states(engine, handles, gone=12)
    assert sorted(event["index"] for event in stand_ins.events("end")) == list(range(12))
    for index in range(12):
        assert batch.log(index).read_text() == f"index {index}\n"
    assert engine.find(batch) == handles


def test_cancel_tells_running_jobs_and_removes_queued_ones(
    make, stand_ins, cluster, wait_for_states
):
    engine, batch = make(10)
    handles = engine.submit(batch)
    stand_ins.wait("start", 8)
    wait_for_states(engine, handles, running=8, queued=2)
    (stand_ins.folder / "saving").touch()
    (stand_ins.folder / "cancelled").touch()
    engine.cancel(handles)
    assert {event["signal"] for event in stand_ins.wait("signal", 8)} == {signal.SIGTERM}
    # Slurm's own cancel makes them COMPLETING, to be killed after KillWait; ours lets them save.
    assert set(engine.status(handles).values()) == {State.RUNNING, State.GONE}
    left = cluster.run("squeue", "-h", "--array", f"--name={batch.name}", "-o", "%T")
    assert left.split() == ["RUNNING"] * 8
    (stand_ins.folder / "saving").unlink()
    wait_for_states(engine, handles, gone=10)
    assert len(stand_ins.events("start")) == 8


@pytest.mark.nightly
def test_a_job_cancelled_by_hand_is_not_requeued(make, stand_ins, cluster, wait_for_states):
    engine, batch = make(2)
    handles = engine.submit(batch)
    stand_ins.wait("start", 2)
    cluster.run("scancel", handles[0])
    assert not stand_ins.wait("asked", 1)[0]["requeued"]
    wait_for_states(engine, handles, gone=1, running=1)
    engine.cancel(handles)
    engine.cancel(handles)


@pytest.mark.nightly
@pytest.mark.parametrize("partition", ["main", "grace"])
def test_preempted_jobs_run_again_once(make, stand_ins, cluster, partition, wait_for_states):
    """Without grace Slurm requeues by itself; within it only a job that asks is run again."""
    engine, batch = make(2, partition=partition)
    handles = engine.submit(batch)
    stand_ins.wait("start", 2)
    urgent = cluster.urgent()
    assert {event["signal"] for event in stand_ins.wait("signal", 2)} == {signal.SIGTERM}
    assert {event["requeued"] for event in stand_ins.wait("asked", 2)} == {True}
    stand_ins.wait("start", 4)
    assert not cluster.run("squeue", "-h", "-j", urgent)
    assert set(engine.status(handles).values()) == {State.RUNNING}
    stand_ins.finish()
    wait_for_states(engine, handles, gone=2)
    assert len(stand_ins.events("start")) == 4
    assert len(stand_ins.events("end")) == 2


@pytest.mark.nightly
def test_time_limit(make, stand_ins, wait_for_states):
    """Slurm's least limit is a minute, and its warning may come 30 s early."""
    engine, batch = make(1, time="00:01:00", save_seconds=50)
    handles = engine.submit(batch)
    assert stand_ins.wait("signal", 1)[0]["signal"] == signal.SIGTERM
    assert stand_ins.wait("asked", 1)[0]["requeued"]
    stand_ins.wait("start", 2)
    stand_ins.finish()
    wait_for_states(engine, handles, gone=1)
    assert len(stand_ins.events("end")) == 1


@pytest.fixture
def hanging(cluster, tmp_path, monkeypatch):
    """Returns a function: from then on, sbatch finds a controller that has just stopped."""
    wrapper, controller = tmp_path / "bin" / "sbatch", cluster.pid("slurmctld")

    def hang():
        wrapper.parent.mkdir()
        wrapper.write_text(f'#!/bin/sh\nkill -STOP {controller}\nexec {real} "$@"\n')
        wrapper.chmod(0o755)

    real = shutil.which("sbatch")
    monkeypatch.setenv("PATH", str(wrapper.parent), prepend=os.pathsep)
    yield hang
    os.kill(controller, signal.SIGCONT)


@pytest.mark.nightly
def test_a_lost_answer_submits_nothing_twice(make, stand_ins, cluster, hanging, wait_for_states):
    """What sbatch calls failed is in the controller's queue, and runs when that goes on."""
    engine, running = make(1)
    [known] = engine.submit(running)
    stand_ins.wait("start", 1)
    _, batch = make(2)
    hanging()
    for ask in (engine.submit, engine.find, engine.submit):
        with pytest.raises(EngineError, match="timed out"):
            ask(batch)
    with pytest.raises(EngineError, match="timed out"):
        engine.status([known])
    os.kill(cluster.pid("slurmctld"), signal.SIGCONT)
    stand_ins.wait("start", 3)
    handles = engine.find(batch)
    wait_for_states(engine, [known, *handles], running=3)
    (stand_ins.folder / "cancelled").touch()
    engine.cancel([known, *handles])
    wait_for_states(engine, [known, *handles], gone=3)
    assert len(stand_ins.events("start")) == len(stand_ins.events("signal")) == 3


@pytest.mark.nightly
def test_a_job_held_because_its_node_failed_is_released(
    make, stand_ins, cluster, wait_for_states, wait_for
):
    """Slurm drains the node and holds the job, for a person to release on Monday."""
    cluster.prolog_fails.touch()
    engine, batch = make(1)
    handles = engine.submit(batch)
    held = "launch failed requeued held"
    wait_for(lambda: cluster.run("squeue", "-h", "-o", "%r") == held, held)
    cluster.prolog_fails.unlink()
    wait_for_states(engine, handles, running=1)
    assert stand_ins.wait("start", 1)


def test_refusals_name_what_slurm_says(make):
    engine, batch = make(1, partition="nowhere")
    with pytest.raises(EngineError, match="invalid partition specified: nowhere"):
        engine.submit(batch)
    assert engine.find(batch) is None
    assert engine.status(["987654_0", f"{batch.name}_0"]) == {
        "987654_0": State.GONE,
        f"{batch.name}_0": State.GONE,
    }


def test_requeue_is_for_jobs(monkeypatch):
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID", raising=False)
    assert not launcher.Slurm.requeue()
