"""The scheduler with stub jobs, of this host and of an engine: lost, refused, hung and cut off."""

import errno
import io
import os
import signal
import time
import types
from unittest import mock

import pytest

from sweeps.launchers.protocol import EngineError, State
from sweeps.records import clock, disk, layout, lease, outages, status, submissions
from sweeps.scheduling import places, submitter
from sweeps.scheduling.scheduler import Interrupted
from tests.sweeps.conftest import change_lease, failing
from tests.sweeps.simulation import referee


def _states(scheduler, trials):
    return [status.read(scheduler.root / trial.path)["state"] for trial in trials]


def test_a_trial_is_in_one_place(make_scheduler):
    scheduler, trials = make_scheduler()
    held, paths = scheduler.places, [trial.path for trial in trials]
    held.left = dict(zip(paths, trials, strict=True))
    scheduler.submitter.queue(held.left)
    batch = submissions.new(scheduler.root, "local", [tuple(paths)], {})
    held.jobs["x"] = job = places.SubmittedJob(batch, 0, dict(held.left))
    batch.note_claim(0, paths[0])
    [claimed] = job.read_claims()
    scheduler.submitter.note_claim("x", job, claimed)
    held.watch([trials[1]])
    assert [*held.waiting] == paths[2:]
    assert referee.misplaced(held) == []
    held.waiting.update(held.left)
    assert referee.misplaced(held) == paths[:2]
    held.waiting.clear()
    held.jobs.clear()
    assert referee.misplaced(held) == [paths[0], paths[2]]


def test_jobs_of_an_engine_are_submitted_once(make_scheduler):
    scheduler, trials = make_scheduler(2, is_this_host=False)
    scheduler.launcher.slots = 8
    scheduler.run(trials)
    assert _states(scheduler, trials) == ["done", "done"]
    assert [batch.size for batch in scheduler.launcher.batches] == [2]
    again, trials = make_scheduler(2, is_this_host=False)
    again.run(trials)
    assert again.launcher.batches == []


def test_a_job_is_seen_to_train_one_trial_at_a_time(make_scheduler, monkeypatch):
    """A trial that it ended and the one that it began are read at the same look; of trials that
    run at a time the time left is reckoned."""
    scheduler, trials = make_scheduler(is_this_host=False, **{"slurm.trials_per_job": 3})
    stub, left, held, running = scheduler.launcher, [trial.path for trial in trials], [], []

    def status_of(handles):
        if held:
            status.write(scheduler.root / held[0].trial_directory, "done")
            held.pop().end("done")
        if not left:
            return dict.fromkeys(handles, State.GONE)
        held.append(lease.claim(scheduler.root / left[0]))
        [batch] = stub.batches
        batch.note_claim(0, left[0])
        status.write(scheduler.root / left.pop(0), "running")
        return dict.fromkeys(handles, State.RUNNING)

    put = scheduler.progress._put

    def noted(*arguments):
        put(*arguments)
        running.append(len(scheduler.progress.survey.running))

    monkeypatch.setattr(stub, "_work", lambda batch, index: None)
    monkeypatch.setattr(stub, "status", status_of)
    monkeypatch.setattr(scheduler.progress, "_put", noted)
    scheduler.run(trials)
    assert max(running) == scheduler.progress.survey.at_once == 1


@pytest.mark.parametrize(
    ("is_this_host", "outcome", "count"),
    [(True, "failed", 3), (True, "killed", 3), (False, "failed", 3), (False, "killed", 10)],
)
def test_a_trial_that_ends_all_its_jobs_is_given_up(make_scheduler, is_this_host, outcome, count):
    """Nodes of an engine vanish, no trial's fault. Another run tries anew."""
    for _ in range(2):
        scheduler, trials = make_scheduler(2, is_this_host)
        scheduler.launcher.ends = [(outcome, "x")] * count
        scheduler.launcher.slots = 1
        scheduler.run(trials)
        assert scheduler.launcher.taken.count(trials[0].path) == count
        assert _states(scheduler, trials) == ["failed", "done"]


