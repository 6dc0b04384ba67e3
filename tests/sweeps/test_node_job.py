"""`python -m sweeps job` on a node: its mark, its claims, its workers, missing devices."""

import signal
import subprocess
import sys

import pytest

from sweeps.__main__ import main
from sweeps.job import job, trainer
from sweeps.launchers import local
from sweeps.launchers.protocol import AGAIN, FINISHED, WRONG_NODE
from sweeps.records import layout, lease, status, submissions
from tests.sweeps.conftest import begin_stage, failing_in_turn


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    """A job changes what its process does with signals, and its JAX_PLATFORMS."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def batch(make_study):
    """A batch of one job of a study on disk."""
    return _batch(make_study(launcher="slurm", points=1))


def _batch(made):
    paths = tuple(trial.path for trial in begin_stage(made))
    return submissions.new(made.directory, made.settings["launcher"], [paths], {})


def test_a_job_marks_its_start_before_it_loads_what_the_node_may_lack(batch):
    script = "import sys; sys.modules['ml_collections'] = None; from sweeps.__main__ import main; "
    script += f"main(['job', {str(batch.file)!r}, '--index=0'])"
    assert not batch.has_started(0)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "ml_collections" in done.stderr
    assert batch.has_started(0)
    assert submissions.files(batch.file.parents[1]) == [batch.file]


def test_a_job_that_is_no_batch_leaves_no_mark(tmp_path, capsys):
    assert main(["job", str(tmp_path / "s-none-01234567.json"), "--index=0"]) == 2
    assert list(tmp_path.iterdir()) == []
    assert "s-none-01234567.json" in capsys.readouterr().err


def test_a_node_with_too_few_devices_is_avoided(batch, monkeypatch):
    two = ("CUDA_VISIBLE_DEVICES", ["0", "1"])
    monkeypatch.setattr(local, "accelerators", lambda: two)
    monkeypatch.setattr(job.preflight, "check_data", lambda *given, here: None)
    one = job.Job(batch.file, 0)
    one._workers = 4
    assert one.run() == WRONG_NODE
    assert "there are 2 accelerators" in batch.refusal(0)["reason"]


class Trainer(trainer.Trainer):
    """Ends trials as `ends` says by their names, others as 'done'; stops after `stops_after`."""

    ends = {}  # noqa: RUF012
    stops_after = None

    def run(self, directory, data_dir, loader_workers=0):
        self._claimed(lease.Attempt(directory, 1))
        outcome = self.ends.get(directory.name, "done")
        self.broken |= outcome == "failed"
        if directory.name == self.stops_after:
            self.stop()
        return trainer.End(outcome)


@pytest.fixture
def three(make_study, monkeypatch):
    """A batch of one job of three trials, on this host; trainers are stubs."""
    monkeypatch.setattr(trainer, "Trainer", type("Made", (Trainer,), {"ends": {}}))
    monkeypatch.setattr(job, "set_up_jax", lambda platform: None)
    return _batch(make_study(points=3))


@pytest.mark.parametrize(
    ("changes", "code", "claimed", "has_ended"),
    [
        ({}, FINISHED, 3, True),
        # The process is broken: what is left is for another one.
        ({"ends": {"trial_1001": "failed"}}, 1, 2, False),
        ({"ends": {"trial_1001": trainer.UNCLAIMED}}, 1, 3, True),
        ({"stops_after": "trial_1"}, AGAIN, 1, False),
        ({"stops_after": "trial_2001"}, AGAIN, 3, False),
    ],
)
def test_a_job_claims_its_trials_one_after_the_other(three, changes, code, claimed, has_ended):
    for name, value in changes.items():
        setattr(trainer.Trainer, name, value)
    assert job.run(three.file, 0) == code
    lines, _ = three.claims(0)
    expected = [*three.jobs[0][:claimed], *([submissions.CLAIMS_END] * has_ended)]
    assert lines == expected


def test_a_cancelled_study_is_begun_by_no_job(three):
    layout.write_json(three.file.parents[1] / submissions.CANCELLED, {})
    assert job.run(three.file, 0) == FINISHED
    assert three.claims(0) == ([], 0)


def test_claims_are_read_on_from_where_they_ended(three):
    three.note_claim(0, "a")
    lines, end = three.claims(0)
    assert lines == ["a"]
    file = three.file.with_name(f"{three.name}.0.claims")
    file.write_bytes(file.read_bytes() + b"b\nc")  # cut short by a kill
    assert three.claims(0, end) == (["b"], end + 2)


def test_workers_of_a_node_have_a_share_each(batch, monkeypatch):
    """Each is a process of its own; what one of them could not do, the job has not done."""
    monkeypatch.setattr(job.preflight, "check_data", lambda *given, here: None)
    codes, started = [1, FINISHED], []

    class Process:
        def __init__(self, command, **options):
            started.append([part for part in command if part.startswith(("--slot", "--cpus"))])
            self.wait = lambda: codes[len(started) - 2]

    monkeypatch.setattr(subprocess, "Popen", Process)
    one = job.Job(batch.file, 0)
    one._workers = 2
    assert one.run() == 1
    assert [arguments[0] for arguments in started] == ["--slot=0", "--slot=1"]
    assert all(arguments[1].startswith("--cpus=") for arguments in started)
    assert batch.claims(0) == ([], 0)


def test_a_file_server_that_fails_as_a_job_begins_costs_the_trial_nothing(batch, monkeypatch):
    """Of all files that a job reads before it has a worker, one fails."""
    [path] = batch.jobs[0]
    directory = batch.file.parents[1] / path
    lease.claim(directory).end("done")
    status.write(directory, "done")
    codes = []
    files = [*failing_in_turn(monkeypatch, lambda: codes.append(job.run(batch.file, 0)))]
    assert {file.name for file in files} >= {batch.file.name, layout.STUDY, layout.STATUS}
    assert codes == [FINISHED] * (1 + len(files))
