"""Batches are asked for where they were submitted, whatever the study's keys say by now."""

import collections
import json
import time

import pytest

from sweeps import __main__ as command
from sweeps.launchers import remote
from sweeps.launchers.kubernetes import launcher as kubernetes
from sweeps.launchers.protocol import EngineError, State
from sweeps.monitoring import survey
from sweeps.monitoring.progress import Progress
from sweeps.records import code_snapshot, layout, status, submissions
from sweeps.scheduling import engines
from sweeps.scheduling.scheduler import Interrupted, Scheduler
from sweeps.scheduling.submitter import Submitter
from tests.sweeps.conftest import begin_stage


class Cluster(kubernetes.Kubernetes):
    """A namespace of a simulated cluster: `jobs` it has, by the namespace's name.

    One that `keeps` jobs withdraws none, as Ray keeps jobs that it never starts.
    """

    jobs: dict[str, set[str]]
    down: set[str]
    absent: set[str]
    keeps: bool

    def __init__(self, settings, directory):
        super().__init__(settings, directory)
        self.namespace = self.place["namespace"]
        if self.namespace in self.absent:
            raise ValueError("no such context")

    def _ask(self):
        if self.namespace in self.down:
            raise EngineError(f"{self.namespace} does not answer")
        return self.jobs[self.namespace]

    def submit(self, batch):
        handles = remote.job_names(batch)
        self._ask().update(handles)
        return handles

    def find(self, batch):
        return sorted(self._ask() & {*remote.job_names(batch)}) or None

    def status(self, handles):
        jobs = self._ask()
        return {handle: State.QUEUED if handle in jobs else State.GONE for handle in handles}

    def queued(self, handles):
        return {handle: f"no room for {handle}" for handle in handles if handle in self._ask()}

    def cancel(self, handles):
        jobs = self._ask()
        if not self.keeps:
            jobs.difference_update(handles)


@pytest.fixture
def clusters(monkeypatch):
    """Clusters in place of the Kubernetes launcher's; {namespace: names of its jobs}."""
    state = {"jobs": collections.defaultdict(set), "down": set(), "absent": set(), "keeps": False}
    made = type("Made", (Cluster,), state)
    monkeypatch.setattr(kubernetes, "Kubernetes", made)
    return made


@pytest.fixture
def make_scheduler(make_study, clusters, monkeypatch):
    """Returns a function that makes a study, its scheduler in a namespace, and its trials."""
    monkeypatch.setattr(code_snapshot, "take", lambda directory, modules: directory)

    def make(namespace, stop, **changes):
        keys = {"image": "i", "volume_claim": "v", "context": "c", "namespace": namespace}
        settings = {f"kubernetes.{name}": value for name, value in keys.items()}
        made = make_study(launcher="kubernetes", points=2, **settings, **changes)
        trials = begin_stage(made)
        scheduler = Scheduler(made, Progress(), stop, clusters(made.settings, made.directory))
        scheduler.poll_s = 0.0
        return scheduler, trials

    return make


@pytest.mark.parametrize(
    ("how", "message"),
    [("down", "does not answer"), ("absent", "namespace=a, which has jobs")],
)
def test_an_engine_out_of_reach_causes_no_resubmission(
    make_scheduler, clusters, capsys, how, message
):
    _submitted(make_scheduler, "a")
    getattr(clusters, how).add("a")
    _look(make_scheduler, "b", 6)
    assert clusters.jobs["b"] == set()
    assert capsys.readouterr().out.count(message) == 1


def _look(make_scheduler, namespace, count, **changes):
    """Returns the places of a scheduler that was stopped after so many looks at its jobs."""
    looks = iter(range(count + 1))
    scheduler, trials = make_scheduler(namespace, lambda: next(looks) == count, **changes)
    with pytest.raises(Interrupted):
        scheduler.outage.wait_out(lambda: scheduler.run(trials))
    return scheduler.places


def _submitted(make_scheduler, namespace):
    scheduler, trials = make_scheduler(namespace, lambda: False)
    scheduler.places.left = {trial.path: trial for trial in trials}
    for trial in trials:
        scheduler.job_watch.policy.begin(trial)
    scheduler.submitter.submit_jobs([(trial,) for trial in trials])
    return scheduler.root


def test_cancel_finds_a_batch_cut_short_though_another_engine_is_away(make_scheduler, clusters):
    root = _submitted(make_scheduler, "a")
    [batch] = submissions.batches(root)
    second = batch.file.with_name(f"{batch.name}b.json")
    place = {"context": "c", "namespace": "b"}
    layout.write_json(second, {**layout.read_json(batch.file), "place": place})
    clusters.jobs["b"] = {f"{batch.name}b-0"}
    clusters.down.add("a")
    with pytest.raises(EngineError, match="a does not answer"):
        engines.cancel(root)
    assert clusters.jobs["b"] == set()
    assert len(clusters.jobs["a"]) == 2


