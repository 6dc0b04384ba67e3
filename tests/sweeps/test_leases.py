"""Claims, heartbeats and atomic files where the file system fails, and what a driver does then."""

import errno
import io
import math
import os
import pathlib
import signal
import stat
import subprocess
import sys
import threading
import time
import types

import pytest

from attention import files
from sweeps.job import trainer, trial_lock
from sweeps.launchers.protocol import State
from sweeps.monitoring.progress import Progress
from sweeps.records import clock, disk, layout, lease, outages, status, submissions
from sweeps.scheduling import scheduler as schedulers
from sweeps.scheduling.scheduler import Scheduler
from tests.sweeps.conftest import begin_stage, change_lease


def failing(monkeypatch, function, number, when, times=10**9, module=os):
    """Has a function of `os` fail for paths that `when` picks, a number of times; returns them."""
    real, met = getattr(module, function), []

    def fails(path, *arguments, **named):
        if isinstance(path, str | os.PathLike) and when(os.fspath(path)) and len(met) < times:
            met.append(os.fspath(path))
            raise OSError(number, os.strerror(number), os.fspath(path))
        return real(path, *arguments, **named)

    monkeypatch.setattr(module, function, fails)
    return met


# --- claims


def test_a_lease_says_how_long_it_is(tmp_path, monkeypatch):
    """A host with a shorter setting does not take a trial whose worker is at work elsewhere."""
    monkeypatch.setattr(lease, "EXPIRES_AFTER_S", 600.0)
    first = lease.claim(tmp_path / "new")
    change_lease(first, boot_id="another host")
    seen = time.time() - 300
    os.utime(first.directory / lease.HEARTBEAT, (seen, seen))
    monkeypatch.setattr(lease, "EXPIRES_AFTER_S", 120.0)
    assert lease.is_alive(first.directory)
    assert lease.claim(tmp_path / "new") is None


@pytest.mark.parametrize(
    ("ahead_s", "alive"),
    [
        (-86400, False), (-121, False), (-100, True), (0, True),
        (100, True), (121, False), (86400, False), (-math.inf, False),
    ],
)  # fmt: skip
def test_a_heartbeat_of_the_future_keeps_no_lease(tmp_path, monkeypatch, ahead_s, alive):
    """Clocks that differ by less than the lease, 120 s, end none; nobody waits for a day."""
    first = lease.claim(tmp_path)
    change_lease(first, boot_id="another host")
    at = max(0.0, time.time() + ahead_s)
    os.utime(first.directory / lease.HEARTBEAT, (at, at))
    assert lease.is_alive(first.directory) is alive
    assert (lease.claim(tmp_path) is None) is alive


@pytest.mark.parametrize("step_s", [-86400, 86400])
@pytest.mark.parametrize("alive", [True, False])
def test_a_clock_that_is_set_takes_no_trial_from_a_live_job(tmp_path, monkeypatch, step_s, alive):
    """Whoever would take it waits for one heartbeat first."""
    first = lease.claim(tmp_path)
    change_lease(first, boot_id="another host")
    served = time.time() + step_s
    monkeypatch.setattr(clock.clock, "server_time", lambda folder: served)
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if alive:
            os.utime(first.directory / lease.HEARTBEAT, (served, served))

    monkeypatch.setattr(clock.clock, "sleep", sleep)
    lease.await_heartbeat(tmp_path)
    assert waits == [lease.HEARTBEAT_EVERY_S]
    assert (lease.claim(tmp_path) is None) is alive


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOSPC])
def test_a_rename_that_fails_is_no_lost_race(tmp_path, monkeypatch, number):
    failing(monkeypatch, "rename", number, lambda path: "attempts" in path)
    with pytest.raises(OSError, match=os.strerror(number)):
        lease.claim(tmp_path)
    assert os.listdir(tmp_path / layout.ATTEMPTS) == []