@pytest.mark.parametrize(
    ("trace", "lost", "batches", "state"),
    [
        ("log", 1, 2, "done"),
        ("log", 99, 3, "failed"),
        ("mark", 99, 3, "failed"),  # as on Kubernetes with a bucket
        ("none", 99, 20, "failed"),  # such a job never ran
        ("refusal", 99, 20, "failed"),
        ("refusal", 1, 2, "done"),
    ],
)
def test_jobs_of_an_engine_that_end_before_they_claim(
    make_scheduler, monkeypatch, capsys, trace, lost, batches, state
):
    scheduler, trials = make_scheduler(1, is_this_host=False)
    scheduler.poll_s, pauses = 0.0, []
    monkeypatch.setattr(scheduler.submitter, "hold_back", lambda: pauses.append(True))
    scheduler.launcher.lost = [trace] * lost
    scheduler.run(trials)
    assert len(scheduler.launcher.batches) == batches
    assert _states(scheduler, trials) == [state]
    assert len(scheduler.launcher.batches[1].avoid) == (trace == "refusal")
    assert bool(pauses) == (trace in ("none", "refusal"))
    if state == "failed":
        assert f"{batches} jobs" in status.read(scheduler.root / trials[0].path)["reason"]
    assert ("no such module" in capsys.readouterr().out) == (trace == "log" and lost > 1)


@pytest.mark.parametrize("silent", ["submit", "find"])
def test_an_engine_away_at_first_is_the_users_to_know(make_scheduler, monkeypatch, silent):
    def submit(batch):
        raise EngineError("the engine is away")

    for _ in range(2):  # the next driver does not wait for what was never submitted
        scheduler, trials = make_scheduler(is_this_host=False)
        setattr(scheduler.launcher, silent, submit)
        if silent == "submit":
            scheduler.launcher.find = lambda batch: None
        with pytest.raises(ValueError, match="slurm .* the engine is away"):
            scheduler.run(trials)
        assert [batch.handles for batch in submissions.batches(scheduler.root)][-1] == []


@pytest.mark.parametrize("is_this_host", [True, False])
@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_driver_that_is_told_to_stop(make_scheduler, is_this_host, is_cancelled):
    """Jobs of an engine go on without it, unless the study is cancelled."""
    scheduler, trials = make_scheduler(2, is_this_host)
    scheduler.places.jobs["x"] = places.SubmittedJob(
        submissions.new(scheduler.root, scheduler.submitter.name, [(trials[0].path,)], {}), 0, {}
    )
    if is_cancelled:
        layout.write_json(scheduler.root / submissions.CANCELLED, {})
    else:
        scheduler.stop_requested = lambda: True
    with pytest.raises(Interrupted):
        scheduler.run(trials)
    assert scheduler.launcher.cancelled == ["x"] * (is_cancelled or is_this_host)
    assert scheduler.launcher.batches == []


@pytest.mark.parametrize(
    ("module", "function"),
    [(os, "listdir"), (io, "open"), (os, "stat")],  # of the mark of a cancelled study
)
def test_a_scheduler_outlives_a_file_server_that_fails(
    make_scheduler, monkeypatch, capsys, module, function
):
    """Every trial ends once, none is counted as failed, and it is said once."""
    scheduler, trials = make_scheduler()
    scheduler.launcher.ends = [("failed", "x")]
    root, away, real = str(scheduler.root), [], scheduler.job_watch.look

    def look():
        away.append(True)
        try:
            real()
        finally:
            away.clear()

    monkeypatch.setattr(scheduler.job_watch, "look", look)

    def is_asked(path):
        return root in path and (away or path.endswith(submissions.CANCELLED))

    met = failing(monkeypatch, function, errno.ESTALE, is_asked, 2, module)
    scheduler.run(trials)
    assert _states(scheduler, trials) == ["done"] * 3
    shown = capsys.readouterr().out
    assert "[3/3]" in shown
    assert met
    assert "Stale file handle" in shown
    assert len(scheduler.launcher.taken) == 4


@pytest.mark.parametrize(
    ("claims", "pending", "counted"),
    [
        # Killed between two trials: the others are free, and none has failed.
        (["done"], [1, 2], 0),
        (["open"], [0, 1, 2], 0),
        (["done", submissions.CLAIMS_END], [1, 2], 2),  # it could claim neither
        ([], [0, 1, 2], 0),  # killed before it claimed one
    ],
)
def test_what_a_job_that_is_gone_leaves(make_scheduler, monkeypatch, claims, pending, counted):
    scheduler, trials = make_scheduler()
    paths = [trial.path for trial in trials]
    batch = submissions.new(scheduler.root, "local", [tuple(paths)], {})
    for line in claims:
        batch.note_claim(0, paths[0] if line in ("done", "open") else line)
    scheduler.places.left = dict(zip(paths, trials, strict=True))
    job = places.SubmittedJob(batch, 0, dict(scheduler.places.left))
    if "done" in claims:
        job.read_claims()
        job.claimed.clear()
        del scheduler.places.left[paths[0]]
    unrecorded = []
    count = scheduler.job_watch.policy.count_unrecorded
    monkeypatch.setattr(
        scheduler.job_watch.policy,
        "count_unrecorded",
        lambda *arguments: unrecorded.append(arguments) or count(*arguments),
    )
    scheduler.job_watch._follow_up_job(job, set(), set())
    assert sorted(scheduler.places.waiting) == sorted(paths[number] for number in pending)
    assert len(unrecorded) == counted