def test_cancel_of_a_study_older_than_a_launcher_key(make_scheduler, clusters):
    root = _submitted(make_scheduler, "a")
    record = layout.study_record(root)
    del record["config"]["kubernetes"]["namespace"], record["config"]["ray"]
    layout.write_json(root / layout.STUDY, record)
    assert "2 jobs withdrawn" in engines.cancel(root)
    [file] = submissions.files(root)
    layout.write_json(file, {**layout.read_json(file), "place": {}})  # of before, too
    assert "0 jobs withdrawn" in engines.cancel(root)


def _status(root, capsys):
    """Returns what `status --json` says of a study that is not complete."""
    capsys.readouterr()
    assert command.main(["status", "--json", str(root)]) == 3
    return json.loads(capsys.readouterr().out)


def _date(root, hours):
    """Has every batch of a study be submitted so many hours ago."""
    for file in submissions.files(root):
        created_at = time.time() - 3600 * hours
        layout.write_json(file, {**layout.read_json(file), "created_at": created_at})


def test_a_status_says_how_long_jobs_are_queued_and_why(make_scheduler, clusters, capsys):
    root = _submitted(make_scheduler, "a")
    first, second = sorted(clusters.jobs["a"])
    _date(root, 30)
    jobs = {job["name"]: job for job in _status(root, capsys)["jobs"]}
    assert jobs.keys() == {first, second}
    assert jobs[first]["reason"] == f"no room for {first}"
    assert jobs[first]["queued_s"] == pytest.approx(30 * 3600, abs=60)
    assert [job["state"] for job in jobs.values()] == ["queued", "queued"]
    assert command.main(["status", str(root)]) == 3
    [advice] = [line for line in capsys.readouterr().out.splitlines() if " resubmit " in line]
    assert {str(root), first, second} <= set(advice.split())
    # One that has a trial that trained until a minute ago was preempted then.
    status.write(root / jobs[first]["trials"][0], "pending", reason="preempted at step 4")
    study = survey.StudyReader(root).look()
    engines.ask_queue(study)
    assert 0 <= study.at_engines[first].queued_s < 60 < study.at_engines[second].queued_s
    clusters.jobs["a"].discard(second)  # or the engine runs it
    study = survey.StudyReader(root).look()
    engines.ask_queue(study)
    assert [job.reason for job in study.at_engines.values()] == [f"no room for {first}", None]
    assert study.queue_warn_s == 24 * 3600


@pytest.mark.parametrize(("hours", "warnings"), [(24, 1), (48, 0), (0, 0)])
def test_a_driver_says_once_what_is_queued_for_long(
    make_scheduler, clusters, capsys, hours, warnings
):
    root = _submitted(make_scheduler, "a")
    _date(root, 30)
    _look(make_scheduler, "a", 5, queue_warn_hours=hours)
    printed = capsys.readouterr().out
    assert printed.count(f"python -m sweeps resubmit {root}") == warnings
    for handle in clusters.jobs["a"]:
        assert printed.count(f"no room for {handle}") == warnings


def test_damaged_records_of_a_job_count_as_absent(make_scheduler, clusters):
    root = _submitted(make_scheduler, "a")
    [batch] = submissions.batches(root)
    for content in (
        "",
        "5",
        "[]",
        '{"host": 5, "reason": "r"}',
        '{"host": []}',
        '{"host": "h"}',
        "{",
    ):
        batch.file.with_name(f"{batch.name}.0.refused.json").write_text(content)
        assert batch.refusal(0) is None
    for content in (
        "",
        "5",
        "[]",
        '{"pid": "x"}',
        '{"pid": null}',
        '{"pid": -1}',
        '{"pid": 0}',
        "{",
    ):
        batch.file.with_name(f"{batch.name}.0.started.json").write_text(content)
        assert submissions.process(root, f"{batch.name}-0") is None
    batch.file.with_name(f"{batch.name}.0.claims").write_bytes(b"\xff\xfe\na/b\n")
    assert batch.claims(0)[0][-1] == "a/b"


@pytest.mark.parametrize("keys", [5, [], "x", None, {"namespace": 5}])
def test_an_engine_whose_keys_were_edited_is_not_asked(make_scheduler, clusters, capsys, keys):
    root = _submitted(make_scheduler, "a")
    record = layout.study_record(root)
    record["config"]["kubernetes"] = keys
    layout.write_json(root / layout.STUDY, record)
    now = _status(root, capsys)
    assert len(now["jobs"]) == 2
    assert len(now["unanswered"]) == (not isinstance(keys, dict))


@pytest.mark.parametrize("is_recorded", [True, False])
def test_jobs_are_taken_up_where_they_went_and_not_submitted_again(
    make_scheduler, clusters, is_recorded
):
    """Also where their handles were not recorded."""
    root = _submitted(make_scheduler, "a")
    [batch] = submissions.batches(root)
    assert batch.place == {"context": "c", "namespace": "a"}
    if not is_recorded:
        batch.file.with_name(f"{batch.name}.handles.json").unlink()
    places = _look(make_scheduler, "b", 3)
    assert sorted(places.jobs) == sorted(batch.handles) == sorted(clusters.jobs["a"])
    assert len(places.jobs) == 2
    assert clusters.jobs["b"] == set()
    batch.file.with_name(f"{batch.name}.handles.json").unlink()
    assert "2 jobs withdrawn" in engines.cancel(root)