def test_a_race_that_is_lost(tmp_path, monkeypatch):
    real = os.rename

    def beaten(source, target):
        target.mkdir()
        (target / lease.LEASE).write_text("{}")
        real(source, target)

    monkeypatch.setattr(os, "rename", beaten)
    assert lease.claim(tmp_path) is None
    assert os.listdir(tmp_path / layout.ATTEMPTS) == ["1"]


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EEXIST, errno.EIO])
def test_an_answer_that_is_lost_is_no_lost_claim(tmp_path, monkeypatch, number):
    """An NFS client asks again for the rename that its server has done, and hears that."""
    real = os.rename

    def told_twice(source, target):
        real(source, target)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "rename", told_twice)
    assert lease.claim(tmp_path).number == 1


def test_a_claim_that_fails_for_good_is_counted(make_trial, data_dir, monkeypatch):
    """The job asks again while the error may pass, and goes on with its other trials then."""
    directory, pauses = make_trial(), []
    monkeypatch.setattr(clock.clock, "sleep", pauses.append)
    met = failing(monkeypatch, "rename", errno.ESTALE, lambda path: "attempts" in path)
    one = trainer.Trainer()
    end = one.run(directory, data_dir)
    assert end.outcome == trainer.UNCLAIMED
    assert "Stale file handle" in end.error
    assert not one.broken
    assert pauses == list(outages.PAUSES_S)
    assert len(met) == len(pauses) + 1


def test_a_listing_that_a_client_caches_delays_fencing(tmp_path, monkeypatch):
    """An NFS client may show a directory as it was acdirmax ago: 60 s unless mounted otherwise."""
    cached_s, now = 60.0, 0.0
    zombie = lease.claim(tmp_path)
    folder, real = tmp_path / layout.ATTEMPTS, os.listdir
    seen = {"at": now, "names": real(folder)}

    def cached(path):
        if pathlib.Path(path) != folder:
            return real(path)
        if now - seen["at"] >= cached_s:
            seen.update(at=now, names=real(path))
        return seen["names"]

    zombie.end("preempted")
    assert lease.claim(tmp_path).number == 2
    monkeypatch.setattr(os, "listdir", cached)
    now = 59.0
    zombie.check()
    now = 60.0
    with pytest.raises(lease.LostError):
        zombie.check()


# --- heartbeats


def test_the_heartbeat_outlives_a_file_server_that_fails(tmp_path, monkeypatch, capsys, wait_until):
    """ESTALE of the lease, its listing, and the mark of a cancelled study, which stat raises."""
    monkeypatch.setattr(lease, "HEARTBEAT_EVERY_S", 0.01)
    trial = tmp_path / "study/stage/variant/workload_jax/trial_1"
    member, stopped = lease.claim(trial), threading.Event()
    away = []
    met = [
        failing(monkeypatch, name, errno.ESTALE, lambda path: away and str(tmp_path) in path)
        for name in ("stat", "listdir", "utime")
    ]
    beat_before = os.stat(member.directory / lease.HEARTBEAT).st_mtime_ns
    with trial_lock.heartbeat(member, stopped.set):
        away.append(True)
        wait_until(lambda: len(met[0]) > 5 and len(met[1]) > 5)
        away.clear()
        wait_until(
            lambda: os.stat(member.directory / lease.HEARTBEAT).st_mtime_ns > beat_before + 10**7
        )
        layout.write_json(tmp_path / "study" / submissions.CANCELLED, {})
        assert stopped.wait(10)
    said = [line for line in capsys.readouterr().out.splitlines() if "Stale" in line]
    assert 1 <= len(said) <= 3  # not at every beat


# --- drivers


