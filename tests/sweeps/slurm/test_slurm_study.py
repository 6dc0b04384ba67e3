"""Studies through a real Slurm, with faults: nothing lost, nothing counted twice, bit-equal."""

import os
import signal

import pytest

from sweeps.launchers import local
from sweeps.records import layout, lease, status
from tests.sweeps.chaos import equality

# One Slurm for all of them.
pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.slow]
POINTS = range(4)
# Every trial has this machine's CPUs, as locally with 1 worker.
STUDY = {"steps": 60, "eval_every": 12, "log_every": 6, "local.workers": 1}
# All CPUs of a node: two jobs at a time.
SLURM = {**STUDY, "launcher": "slurm", "slurm.cpus": 4, "slurm.poll_seconds": 1}


def _mid_training(drivers, *, again=False):
    """Returns the points in training with steps done and steps left.

    In their first attempt, or in any (`again`).
    """
    points = []
    for point in POINTS:
        state = status.read(drivers.trial(point))
        expected = again or lease.latest(drivers.trial(point)) == 1
        if expected and state["state"] == "running" and 0 < state["global_step"] < 48:
            points.append(point)
    return points


@pytest.fixture(scope="session")
def undisturbed(make_undisturbed):
    """The directory of the same study on this host, never interrupted."""
    return make_undisturbed("slurm", **STUDY)


def test_jobs_killed_requeued_and_told_to_stop(drivers, cluster, wait_for):
    """One fault per trial, in the middle of its training."""

    def kill(point):
        """As a lack of memory does: FAILED, and the driver's to submit."""
        attempt = drivers.trial(point) / layout.ATTEMPTS / "1"
        os.kill(layout.read_json(attempt / lease.LEASE)["pid"], signal.SIGKILL)

    def requeue(point):
        cluster.run("scontrol", "requeue", drivers.handles()[drivers.trial(point)][-1])

    def warn(point):
        """What Slurm sends save_seconds before the time limit."""
        cluster.run("scancel", "--signal=TERM", drivers.handles()[drivers.trial(point)][-1])

    faults = {kill: "killed", requeue: "preempted", warn: "preempted"}
    expected, jobs = {}, {}
    process = drivers.run(**SLURM)
    for fault, outcome in faults.items():
        point = wait_for(lambda: set(_mid_training(drivers)) - set(expected), "training").pop()
        fault(point)
        expected[point] = [outcome, "done"]
        jobs[point] = 2 if fault is kill else 1
    drivers.finish(process, timeout=900)
    for point in POINTS:
        steps = [row["global_step"] for row in equality.curves(drivers.trial(point))[0]]
        assert steps == ["12", "24", "36", "48", "60"]
    assert {point: equality.outcomes(drivers.trial(point)) for point in expected} == expected
    assert {point: len(drivers.handles()[drivers.trial(point)]) for point in jobs} == jobs


@pytest.mark.nightly
def test_preemption_and_the_loss_of_driver_controller_and_node(
    drivers, undisturbed, cluster, wait_for
):
    drivers.environment["PYTHONUNBUFFERED"] = "1"
    changes = {**SLURM, "slurm.partition": "grace"}
    first = drivers.run(**changes)
    preempted = wait_for(lambda: len(p := _mid_training(drivers)) == 2 and p, "two in training")
    cluster.urgent()

    def have_saved():
        return all(equality.outcomes(drivers.trial(p))[0] == "preempted" for p in preempted)

    wait_for(have_saved, "saved trials")
    first.kill()
    first.wait()
    second = drivers.run(**changes)
    # Those that are not done by then: a driver takes its time to start.
    assert any(" jobs of an earlier driver are taken up" in line for line in second.stdout)
    os.kill(cluster.pid("slurmctld"), signal.SIGSTOP)
    away = "; its jobs are left as they are"
    assert any(away in line for line in second.stdout)
    os.kill(cluster.pid("slurmctld"), signal.SIGCONT)
    # In any attempt: while a driver takes its time to start, all first ones may end.
    wait_for(lambda: _mid_training(drivers, again=True), "training")
    # Nothing was submitted twice.
    assert {len(handles) for handles in drivers.handles().values()} == {1}
    for node in ("n1", "n2"):
        cluster.restart(f"slurmd-{node}")
    drivers.finish(second, timeout=900)
    assert equality.problems(drivers.study, undisturbed) == []
    assert have_saved()


@pytest.mark.nightly
def test_a_trial_over_two_nodes_is_saved_by_both_and_goes_on(drivers, cluster, wait_for):
    (port,) = local.free_ports(1)
    # Names of nodes such as n1 are no hosts' names here.
    setup = f"export ATTNPERF_COORDINATOR=127.0.0.1:{port}"
    process = drivers.run(**{**SLURM, "points": 1, "slurm.nodes": 2, "slurm.setup": setup})
    wait_for(lambda: _mid_training(drivers), "training")
    cluster.run("scancel", "--signal=TERM", drivers.handles()[drivers.trial(0)][-1])
    drivers.finish(process, timeout=900)
    directory = drivers.trial(0)
    assert equality.outcomes(directory) == ["preempted", "done"]
    assert layout.read_json(directory / "meta_data_0.json")["process_count"] == 2
    steps = [row["global_step"] for row in equality.curves(directory)[0]]
    assert steps == ["12", "24", "36", "48", "60"]


@pytest.mark.nightly
def test_a_half_done_local_study_moves_to_slurm(drivers, cluster, undisturbed, wait_for):
    process = drivers.run(**STUDY)
    wait_for(lambda: _mid_training(drivers), "training")
    process.terminate()
    drivers.finish(process, 130, timeout=300)
    drivers.finish(drivers.run(**SLURM), timeout=900)
    assert equality.problems(drivers.study, undisturbed) == []
    outcomes = [equality.outcomes(drivers.trial(point)) for point in POINTS]
    assert ["preempted", "done"] in outcomes
