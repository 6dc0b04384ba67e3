"""Studies through a real Slurm, with faults: nothing lost, nothing counted twice, bit-equal."""

import os
import signal
import subprocess
import sys

import pytest

from sweeps.launchers import local
from sweeps.records import layout, lease, status
from tests.sweeps.chaos import equality

# One Slurm for all of them.
pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.slow]

STUDY = {
    "protocol": "grid",
    "variants": "standard",
    "points": 2,
    "seeds": 2,
    "batch_size": 16,
    "steps": 60,
    "eval_every": 12,
    "log_every": 6,
}
# All of a node: two jobs at a time. Every trial has this machine's CPUs, as locally with 1 worker.
SLURM = {"slurm.cpus": 4, "slurm.poll_seconds": 1, "local.workers": 1}


class Driver:
    """`python -m sweeps run` of one study, started as often as wanted."""

    def __init__(self, directory, environment, **changes):
        self.directory = directory / "digits_vit_quick"
        self.environment = environment
        settings = {"experiment_dir": directory, **STUDY, **SLURM, **changes}
        self.overrides = [f"--config.{key}={value}" for key, value in settings.items()]
        self.started = []

    def start(self):
        """Starts a driver."""
        directory = self.directory.parent
        directory.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "sweeps", "run", "--config=digits_vit_quick"]
        with (directory / "driver.log").open("ab") as log:
            self.started.append(
                subprocess.Popen(
                    [*command, *self.overrides], env=self.environment, stdout=log, stderr=log
                )
            )

    def kill(self):
        """Kills the driver with SIGKILL."""
        self.started[-1].kill()
        self.started[-1].wait()

    def wait(self):
        """Waits for the driver; returns what all drivers printed."""
        code = self.started[-1].wait(900)
        said = (self.directory.parent / "driver.log").read_text()
        assert code == 0, said
        return said

    def trials(self):
        """Returns the paths of all trials relative to the study."""
        record = layout.read_json(self.directory / "grid" / layout.TRIALS)
        return sorted(one if isinstance(one, str) else one["path"] for one in record["trials"])

    def handles(self):
        """Returns Slurm's jobs of each trial, first submission first."""
        found = {}
        for path in sorted((self.directory / "jobs").glob("*.handles.json"), key=os.path.getmtime):
            batch = layout.read_json(path.with_name(path.name.replace(".handles", "")))
            for handle, task in zip(layout.read_json(path), batch["tasks"], strict=True):
                for trial in task:
                    found.setdefault(trial, []).append(handle)
        return found

    def pid(self, trial):
        """Returns the process that works on a trial."""
        attempts = self.directory / trial / layout.ATTEMPTS
        number = lease.latest(self.directory / trial)
        return layout.read_json(attempts / str(number) / lease.LEASE)["pid"]

    def mid_training(self, *, again=False):
        """Returns the trials in training with steps done and steps left.

        In their first attempt, or in any (`again`).
        """
        found = []
        for trial in self.handles():
            state = status.read(self.directory / trial)
            wanted = again or lease.latest(self.directory / trial) == 1
            if wanted and state["state"] == "running" and 0 < state["global_step"] < 48:
                found.append(trial)
        return found


@pytest.fixture
def driver(cluster, tmp_path, environment, cache_dir, data_dir):
    """Returns a function that prepares a driver; what it leaves behind is ended."""
    made = []

    def make(**changes):
        variables = environment(JAX_COMPILATION_CACHE_DIR=str(cache_dir), PYTHONUNBUFFERED="1")
        settings = {"launcher": "slurm", "data_dir": data_dir, **changes}
        made.append(Driver(tmp_path / str(len(made)), variables, **settings))
        return made[-1]

    yield make
    for one in made:
        for process in one.started:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, environment, cache_dir, data_dir):
    """The directory of the same study on this host, never interrupted."""
    variables = environment(JAX_COMPILATION_CACHE_DIR=str(cache_dir))
    one = Driver(tmp_path_factory.mktemp("undisturbed"), variables, data_dir=data_dir)
    one.start()
    one.wait()
    return one.directory