class Stub:
    """A host whose jobs claim and end real trials at once, without training.

    ends: how, (outcome, reason) of each in turn; 'done' once they are used up.
    """

    is_this_host = True
    place = {}  # noqa: RUF012

    def __init__(self):
        self.ends, self.taken, self.batches, self.slots = [], [], [], 1
        self.running = set()  # handles of jobs of an earlier driver

    def capacity(self):
        return self.slots

    def find(self, batch):
        return [f"{batch.name}-{index}" for index in range(batch.size)]

    def submit(self, batch):
        root = batch.file.parents[1]
        self.batches.append(batch)
        for path in batch.jobs[0]:
            if status.recorded(root / path)["state"] == "done":
                continue
            self.taken.append(path)
            attempt = lease.claim(root / path)
            batch.note_claim(0, path)
            outcome, reason = self.ends.pop(0) if self.ends else ("done", None)
            status.write(root / path, outcome, reason=reason)
            attempt.end(outcome, error=reason, retry=not disk.is_reason(reason))
            if outcome != "done":
                return [batch.name]
        batch.note_claim(0, submissions.CLAIMS_END)
        return [batch.name]

    def status(self, handles):
        return {h: State.RUNNING if h in self.running else State.GONE for h in handles}

    def close(self):
        pass


@pytest.fixture
def make_scheduler(make_study, monkeypatch):
    """Returns a function that makes a scheduler of stub jobs on a study of trials on disk."""
    monkeypatch.setattr(schedulers, "_POLL_S", 0.01)
    monkeypatch.setattr(schedulers, "_WATCH_HERE_S", 0.05)
    monkeypatch.setattr(schedulers, "_PAUSE_S", 0.05)

    def make(points=3):
        made = make_study(protocol="grid", variants="standard", points=points)
        trials = begin_stage(made, "grid")
        one = Scheduler(made, Progress(), lambda: False, Stub())
        one.progress.stage("grid", trials, made.directory)
        return one, trials

    return make


@pytest.mark.parametrize(
    ("module", "function"),
    [(os, "listdir"), (io, "open"), (os, "stat")],  # of the mark of a cancelled study
)
def test_a_scheduler_outlives_a_file_server_that_fails(
    make_scheduler, monkeypatch, capsys, module, function
):
    """Every trial ends once, none is counted as failed, and it is said once."""
    one, trials = make_scheduler()
    one.launcher.ends = [("failed", "x")]
    root, away, real = str(one.root), [], one._look

    def look():
        away.append(True)
        try:
            real()
        finally:
            away.clear()

    monkeypatch.setattr(one, "_look", look)

    def is_asked(path):
        return root in path and (away or path.endswith(submissions.CANCELLED))

    met = failing(monkeypatch, function, errno.ESTALE, is_asked, 2, module)
    one.run(trials)
    assert [status.read(one.root / t.path)["state"] for t in trials] == ["done"] * 3
    shown = capsys.readouterr().out
    assert "[3/3]" in shown
    assert met
    assert "Stale file handle" in shown
    assert len(one.launcher.taken) == 4


def test_a_scheduler_outlives_a_file_server_that_fails_as_it_begins(
    make_scheduler, monkeypatch, capsys
):
    one, trials = make_scheduler()
    monkeypatch.setattr(clock.clock, "sleep", lambda seconds: None)
    met = failing(monkeypatch, "listdir", errno.EIO, lambda path: "attempts" in path, times=3)
    one.outage.wait_out(lambda: one.run(trials))
    assert len(met) == 3
    assert len(one.launcher.taken) == 3
    assert capsys.readouterr().out.count("Input/output error") == 1


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
    one, trials = make_scheduler()
    paths = [trial.path for trial in trials]
    batch = submissions.new(one.root, "local", [tuple(paths)], {})
    for line in claims:
        batch.note_claim(0, paths[0] if line in ("done", "open") else line)
    one.left = dict(zip(paths, trials, strict=True))
    job = schedulers.SubmittedJob(batch, 0, dict(one.left))
    if "done" in claims:
        job.read_claims()
        job.claimed.clear()
        del one.left[paths[0]]
    unrecorded = []
    count = one.policy.count_unrecorded
    monkeypatch.setattr(
        one.policy, "count_unrecorded", lambda *given: unrecorded.append(given) or count(*given)
    )
    one._follow_up_job(job, set(), set())
    assert sorted(one.pending) == sorted(paths[number] for number in pending)
    assert len(unrecorded) == counted


