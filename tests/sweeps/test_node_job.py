"""`python -m sweeps job` on a node: its mark, its driver's count of failures, missing devices."""

import errno
import pathlib
import signal
import subprocess
import sys

import pytest

from sweeps.__main__ import main
from sweeps.launchers import local
from sweeps.launchers.protocol import FINISHED, WRONG_NODE
from sweeps.records import clock, layout, lease, outages, status, submissions
from sweeps.scheduling import job
from sweeps.study import study_directory


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
    made = make_study(launcher="slurm", points=1)
    study_directory.prepare(made)
    [trial] = study_directory.materialise(made, "tune", made.trials("tune"))
    path = trial.path
    return submissions.new(made.directory, "slurm", [(path,)], {}, began={path: 0})


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
    monkeypatch.setattr(job.preflight, "check_data_here", lambda study: None)
    one = job.NodeJob(batch.file, 0)
    one.study.settings["slurm"] = {**one.study.settings["slurm"], "workers": 4}
    assert one.run() == WRONG_NODE
    assert "there are 2 accelerators" in batch.refusal(0)["reason"]


def test_a_job_counts_failures_since_its_drivers_run_began(batch, monkeypatch):
    monkeypatch.setattr(job.preflight, "check_data_here", lambda study: None)
    seen = []

    class Scheduler:
        def __init__(self, about, engine, watches):
            seen.append(about.began)

        def run(self, trials):
            raise ValueError("no device")

        def close(self):
            pass

        outage = outages.Outage(print)

    monkeypatch.setattr(job, "LocalScheduler", Scheduler)
    one = job.NodeJob(batch.file, 0)
    assert one.run() == WRONG_NODE
    assert seen == [{path: 0 for path in batch.jobs[0]}]


def test_a_file_server_that_fails_as_a_job_begins_costs_the_trial_nothing(batch, monkeypatch):
    """Of all files that a job reads before it has a worker, one fails, each in its turn."""
    [path] = batch.jobs[0]
    directory = batch.file.parents[1] / path
    lease.claim(directory).end("done")
    status.write(directory, "done")
    monkeypatch.setattr(clock.clock, "sleep", lambda seconds: None)
    real, read = pathlib.Path.read_bytes, []

    def fails(file):
        read.append(file)
        if len(read) == at:
            raise OSError(errno.EIO, "Input/output error", str(file))
        return real(file)

    monkeypatch.setattr(pathlib.Path, "read_bytes", fails)
    at = 0
    assert job.run(batch.file, 0) == FINISHED
    names = {file.name for file in read}
    assert names >= {batch.file.name, layout.STUDY, layout.TRIAL, layout.STATUS}
    for at in range(1, len(read) + 1):
        read.clear()
        assert job.run(batch.file, 0) == FINISHED, at