def test_jobs_killed_requeued_and_told_to_stop(driver, undisturbed, cluster, wait_for):
    """One fault per trial, in the middle of its training."""
    one = driver()

    def kill(trial):
        """As a lack of memory does: FAILED, and the driver's to submit."""
        os.kill(one.pid(trial), signal.SIGKILL)

    def requeue(trial):
        cluster.run("scontrol", "requeue", one.handles()[trial][-1])

    def warn(trial):
        """What Slurm sends save_seconds before the time limit."""
        cluster.run("scancel", "--signal=TERM", one.handles()[trial][-1])

    faults = {kill: "killed", requeue: "preempted", warn: "preempted"}
    expected, jobs = {}, {}
    one.start()
    for fault, outcome in faults.items():
        trial = wait_for(lambda: set(one.mid_training()) - set(expected), "training").pop()
        fault(trial)
        expected[trial] = [outcome, "done"]
        jobs[trial] = 2 if fault is kill else 1
    one.wait()
    assert equality.problems(one.directory, undisturbed) == []
    assert {trial: equality.outcomes(one.directory / trial) for trial in expected} == expected
    assert {trial: len(one.handles()[trial]) for trial in jobs} == jobs


def test_preemption_and_the_loss_of_driver_controller_and_node(
    driver, undisturbed, cluster, wait_for
):
    one = driver(**{"slurm.partition": "grace"})
    one.start()
    preempted = wait_for(lambda: len(t := one.mid_training()) == 2 and t, "two trials in training")
    cluster.urgent()
    trials = [one.directory / trial for trial in preempted]

    def have_saved():
        return all(equality.outcomes(trial)[0] == "preempted" for trial in trials)

    wait_for(have_saved, "saved trials")
    one.kill()
    one.start()
    taken_up = "4 jobs of an earlier driver are taken up"
    log = one.directory.parent / "driver.log"
    wait_for(lambda: taken_up in log.read_text(), taken_up)
    os.kill(cluster.pid("slurmctld"), signal.SIGSTOP)
    away = "an engine does not answer; its jobs are left as they are"
    wait_for(lambda: away in log.read_text(), away)
    os.kill(cluster.pid("slurmctld"), signal.SIGCONT)
    # In any attempt: while a driver takes its time to start, all first ones may end.
    wait_for(lambda: one.mid_training(again=True), "training")
    # Nothing was submitted twice.
    assert {len(handles) for handles in one.handles().values()} == {1}
    for node in ("n1", "n2"):
        cluster.restart(f"slurmd-{node}")
    one.wait()
    assert equality.problems(one.directory, undisturbed) == []
    assert have_saved()


def test_a_trial_over_two_nodes_is_saved_by_both_and_goes_on(driver, cluster, wait_for):
    (port,) = local.free_ports(1)
    one = driver(
        **{
            "points": 1,
            "seeds": 1,
            "slurm.nodes": 2,
            # Names of nodes such as n1 are no hosts' names here.
            "slurm.setup": f"export ATTNPERF_COORDINATOR=127.0.0.1:{port}",
        }
    )
    one.start()
    (trial,) = wait_for(one.mid_training, "training")
    cluster.run("scancel", "--signal=TERM", one.handles()[trial][-1])
    one.wait()
    directory = one.directory / trial
    assert equality.outcomes(directory) == ["preempted", "done"]
    assert layout.read_json(directory / layout.TRIAL)["hardware"]["process_count"] == 2
    steps = [row["global_step"] for row in equality.curves(directory)[0]]
    assert steps == ["12", "24", "36", "48", "60"]


def test_a_half_done_local_study_moves_to_slurm(driver, undisturbed, wait_for):
    one = driver(launcher="local")
    one.start()

    def begun():
        stage = one.directory / "grid"
        trials = one.trials() if (stage / layout.TRIALS).exists() else []
        states = [status.read(one.directory / trial) for trial in trials]
        return any(0 < s["global_step"] < 48 and s["state"] == "running" for s in states)

    wait_for(begun, "training")
    one.started[-1].terminate()
    assert one.started[-1].wait(300) == 130
    one.overrides.append("--config.launcher=slurm")
    one.start()
    one.wait()
    assert equality.problems(one.directory, undisturbed) == []
    outcomes = [equality.outcomes(one.directory / trial) for trial in one.trials()]
    assert ["preempted", "done"] in outcomes