def test_jobs_that_a_killed_driver_did_not_start_are_no_deaths(make_scheduler):
    """It was killed while it submitted: the engine takes the batch for its own all the same."""
    one, trials = make_scheduler()
    submissions.new(one.root, "local", [tuple(t.path for t in trials)], {}, sharing=4)
    one.run(trials)
    assert [status.read(one.root / t.path)["state"] for t in trials] == ["done"] * 3
    assert one.launcher.taken == [trial.path for trial in trials]


@pytest.mark.parametrize("answer", [None, [], ["of another time"]])
def test_handles_that_another_driver_has_recorded_stay(make_scheduler, monkeypatch, answer):
    """It submits while this driver asks the engine, which does not know the batch yet."""
    one, trials = make_scheduler()
    one.left = {trial.path: trial for trial in trials}
    batch = submissions.new(one.root, "local", [tuple(one.left)], {})

    def find(batch):
        batch.record(["its own"])
        return answer

    monkeypatch.setattr(one.engines, "of", lambda batch: types.SimpleNamespace(find=find))
    one.unsure.append(batch)
    one._ask_again()
    assert batch.handles == ["its own"]
    assert list(one.jobs) == ["its own"]


def test_jobs_that_end_before_they_claim_are_bounded(make_scheduler, monkeypatch):
    """A log shows that a job was started, or that it could not be."""
    one, trials = make_scheduler()
    batches = []

    def submit(batch):
        batches.append(batch)
        batch.log(0).write_text("no such module")
        return [batch.name]

    monkeypatch.setattr(one.launcher, "submit", submit)
    with pytest.raises(ValueError, match="before it claimed a trial; .* ends with\nno such module"):
        one.run(trials)
    assert len(batches) == one.study.settings["max_attempts"]


def test_a_job_that_is_taken_up_holds_what_it_has_claimed(make_scheduler, capsys):
    """The slot of a killed job that shared its trials is used at once, and nothing counts."""
    one, trials = make_scheduler()
    stub, (held, killed, free) = one.launcher, [trial.path for trial in trials]
    stub.slots = 2
    batch = submissions.new(one.root, "local", [(held, killed, free)], {}, sharing=2)
    handles = stub.find(batch)
    batch.record(handles)
    batch.note_claim(0, held)
    batch.note_claim(1, killed)
    at_work = lease.claim(one.root / held)
    status.write(one.root / held, "running")
    stub.running.add(handles[0])

    looks = []

    def stop_requested():
        looks.append(sorted(stub.taken) == sorted([killed, free]))
        if looks[-1] and stub.running:
            status.write(one.root / held, "done")
            at_work.end("done")
            batch.note_claim(0, submissions.CLAIMS_END)
            stub.running.clear()
        return len(looks) > 100

    one.stop_requested = stop_requested
    one.run(trials)
    assert sorted(stub.taken) == sorted([killed, free])
    assert "again" not in capsys.readouterr().out


def test_jobs_share_a_bounded_number_of_trials(make_scheduler, monkeypatch):
    """One that is lost has its list written anew. The next slots to be free get a new list's jobs:
    the last trials of a study are not one job's alone."""
    monkeypatch.setattr(schedulers, "_MOST_SHARED", 3)
    one, trials = make_scheduler(points=5)
    stub, real = one.launcher, one.launcher.submit
    stub.slots = 2

    def submit(batch):
        """Of the first batch one job still runs when its trials are done."""
        handles = stub.find(batch)
        stub.running = set() if stub.batches else {handles[1]}
        real(batch)
        return handles

    monkeypatch.setattr(stub, "submit", submit)
    one.run(trials)
    assert stub.taken == [trial.path for trial in trials]
    assert [len(batch.jobs[0]) for batch in one.launcher.batches] == [3, 2]
    assert [batch.sharing for batch in one.launcher.batches] == [2, 2]


