"""Batches are asked for where they were submitted, whatever the study's keys say by now."""

import collections
import errno

import pytest

from sweeps.launchers import remote
from sweeps.launchers.kubernetes import launcher as kubernetes
from sweeps.launchers.protocol import EngineError, State
from sweeps.monitoring.progress import Progress
from sweeps.records import layout, submissions
from sweeps.scheduling import cancel
from sweeps.scheduling.scheduler import Interrupted, Scheduler
from tests.sweeps.conftest import begin_stage


class Cluster(kubernetes.Kubernetes):
    """A namespace of a simulated cluster: `jobs` it has, by the namespace's name."""

    jobs: dict[str, set[str]]
    down: set[str]
    absent: set[str]

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

    def cancel(self, handles):
        self._ask().difference_update(handles)


@pytest.fixture
def clusters(monkeypatch):
    """Clusters in place of the Kubernetes launcher's; {namespace: names of its jobs}."""
    state = {"jobs": collections.defaultdict(set), "down": set(), "absent": set()}
    made = type("Made", (Cluster,), state)
    monkeypatch.setattr(kubernetes, "Kubernetes", made)
    return made


@pytest.fixture
def make_scheduler(make_study, clusters):
    """Returns a function that makes a study, its scheduler in a namespace, and its trials."""

    def make(namespace, stop):
        keys = {"image": "i", "volume_claim": "v", "context": "c", "namespace": namespace}
        settings = {f"kubernetes.{name}": value for name, value in keys.items()}
        made = make_study(launcher="kubernetes", points=2, **settings)
        trials = begin_stage(made)
        engine = clusters(made.settings, made.directory)
        scheduler = Scheduler(made, Progress(), stop, engine)
        scheduler.poll_s = 0.0
        return scheduler, trials

    return make


def test_jobs_of_another_namespace_are_taken_up_and_not_submitted_again(make_scheduler, clusters):
    [batch] = submissions.batches(_submitted(make_scheduler, "a"))
    assert batch.place == {"context": "c", "namespace": "a"}
    scheduler = _look(make_scheduler, "b", 3)
    assert scheduler.jobs.keys() == clusters.jobs["a"]
    assert len(scheduler.jobs) == 2
    assert clusters.jobs["b"] == set()


def test_jobs_are_taken_up_once_the_file_server_answers(make_scheduler, clusters, monkeypatch):
    _submitted(make_scheduler, "a")
    batch = next(submissions.batches(_submitted(make_scheduler, "a")))
    batch.file.with_name(f"{batch.name}.handles.json").unlink()
    real, failures = submissions.read, iter([False, True, True])

    def read(file):
        if next(failures, False):
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(file)

    monkeypatch.setattr(submissions, "read", read)
    monkeypatch.setattr("sweeps.records.clock.clock.sleep", lambda seconds: None)
    scheduler = _look(make_scheduler, "a", 5)
    assert len(scheduler.jobs) == 4
    assert scheduler.pending == type(scheduler.pending)()


@pytest.mark.parametrize(
    ("how", "message"),
    [("down", "does not answer"), ("absent", "namespace=a, which cannot be asked")],
)
def test_an_engine_out_of_reach_causes_no_resubmission(
    make_scheduler, clusters, capsys, how, message
):
    _submitted(make_scheduler, "a")
    getattr(clusters, how).add("a")
    _look(make_scheduler, "b", 6)
    assert clusters.jobs["b"] == set()
    assert capsys.readouterr().out.count(message) == 1


def _look(make_scheduler, namespace, count):
    """Returns a scheduler that was stopped after it had looked at its jobs so often."""
    looks = iter(range(count + 1))
    scheduler, trials = make_scheduler(namespace, lambda: next(looks) == count)
    with pytest.raises(Interrupted):
        scheduler.outage.wait_out(lambda: scheduler.run(trials))
    return scheduler


def _submitted(make_scheduler, namespace):
    scheduler, trials = make_scheduler(namespace, lambda: False)
    scheduler.left = {trial.path: trial for trial in trials}
    for trial in trials:
        scheduler.policy.begin(trial)
    scheduler._submit_jobs([(trial,) for trial in trials])
    return scheduler.root


def test_cancel_reaches_jobs_of_every_namespace(make_scheduler, clusters):
    """As of `run`, then of `evaluate --config.kubernetes.namespace=b`, which study.json lacks."""
    root = _submitted(make_scheduler, "b")
    _submitted(make_scheduler, "a")
    assert layout.study_record(root)["config"]["kubernetes"]["namespace"] == "a"
    assert "4 jobs withdrawn" in cancel.cancel(root)
    assert clusters.jobs == {"a": set(), "b": set()}


def test_cancel_finds_a_batch_cut_short_though_another_engine_is_away(make_scheduler, clusters):
    root = _submitted(make_scheduler, "a")
    [batch] = submissions.batches(root)
    second = batch.file.with_name(f"{batch.name}b.json")
    place = {"context": "c", "namespace": "b"}
    layout.write_json(second, {**layout.read_json(batch.file), "place": place})
    clusters.jobs["b"] = {f"{batch.name}b-0"}
    clusters.down.add("a")
    with pytest.raises(EngineError, match="a does not answer"):
        cancel.cancel(root)
    assert clusters.jobs["b"] == set()
    assert len(clusters.jobs["a"]) == 2


def test_a_batch_cut_short_is_found_where_it_went(make_scheduler, clusters):
    root = _submitted(make_scheduler, "a")
    [batch] = submissions.batches(root)
    batch.file.with_name(f"{batch.name}.handles.json").unlink()
    _look(make_scheduler, "b", 3)
    assert clusters.jobs["b"] == set()
    assert batch.handles is not None
    assert sorted(batch.handles) == sorted(clusters.jobs["a"])
    batch.file.with_name(f"{batch.name}.handles.json").unlink()
    assert "2 jobs withdrawn" in cancel.cancel(root)


def test_a_launcher_that_has_left_is_named(make_scheduler, clusters):
    root = _submitted(make_scheduler, "a")
    [file] = submissions.files(root)
    layout.write_json(file, {**layout.read_json(file), "launcher": "pbs"})
    with pytest.raises(EngineError, match=r"pbs.*cannot be asked from here"):
        cancel.cancel(root)


def test_cancel_of_a_study_older_than_a_launcher_key(make_scheduler, clusters):
    root = _submitted(make_scheduler, "a")
    record = layout.study_record(root)
    del record["config"]["kubernetes"]["namespace"], record["config"]["ray"]
    layout.write_json(root / layout.STUDY, record)
    assert "2 jobs withdrawn" in cancel.cancel(root)
    [file] = submissions.files(root)
    layout.write_json(file, {**layout.read_json(file), "place": {}})  # of before, too
    assert "0 jobs withdrawn" in cancel.cancel(root)
