"""The job scheduler with real jobs: an engine of subprocesses, killed, lost and cut off at will."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from sweeps.launchers import table
from sweeps.launchers.protocol import EngineError, State
from sweeps.monitoring.progress import Progress
from sweeps.records import layout, status, submissions
from sweeps.scheduling.scheduler import Interrupted, Scheduler
from tests.sweeps.chaos import equality
from tests.sweeps.conftest import begin_stage

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


class ProcessEngine:
    """An engine that starts every job at once; its processes outlive drivers."""

    is_this_host = False
    place = {}  # noqa: RUF012

    def __init__(self, environment):
        self.environment = environment
        self.processes = {}
        self.submitted = []
        self.cancelled = []
        self.before = []  # commands instead of the job's own, used up first

    def capacity(self):
        return 8

    def submit(self, batch):
        handles = []
        for index in range(batch.size):
            command = self.before.pop(0) if self.before else batch.command(index)
            with batch.log(index).open("a") as log:
                path = [batch.environment["PYTHONPATH"], self.environment["PYTHONPATH"]]
                process = subprocess.Popen(
                    command,
                    env={
                        **self.environment,
                        **batch.environment,
                        "PYTHONPATH": os.pathsep.join(path),
                    },
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            handles.append(f"{batch.name}/{index}")
            self.processes[handles[-1]] = process
        self.submitted.append(batch)
        return handles

    def find(self, batch):
        return None

    def status(self, handles):
        alive = {handle for handle, process in self.processes.items() if process.poll() is None}
        return {h: State.RUNNING if h in alive else State.GONE for h in handles}

    def cancel(self, handles):
        self.cancelled += handles


@pytest.fixture
def engine(stub_environment):
    """An engine whose processes are gone when the test ends; their workers train nothing."""
    made = ProcessEngine(stub_environment())
    yield made
    for process in made.processes.values():
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def _processes(monkeypatch):
    """The engine's name in the table of launchers, as one file and one line would put it there.

    Jobs find both by the sitecustomize of stub_training.
    """
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent / "stub_training")
    monkeypatch.setitem(table.CLASSES, "processes", "processes_launcher:Processes")


@pytest.fixture
def make_scheduler(make_study, engine, _processes):
    """Returns a function that makes a study on disk, its scheduler and its first stage's trials."""

    def make(**changes):
        settings = {"launcher": "processes", "points": 2, "eval_every": 4, "steps": 8, **changes}
        resolved = make_study(**settings)
        trials = begin_stage(resolved)
        made = Scheduler(resolved, Progress(), lambda: False, engine)
        made.poll_s = 0.2
        return made, trials

    return make


def _states(scheduler, trials):
    return [status.read(scheduler.root / trial.path)["state"] for trial in trials]


def test_jobs_are_submitted_once_and_finish(make_scheduler, engine):
    scheduler, trials = make_scheduler()
    scheduler.run(trials)
    assert _states(scheduler, trials) == ["done", "done"]
    assert [batch.size for batch in engine.submitted] == [2]
    assert all(equality.outcomes(scheduler.root / trial.path) == ["done"] for trial in trials)
    # A driver that comes later finds nothing to do.
    again, trials = make_scheduler()
    again.run(trials)
    assert len(engine.submitted) == 1


def test_a_job_is_seen_to_train_one_trial_at_a_time(make_scheduler, engine, monkeypatch):
    """A trial that it began and the one that it ended are often read at the same look; of trials
    that run at a time the time left is reckoned."""
    # A trial takes 0.8 s, longer than two looks are apart: none can pass unseen.
    engine.environment["STUB_UPDATE_S"] = "0.1"
    changes = {"points": 4, "processes.trials_per_job": 4}
    scheduler, trials = make_scheduler(**changes)
    scheduler.poll_s = 0.5
    running = []
    put = scheduler.progress._put

    def noted(*given):
        put(*given)
        running.append(len(scheduler.progress.survey.running))

    monkeypatch.setattr(scheduler.progress, "_put", noted)
    scheduler.progress.stage("tune", trials, scheduler.root)
    scheduler.run(trials)
    assert _states(scheduler, trials) == ["done"] * 4
    assert max(running) == scheduler.progress.survey.at_once == 1


def test_a_crash_without_a_trace_is_submitted_again_and_bounded(make_scheduler, engine):
    scheduler, trials = make_scheduler(points=1)
    engine.before = [["false"]]
    scheduler.run(trials)
    assert _states(scheduler, trials) == ["done"]
    assert len(engine.submitted) == 2