@pytest.mark.parametrize(("number", "is_this_host"), [(errno.EIO, True), (errno.ENOSPC, False)])
def test_a_batch_that_cannot_be_written_is_no_end_of_its_trials(
    make_scheduler, monkeypatch, capsys, number, is_this_host
):
    """A full disk ends a driver only where jobs of its host need the same disk."""
    one, trials = make_scheduler()
    one.launcher.is_this_host = is_this_host
    failing(monkeypatch, "replace", number, lambda path: submissions.JOBS in path, times=2)
    one.run(trials)
    assert one.launcher.taken == [trial.path for trial in trials]
    shown = capsys.readouterr().out
    assert shown.count(os.strerror(number)) == 1
    assert "again" not in shown


def test_an_outage_ends_after_an_hour(monkeypatch):
    said, now = [], [0.0]
    monkeypatch.setattr(clock.clock, "monotonic", lambda: now[0])
    outage, error = outages.Outage(said.append), OSError(errno.EIO, "Input/output error", "/x")

    def fails(start, end):
        """A look at files every minute fails; the turns between them touch none."""
        for now[0] in range(start, end, 60):
            outage.note_error(error)
            outage.note_success()

    fails(0, 3600)
    assert said == ["[Errno 5] Input/output error: '/x'; the driver waits"]
    now[0] += outages.QUIET_S + 1
    outage.note_success()
    fails(4000, 7600)
    assert len(said) == 2
    with pytest.raises(OSError, match=r"'/x', and nothing else for 60 minutes.*`resume` goes on"):
        fails(7600, 7721)

    later = outages.Outage(said.append)
    for now[0] in (10_000, 10_060, 20_000, 20_060):  # the driver was stopped for hours
        later.note_error(error)

    def work():
        raise error

    with pytest.raises(OSError, match="nothing else") as ended:
        outage.wait_out(work)
    assert str(ended.value).count("nothing else") == 1


@pytest.mark.parametrize(
    ("changes", "hangs"),
    [
        ({}, True),
        ({"boot_id": "of another host"}, False),  # whose process has the number of ours
        ({"boot_id": None}, False),
        ({"pid_namespace": "pid:[1]"}, False),
    ],
)
def test_a_process_of_this_host_that_let_its_lease_pass_is_ended(
    make_scheduler, monkeypatch, changes, hangs
):
    one, attempt, signals = _one_job(make_scheduler, monkeypatch)
    change_lease(attempt, **changes)
    for _ in range(3):
        one._look_for_silent_at = 0.0
        one._end_silent()
    assert signals == ([(os.getpid(), signal.SIGKILL)] if hangs else [])


def _one_job(make_scheduler, monkeypatch):
    """Returns a scheduler of one job, its attempt by this process, and the signals that it sends.

    A job is silent at the third look.
    """
    one, [trial] = make_scheduler(points=1)
    signals = []
    monkeypatch.setattr(os, "kill", lambda *given: signals.append(given))
    monkeypatch.setattr(lease, "EXPIRES_AFTER_S", 2 * lease.HEARTBEAT_EVERY_S)
    attempt = lease.claim(one.root / trial.path)
    batch = submissions.new(one.root, "local", [(trial.path,)], {})
    one.jobs["x"] = schedulers.SubmittedJob(batch, 0, {trial.path: trial})
    return one, attempt, signals


@pytest.mark.parametrize("ahead_s", [-86400, -300, 0, 300, 86400])
@pytest.mark.parametrize("beats", [True, False])
def test_no_clock_decides_whether_a_job_of_this_host_is_silent(
    make_scheduler, monkeypatch, ahead_s, beats
):
    """The file server's clock is set: a job that beats is left alone, one that hangs is ended."""
    one, attempt, signals = _one_job(make_scheduler, monkeypatch)
    began = round(time.time()) + ahead_s
    for look in range(3):
        at = began + (look if beats else 0)
        os.utime(attempt.directory / lease.HEARTBEAT, (at, at))
        one._look_for_silent_at = 0.0
        one._end_silent()
    assert bool(signals) is not beats