def test_jobs_that_a_killed_driver_did_not_start_are_no_deaths(make_scheduler):
    """It was killed while it submitted: the engine takes the batch for its own all the same."""
    scheduler, trials = make_scheduler()
    submissions.new(scheduler.root, "local", [tuple(t.path for t in trials)], {}, sharing=4)
    scheduler.run(trials)
    assert _states(scheduler, trials) == ["done"] * 3
    assert scheduler.launcher.taken == [trial.path for trial in trials]


@pytest.mark.parametrize("answer", [None, [], ["of another time"]])
def test_handles_that_another_driver_has_recorded_stay(make_scheduler, monkeypatch, answer):
    """It submits while this driver asks the engine, which does not know the batch yet."""
    scheduler, trials = make_scheduler()
    scheduler.places.left = {trial.path: trial for trial in trials}
    batch = submissions.new(scheduler.root, "local", [tuple(scheduler.places.left)], {})

    def find(batch):
        batch.record(["its own"])
        return answer

    monkeypatch.setattr(scheduler.engines, "of", lambda batch: types.SimpleNamespace(find=find))
    scheduler.places.unconfirmed.append(batch)
    scheduler.submitter.confirm()
    assert batch.handles == ["its own"]
    assert list(scheduler.places.jobs) == ["its own"]


def test_jobs_that_end_before_they_claim_are_bounded(make_scheduler):
    """A log shows that a job was started, or that it could not be."""
    scheduler, trials = make_scheduler()
    scheduler.launcher.lost = ["log"] * 9
    with pytest.raises(ValueError, match="before it claimed a trial; .*\nno such module"):
        scheduler.run(trials)
    assert len(scheduler.launcher.batches) == scheduler.study.settings["max_attempts"]


def test_a_job_that_is_taken_up_holds_what_it_has_claimed(make_scheduler, capsys):
    """The slot of a killed job that shared its trials is used at once, and nothing counts."""
    scheduler, trials = make_scheduler()
    stub, (held, killed, free) = scheduler.launcher, [trial.path for trial in trials]
    stub.slots = 2
    batch = submissions.new(scheduler.root, "local", [(held, killed, free)], {}, sharing=2)
    handles = stub.find(batch)
    batch.record(handles)
    batch.note_claim(0, held)
    batch.note_claim(1, killed)
    at_work = lease.claim(scheduler.root / held)
    status.write(scheduler.root / held, "running")
    stub.running.add(handles[0])

    looks = []

    def stop_requested():
        looks.append(sorted(stub.taken) == sorted([killed, free]))
        if looks[-1] and stub.running:
            status.write(scheduler.root / held, "done")
            at_work.end("done")
            batch.note_claim(0, submissions.CLAIMS_END)
            stub.running.clear()
        return len(looks) > 100

    scheduler.stop_requested = stop_requested
    scheduler.run(trials)
    assert sorted(stub.taken) == sorted([killed, free])
    assert "again" not in capsys.readouterr().out


def test_jobs_share_a_bounded_number_of_trials(make_scheduler, monkeypatch):
    """One that is lost has its list written anew. The next slots to be free get a new list's jobs:
    the last trials of a study are not one job's alone."""
    monkeypatch.setattr(submitter, "_MOST_SHARED", 3)
    scheduler, trials = make_scheduler(points=5)
    stub, real = scheduler.launcher, scheduler.launcher.submit
    stub.slots = 2

    def submit(batch):
        """Of the first batch one job still runs when its trials are done."""
        handles = stub.find(batch)
        stub.running = set() if stub.batches else {handles[1]}
        real(batch)
        return handles

    monkeypatch.setattr(stub, "submit", submit)
    scheduler.run(trials)
    assert stub.taken == [trial.path for trial in trials]
    assert [len(batch.jobs[0]) for batch in scheduler.launcher.batches] == [3, 2]
    assert [batch.sharing for batch in scheduler.launcher.batches] == [2, 2]


@pytest.mark.parametrize(("number", "is_this_host"), [(errno.EIO, True), (errno.ENOSPC, False)])
def test_a_batch_that_cannot_be_written_is_no_end_of_its_trials(
    make_scheduler, monkeypatch, capsys, number, is_this_host
):
    """A full disk ends a driver only where jobs of its host need the same disk."""
    scheduler, trials = make_scheduler()
    scheduler.launcher.is_this_host = is_this_host
    failing(monkeypatch, "replace", number, lambda path: submissions.JOBS in path, times=2)
    scheduler.run(trials)
    assert scheduler.launcher.taken == [trial.path for trial in trials]
    shown = capsys.readouterr().out
    assert shown.count(os.strerror(number)) == 1
    assert "again" not in shown