def test_a_job_that_never_begins_is_given_up_with_its_log(make_scheduler, engine, capsys):
    scheduler, trials = make_scheduler(points=1, max_attempts=2)
    engine.before = [["sh", "-c", "echo no such module; exit 1"]] * 5
    scheduler.run(trials)
    assert _states(scheduler, trials) == ["failed"]
    assert len(engine.submitted) == 2
    assert "no such module" in capsys.readouterr().out
    assert "2 jobs" in status.read(scheduler.root / trials[0].path)["reason"]


@pytest.mark.parametrize("mark", [True, False])
def test_a_job_that_leaves_no_log_is_known_by_its_mark(make_scheduler, engine, monkeypatch, mark):
    """As on Kubernetes with a bucket. A job without log and mark never ran."""
    monkeypatch.setattr("sweeps.scheduling.scheduler._PAUSE_S", 0.0)
    scheduler, trials = make_scheduler(points=1)
    scheduler.poll_s, batches = 0.0, []

    def submit(batch):
        batches.append(batch)
        if mark:
            submissions.note_start(batch.file, 0)
        return [f"{batch.name}/0"]

    engine.submit = submit
    scheduler.run(trials)
    assert _states(scheduler, trials) == ["failed"]
    assert len(batches) == (3 if mark else 20)


def test_a_node_without_data_is_avoided(make_scheduler, engine, data_dir, tmp_path):
    scheduler, trials = make_scheduler(points=1)
    # The node lacks the data; the next one has it.
    refusing = tmp_path / "refuse.py"
    refusing.write_text(
        "import sys, pathlib\n"
        "from sweeps.records import submissions as jobs\n"
        "one = jobs.read(next(pathlib.Path(sys.argv[1]).glob('s-*[0-9a-f].json')))\n"
        "one.refuse(0, 'digits_vit: no data in /nowhere')\n"
        "sys.exit(76)\n"
    )
    engine.before = [[sys.executable, str(refusing), str(scheduler.root / submissions.JOBS)]]
    scheduler.run(trials)
    assert _states(scheduler, trials) == ["done"]
    assert [len(batch.avoid) for batch in engine.submitted] == [0, 1]


@pytest.mark.parametrize("silent", ["submit", "find"])
def test_an_engine_away_at_first_is_the_users_to_know(make_scheduler, engine, silent):
    scheduler, trials = make_scheduler()

    def submit(batch):
        raise EngineError("the engine is away")

    setattr(engine, silent, submit)
    for _ in range(2):  # the next driver does not wait for what was never submitted
        with pytest.raises(ValueError, match="processes does not take the jobs: the engine is awa"):
            scheduler.run(trials)
        assert [batch.handles for batch in submissions.batches(scheduler.root)][-1] == []
        scheduler, trials = make_scheduler()


def test_jobs_of_a_cancelled_study_are_withdrawn(make_scheduler, engine):
    scheduler, trials = make_scheduler(steps=40)

    def stop_requested():
        if len(scheduler.jobs) == 2:
            layout.write_json(scheduler.root / submissions.CANCELLED, {})
        return False

    scheduler.stop_requested = stop_requested
    with pytest.raises(Interrupted):
        scheduler.run(trials)
    assert engine.cancelled == list(scheduler.jobs)


@pytest.mark.parametrize(
    "name",
    [
        "s-quick-0123abcd (conflicted copy 2026-11-25).json",
        "s-quick-0123abcd.sync-conflict-20261125.json",
        "s-quick-0123abcd_1.json",
        "s-quick-0123abcd~.json",
        "._s-quick-0123abcd.json",
        ".nfs00000001.json",
    ],
)
def test_what_lies_beside_batches_is_none(tmp_path, name):
    batch = submissions.new(_folder(tmp_path), "slurm", [("a",)], {})
    batch.file.with_name(name).write_text("")
    assert [found.name for found in submissions.batches(tmp_path / "quick")] == [batch.name]


def _folder(tmp_path):
    (tmp_path / "quick").mkdir()
    return tmp_path / "quick"


@pytest.mark.parametrize(
    "changes",
    [
        {"sharing": "x"},
        {"place": []},
        {"tasks": 3},
        {"tasks": None},
        {"created_at": "x"},
        {"avoid": 3},
    ],
)
def test_a_damaged_batch_is_named(tmp_path, changes):
    file = submissions.new(_folder(tmp_path), "slurm", [("a",)], {}).file
    layout.write_json(file, {**layout.read_json(file), **changes})
    with pytest.raises(ValueError, match=f"{file} is damaged: "):
        submissions.read(file)