def test_a_job_without_its_heartbeat_is_silent_too(make_scheduler, monkeypatch):
    """Archivers and object stores drop empty files; a job that lives makes it again."""
    one, attempt, signals = _one_job(make_scheduler, monkeypatch)
    (attempt.directory / lease.HEARTBEAT).unlink()
    for expected in (0, 0, 1):
        one._look_for_silent_at = 0.0
        one._end_silent()
        assert len(signals) == expected


@pytest.mark.parametrize(
    ("asked_s", "slept_s", "set_s", "is_away"),
    [
        (0.5, 0.6, 0.0, False),
        (0.5, 9.0, 0.0, False),  # a busy host
        (0.5, 16.0, 0.0, True),
        (0.5, 0.5, 900.0, True),  # the clock was set; or the host slept, its monotonic clock too
        (0.5, 0.5, -900.0, True),
        (60.0, 60.0, 0.0, False),
        (60.0, 600.0, 0.0, True),
    ],
)
@pytest.mark.parametrize("is_ended", [True, False])
def test_a_driver_that_was_away_begins_to_look_anew(
    make_scheduler, monkeypatch, asked_s, slept_s, set_s, is_away, is_ended
):
    """Two looks before, one after: the job is silent only if the driver was there all the time. A
    kill that follows its return at once is a preemption, but not one by this driver before."""
    one, attempt, signals = _one_job(make_scheduler, monkeypatch)
    now, wall = [1000.0], [1000.0]

    def sleep(seconds):
        assert seconds == asked_s
        now[0] += slept_s
        wall[0] += slept_s + set_s

    monkeypatch.setattr(clock.clock, "monotonic", lambda: now[0])
    monkeypatch.setattr(clock.clock, "time", lambda: wall[0])
    monkeypatch.setattr(clock.clock, "sleep", sleep)
    one.poll_s = asked_s
    for look in range(3):
        if look == 2 and not is_ended:
            one._sleep()
        one._look_for_silent_at = 0.0
        one._end_silent()
    assert bool(signals) is (is_ended or not is_away)
    if is_ended:
        one._sleep()

    trial = one.jobs["x"].trials[str(attempt.trial_directory.relative_to(one.root))]
    one.left = {trial.path: trial}
    job = one.jobs.pop("x")
    job.claimed.append(trial.path)
    one._follow_up_job(job, set(), set())
    assert not (attempt.directory / lease.OUTCOME).exists()  # the process lives: another job's
    one.watched.clear()
    change_lease(attempt, pid=2**22 + 1)
    one._follow_up_job(job, set(), set())
    assert one.policy.count_failures(trial) == (0, int(is_ended or not is_away))


_HANGS = """
import os, pathlib, sys, time
from sweeps.job import trial_lock
from sweeps.records import attempts, lease, output
attempt = lease.claim(pathlib.Path(sys.argv[1]))
with output.redirected(attempt.directory / attempts.LOG), trial_lock.watchdog():
    for _ in range(4):
        trial_lock.expect_progress()
        time.sleep(0.2)
    print("hangs", flush=True)
    time.sleep(1000)
"""


def test_a_trial_that_hangs_ends_its_process(tmp_path):
    """It may be tried again at once; its log says where each thread was."""
    done = subprocess.run(
        [sys.executable, "-c", _HANGS, tmp_path],
        env={**os.environ, "ATTNPERF_HANG_S": "0.5"},
        cwd=pathlib.Path(__file__).resolve().parents[2],
        timeout=60,
    )
    assert done.returncode == 1
    log = (tmp_path / "attempts/1/log.txt").read_text()
    assert log.startswith("hangs")
    assert "Timeout" in log
    assert lease.claim(tmp_path).number == 2