def test_an_outage_ends_after_an_hour(monkeypatch):
    messages, now = [], [0.0]
    monkeypatch.setattr(clock.clock, "monotonic", lambda: now[0])
    outage, error = outages.Outage(messages.append), OSError(errno.EIO, "Input/output error", "/x")

    def fails(start, end):
        """A look at files every minute fails; the turns between them touch none."""
        for now[0] in range(start, end, 60):
            outage.note_error(error)
            outage.note_success()

    fails(0, 3600)
    assert messages == ["[Errno 5] Input/output error: '/x'; the driver waits"]
    now[0] += outages.QUIET_S + 1
    outage.note_success()
    fails(4000, 7600)
    assert len(messages) == 2
    with pytest.raises(OSError, match=r"'/x', and nothing else for 60 minutes.*`resume` goes on"):
        fails(7600, 7721)

    later = outages.Outage(messages.append)
    for now[0] in (10_000, 10_060, 20_000, 20_060):  # the driver was stopped for hours
        later.note_error(error)

    def work():
        raise error

    with pytest.raises(OSError, match="nothing else") as ended:
        outage.wait_out(work)
    assert str(ended.value).count("nothing else") == 1


def test_an_error_that_does_not_pass_is_raised_at_once():
    work = mock.Mock(side_effect=[PermissionError(errno.EACCES, "Permission denied", "/x"), None])
    with pytest.raises(PermissionError):
        outages.Outage(print).wait_out(work)


def test_a_full_disk_ends_the_driver(make_scheduler, capsys):
    """No trial after it is begun, and nothing is tried again in vain."""
    scheduler, trials = make_scheduler()
    full = disk.FullError(scheduler.root, "a checkpoint takes 1.0 MB")
    scheduler.launcher.ends = [("failed", str(full))]
    with pytest.raises(ValueError, match=r"disk full: No space left on device for .*B free"):
        scheduler.run(trials)
    assert len(scheduler.launcher.taken) == 1
    assert "again" not in capsys.readouterr().out


def test_a_full_disk_that_the_driver_meets_ends_it(make_scheduler, monkeypatch):
    scheduler, trials = make_scheduler()
    failing(monkeypatch, "replace", errno.ENOSPC, lambda path: submissions.JOBS in path)
    with pytest.raises(ValueError, match="disk full: No space left on device for"):
        scheduler.run(trials)


@pytest.mark.parametrize(
    ("changes", "ahead_s", "beats", "is_ended"),
    [
        # The file server's clock is set: a job that beats is left alone, one that hangs is ended.
        *(({}, ahead_s, 1, False) for ahead_s in (-86400, -300, 0, 300, 86400)),
        *(({}, ahead_s, 0, True) for ahead_s in (-86400, -300, 0, 300, 86400)),
        # Archivers and object stores drop empty files; a job that lives makes it again.
        ({}, 0, None, True),
        ({"boot_id": "of another host"}, 0, 0, False),  # whose process has the number of ours
        ({"boot_id": None}, 0, 0, False),
        ({"pid_namespace": "pid:[1]"}, 0, 0, False),
    ],
)
def test_a_job_of_this_host_that_is_silent_is_ended(
    make_scheduler, monkeypatch, changes, ahead_s, beats, is_ended
):
    """A job of this process is silent at the third look, though the host sleeps an hour before
    each."""
    scheduler, [trial] = make_scheduler(points=1)
    signals = []
    monkeypatch.setattr(os, "kill", lambda *arguments: signals.append(arguments))
    monkeypatch.setattr(lease, "EXPIRES_AFTER_S", 2 * lease.HEARTBEAT_EVERY_S)
    attempt = lease.claim(scheduler.root / trial.path)
    batch = submissions.new(scheduler.root, "local", [(trial.path,)], {})
    scheduler.places.jobs["x"] = places.SubmittedJob(batch, 0, {trial.path: trial})
    change_lease(attempt, **changes)
    heartbeat, began = attempt.directory / lease.HEARTBEAT, round(time.time()) + ahead_s
    for look in range(3):
        assert signals == []
        heartbeat.unlink(missing_ok=True)
        if beats is not None:
            heartbeat.touch()
            os.utime(heartbeat, (began + beats * look, began + beats * look))
        monkeypatch.setattr(clock.clock, "monotonic", lambda now=3600.0 * (look + 1): now)
        scheduler.job_watch.end_silent()
    assert signals == [(os.getpid(), signal.SIGKILL)] * is_ended