@pytest.mark.parametrize("how", ["down", "absent", "unknown launcher"])
def test_an_engine_that_cannot_be_asked_is_named(make_scheduler, clusters, capsys, how):
    root = _submitted(make_scheduler, "a")
    if how == "unknown launcher":
        [file] = submissions.files(root)
        layout.write_json(file, {**layout.read_json(file), "launcher": "pbs"})
    else:
        getattr(clusters, how).add("a")
    now = _status(root, capsys)
    assert len(now["unanswered"]) == 1
    assert [(job["state"], job["reason"]) for job in now["jobs"]] == [("waiting", None)] * 2
    with pytest.raises(EngineError):
        engines.resubmit(root, [now["jobs"][0]["name"]])
    assert submissions.withdrawn(root) == set()
    with pytest.raises(EngineError, match="a does not answer|pbs|namespace=a"):
        engines.cancel(root)


@pytest.mark.parametrize("keeps", [False, True])
def test_withdrawn_jobs_are_submitted_again(make_scheduler, clusters, monkeypatch, keeps):
    """Once, by a driver that runs; the engine may keep the old job, which may begin after all."""
    root = _submitted(make_scheduler, "a")
    first, second = sorted(clusters.jobs["a"])
    clusters.keeps = keeps
    with pytest.raises(ValueError, match=f"(?s)s-nothing-0.*{first}, {second}"):
        engines.resubmit(root, [first, "s-nothing-0"])
    assert submissions.withdrawn(root) == set()
    assert clusters.jobs["a"] == {first, second}
    (root / submissions.JOBS / submissions.WITHDRAWN).write_text("5")  # damaged
    turns = iter(range(9))

    def stop():
        turn = next(turns)
        if turn == 3:
            engines.resubmit(root, [first])
        return turn == 7

    monkeypatch.setattr(Submitter, "hold_back", lambda self: None)  # else a minute
    scheduler, trials = make_scheduler("a", stop)
    with pytest.raises(Interrupted):
        scheduler.run(trials)
    [new] = clusters.jobs["a"] - {first, second}
    assert len(clusters.jobs["a"]) == 2 + keeps
    assert scheduler.places.jobs.keys() == {second, new}
    assert _look(make_scheduler, "a", 3).jobs.keys() == {second, new}
    assert survey.StudyReader(root).look().at_engines.keys() == {second, new}
    [batch, _] = sorted(submissions.batches(root), key=lambda batch: batch.created_at)
    assert batch.jobs[0] == tuple(scheduler.places.jobs[new].trials)
    with pytest.raises(ValueError, match=f"Known: {second}, {new}|Known: {new}, {second}"):
        engines.resubmit(root, [first])


HANDLES, BATCH = "{}.handles.json", "s-damaged.json"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        # None: a folder lies there. A mapping: changes of the batch's record.
        *((HANDLES, content) for content in ("", "5", "[[]]", "{")),
        *((submissions.WITHDRAWN, content) for content in ("", '{"a": 1}', "[5]", None)),
        *((BATCH, content) for content in ("", "{}", '{"tasks": ')),
        *((BATCH, {"tasks": tasks}) for tasks in (3, ["grid"], [[5]], [None])),
        *((BATCH, changes) for changes in ({"avoid": 3}, {"avoid": [[]]}, {"sharing": "x"}, None)),
        *((BATCH, changes) for changes in ({"place": []}, {"created_at": "x"})),
        # What lies beside batches.
        ("{} (conflicted copy 2026-11-25).json", ""),
        ("{}_1.json", ""),
        ("{}~.json", ""),
        ("._{}.json", ""),
    ],
)
def test_damaged_records_of_jobs_are_named_and_passed_over(
    make_scheduler, clusters, capsys, name, content
):
    """By the driver, `status` and `cancel`; handles are asked for by the name of their batch."""
    root = _submitted(make_scheduler, "a")
    jobs = {*clusters.jobs["a"]}
    [batch] = submissions.batches(root)
    file = batch.file.with_name(name.format(batch.name))
    file.unlink(missing_ok=True)
    if content is None:
        file.mkdir()
    elif isinstance(content, dict):
        layout.write_json(file, {**layout.read_json(batch.file), **content})
    else:
        file.write_text(content)
    is_named = name in (BATCH, submissions.WITHDRAWN)
    study = survey.StudyReader(root).look()
    assert str(file) in study.damaged.get(name, "") or not is_named
    assert study.jobs == {"kubernetes": {"waiting": 2}}
    assert [other.name for other in submissions.batches(root)] == [batch.name]
    assert (batch.handles is None) == (name == HANDLES)
    capsys.readouterr()
    assert _look(make_scheduler, "a", 3).jobs.keys() == jobs
    assert (str(file) in capsys.readouterr().out) == is_named
    assert command.main(["cancel", str(root)]) == 0
    assert (str(file) in "".join(capsys.readouterr())) == is_named
    assert clusters.jobs["a"] == set()