@pytest.mark.parametrize("pid", [-1, 0, "1", None, [1]])
def test_a_damaged_lease_has_no_process_to_signal(tmp_path, pid):
    """A signal to process -1 would reach every process of the user."""
    attempt = lease.claim(tmp_path)
    assert lease.process_here(attempt.directory) == os.getpid()
    change_lease(attempt, pid=pid, pid_start=None)
    assert lease.process_here(attempt.directory) is None
    change_lease(attempt, pid=os.getpid(), pid_start="another process of that number")
    assert lease.process_here(attempt.directory) is None


def test_a_host_that_does_not_tell_its_boot_is_taken_for_no_other(tmp_path, monkeypatch):
    """Sandboxed containers lack /proc/sys/kernel/random/boot_id: the heartbeat alone counts."""
    here = {**lease.identity(), "boot_id": None}
    monkeypatch.setattr(lease, "identity", lambda: here)
    attempt = lease.claim(tmp_path)
    change_lease(attempt, pid=2**22 + 1)  # of another pod
    assert lease.is_alive(attempt.directory)
    assert lease.claim(tmp_path) is None


def test_a_full_disk_ends_the_driver(make_scheduler, capsys):
    """No trial after it is begun, and nothing is tried again in vain."""
    one, trials = make_scheduler()
    full = disk.FullError(one.root, "a checkpoint takes 1.0 MB")
    one.launcher.ends = [("failed", str(full))]
    with pytest.raises(ValueError, match=r"disk full: No space left on device for .*B free"):
        one.run(trials)
    assert len(one.launcher.taken) == 1
    assert "again" not in capsys.readouterr().out


def test_a_full_disk_that_the_driver_meets_ends_it(make_scheduler, monkeypatch):
    one, trials = make_scheduler()
    failing(monkeypatch, "replace", errno.ENOSPC, lambda path: submissions.JOBS in path)
    with pytest.raises(ValueError, match="disk full: No space left on device for"):
        one.run(trials)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (OSError(errno.ENOSPC, "x"), True),
        (OSError(errno.EDQUOT, "x"), True),
        (ValueError("RESOURCE_EXHAUSTED: Failed to write [os_error_code='28']"), True),
        (ValueError("RESOURCE_EXHAUSTED: out of device memory"), False),
        (OSError(errno.EIO, "x"), False),
        (None, False),
    ],
)
def test_what_says_that_a_disk_is_full(problem, expected):
    assert disk.is_full(problem) == expected
    wrapped = RuntimeError("saving failed")
    wrapped.__cause__ = problem
    assert disk.is_full(wrapped) == expected


# --- files


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_files_have_the_permissions_of_any_other(tmp_path, mask, mode):
    """A group that shares a study reads its files; a private umask is kept."""
    before = os.umask(mask)
    try:
        layout.write_json(tmp_path / "x.json", {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x.json").stat().st_mode) == mode


def test_a_file_and_its_name_are_on_disk(tmp_path, monkeypatch):
    synced, real = [], os.fsync

    def fsync(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    layout.write_atomically(tmp_path / "x", "text")
    written, folder = synced
    assert written.startswith(f"{tmp_path}/.x.")
    assert written.endswith(files.SUFFIX)
    assert folder == str(tmp_path)
    assert os.listdir(tmp_path) == ["x"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "x").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        layout.write_atomically(tmp_path / "x", "half \udcff")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"x": "old"}


def test_what_killed_writers_left_is_removed(tmp_path):
    """After an hour by the file server's clock, and nothing else."""
    now = time.time()
    old, young, own = (tmp_path / n for n in (".a.1.tmp", ".b.2.tmp", "kept.tmp"))
    draft = tmp_path / ".draft.tmp"
    draft.mkdir()
    for path in (old, young, own, draft / lease.LEASE):
        path.touch()
    for path in (old, own, draft):
        os.utime(path, (now - 4000, now - 4000))
    layout.remove_left_overs(tmp_path, now)
    assert sorted(path.name for path in tmp_path.iterdir()) == [young.name, own.name]
