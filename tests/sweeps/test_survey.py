"""What a survey holds, whether made from files or kept by a driver."""

import dataclasses
import itertools
import timeit

import pytest

from sweeps.monitoring import progress, survey
from sweeps.monitoring.survey import StudyReader, Survey, TrialStatus
from sweeps.records import layout, lease, status, submissions
from sweeps.study import study_directory
from tests.sweeps.conftest import begin_stage, change_lease
from tests.sweeps.simulation.counted_files import counted_files


@pytest.fixture
def begin(make_study):
    """Returns a function that puts a study's first stage on disk: its directory, its trials.

    Two points of 12 steps on 'standard', then standard and laser with one seed each.
    """

    def make(**changes):
        resolved = make_study(**changes)
        return resolved.directory, begin_stage(resolved, resolved.stages[0])

    return make


GRID = {"protocol": "grid", "variants": "standard"}


def _write(directory, state, step=0, **fields):
    status.write(directory, state, global_step=step, steps=12, **fields)


def test_states_per_stage_and_variant(begin):
    directory, trials = begin(points=6, **GRID)
    paths = [directory / trial.path for trial in trials]
    reasons = {"done": None, "diverged": "loss", "failed": "KeyError: 'x'", "running": None}
    reasons["pending"] = "preempted at step 4"
    for path, (state, reason) in zip(paths, reasons.items(), strict=False):
        _write(path, state, reason=reason, preemption_count=2)
    failed = lease.claim(paths[2])
    (failed.directory / "log.txt").write_text("".join(f"line {n}\n" for n in range(20)))
    failed.end("failed")
    attempt = lease.claim(paths[3])
    look = StudyReader(directory).look()
    assert look.problems[trials[2].path].log_tail == [f"line {n}" for n in range(12, 20)]
    [row] = look.rows.values()
    assert row.counts == dict.fromkeys(survey.COLUMNS, 1)  # the sixth was never begun
    assert (row.preemptions, row.steps_left) == (10, 36)
    problems = {
        path: (problem.state, problem.status["reason"]) for path, problem in look.problems.items()
    }
    assert problems == {
        trials[1].path: ("diverged", "loss"),
        trials[2].path: ("failed", "KeyError: 'x'"),
        trials[4].path: ("preempted", "preempted at step 4"),
    }
    assert not look.complete
    attempt.end("failed")
    counts = StudyReader(directory).look().counts("grid")
    assert (counts["running"], counts["preempted"]) == (0, 2)  # interrupted: its worker is gone


@pytest.mark.parametrize("protocol", ["tune_then_compare", "tune_each", "grid"])
def test_stages_to_come_are_counted_as_the_study_counts_them(make_study, protocol):
    resolved = make_study(protocol=protocol, points=3, seeds=4, tuning_seeds=2)
    study_directory.prepare(resolved)
    begun = Survey(resolved.directory, "", [])
    selection = {"points": dict.fromkeys(resolved.settings["variants"], 0)}
    for stage in resolved.stages:
        for trial in resolved.trials(stage, selection):
            path, variant, steps = trial.path, trial.variant, trial.steps
            begun.put(TrialStatus(path, stage, variant, "pending", steps, status.NEW))
    assert survey.planned(resolved.directory).rows == begun.rows


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"seeds": 3}, {"standard": 2, "laser": 2}),
        ({"points": 2}, {"standard": 1, "laser": 1}),
        ({"variants": "standard,laser,diff"}, {"diff": 1}),
        ({"variants": "standard"}, {}),
        ({}, {}),
    ],
    ids=str,
)
def test_a_study_that_was_changed_and_not_planned_is_not_complete(make_study, changes, missing):
    """Its driver died in between; study.json says which trials there are."""
    settings = {"protocol": "grid", "points": 1, "seeds": 1, "variants": "standard,laser"}
    made = make_study(**settings)
    for trial in begin_stage(made, "grid"):
        _write(made.directory / trial.path, "done", 12)
    study_directory.prepare(make_study(**settings | changes))
    look = StudyReader(made.directory).look()
    assert look.complete == (not missing)
    pending = {row.variant: row.counts["pending"] for row in look.rows.values() if row.unfinished}
    assert pending == missing
    assert sum(row.steps_left for row in look.rows.values()) == 12 * sum(missing.values())


@pytest.mark.parametrize("protocol", ["tune_then_compare", "tune_each"])
def test_a_variant_that_lost_its_tuning_is_not_waited_for(make_study, protocol):
    made = make_study(protocol=protocol, points=1, seeds=2, variants="standard,laser")
    chosen = {"points": {"standard": 0}}
    listed = begin_stage(made) + study_directory.materialise(
        made, "compare", made.trials("compare", chosen)
    )
    for trial in listed:
        _write(made.directory / trial.path, "done", 12)
    assert StudyReader(made.directory).look().complete == (protocol == "tune_each")


def test_damaged_files_are_named(begin):
    directory, trials = begin(points=3)
    paths = [directory / trial.path for trial in trials]
    for path in paths[1:]:
        attempt = lease.claim(path)
        _write(path, "running", 4)
    (paths[1] / "attempts/1" / lease.LEASE).write_text('{"host": "el')
    # Of another host, whose heartbeat cannot be read: nobody can say whether it lives.
    change_lease(attempt, boot_id="another")
    (attempt.directory / lease.HEARTBEAT).unlink()
    (attempt.directory / lease.HEARTBEAT).symlink_to(lease.HEARTBEAT)
    for content in (b'{"state": "do', b"\xff\xfe", b"[]", b'{"state": "asleep"}'):
        (paths[0] / layout.STATUS).write_bytes(content)
        look = StudyReader(directory).look()
        assert str(paths[0] / layout.STATUS) in look.damaged[trials[0].path]
        assert status.read(paths[0])["state"] == "pending"
    assert str(paths[2] / "attempts/1" / lease.HEARTBEAT) in look.damaged[trials[2].path]
    assert look.counts("tune") == {"pending": 1, "preempted": 1, "running": 1}
    # The trial's next word repairs it.
    _write(paths[0], "running", 4)
    assert status.recorded(paths[0])["reason"] is None
    (directory / "tune" / layout.TRIALS).write_text('{"trials": [{"path"')
    look = StudyReader(directory).look()
    assert f"{directory / 'tune' / layout.TRIALS}: not valid JSON" in look.damaged["tune"]
    assert look.counts("tune") == {"pending": 3}


def test_jobs_are_counted_by_their_trials(begin):
    directory, trials = begin(points=4)
    paths = [trial.path for trial in trials]
    jobs = [(paths[0], paths[1]), (paths[2],), (paths[3],)]
    first = submissions.new(directory, "slurm", jobs, {})
    first.record(["7_0", "7_1", "7_2"])
    submissions.new(directory, "slurm", [(paths[0],)], {}).record([])  # refused whole
    submissions.new(directory, "local", [(paths[0],)], {}, sharing=2)  # as many run as trials do
    assert StudyReader(directory).look().jobs == {"slurm": {"waiting": 3}}
    lease.claim(directory / paths[1])
    _write(directory / paths[1], "running")
    _write(directory / paths[2], "done", 12)
    # The second trial's job was lost, and another one got that trial.
    again = submissions.new(directory, "slurm", [(paths[1],)], {})
    record = layout.read_json(again.file)
    layout.write_json(again.file, {**record, "created_at": 9e9})
    assert StudyReader(directory).look().jobs == {"slurm": {"running": 1, "waiting": 2, "over": 1}}
    first.file.write_text("{")
    look = StudyReader(directory).look()
    assert str(first.file) in look.damaged[first.file.name]
    assert look.jobs == {"slurm": {"running": 1}}


def test_a_drivers_survey_is_that_of_the_files(begin):
    """At each event: `run` shows what `status` would."""
    directory, (first, second, third) = begin(points=3)
    _write(directory / first.path, "done", 12, step_seconds=2.0)
    shown = progress.Progress(survey.planned(directory))

    def is_same():
        look, now = StudyReader(directory).look(), shown.survey
        keys = ("stages", "rows", "unfinished", "running", "problems", "at_once")
        assert {key: getattr(look, key) for key in keys} == {key: getattr(now, key) for key in keys}
        return look.counts("tune")

    shown.stage("tune", [first, second, third], directory)
    assert is_same() == {"done": 1, "pending": 2}
    attempts = [lease.claim(directory / trial.path) for trial in (second, third)]
    for trial in (second, third):
        shown.started(trial, 1)
        _write(directory / trial.path, "running", 4, step_seconds=5.0)
        shown.looked(trial, status.recorded(directory / trial.path))
    counts = is_same()
    assert (counts["done"], counts["running"]) == (1, 2)
    _write(directory / second.path, "pending", 8, reason="preempted at step 8")
    attempts[0].end("preempted")
    shown.ended(second, "pending", None)
    _write(directory / third.path, "failed", 4, reason="KeyError: 'x'")
    attempts[1].end("failed")
    shown.ended(third, "failed", "KeyError: 'x'")
    counts = shown.survey.counts("tune")
    assert +counts == {"done": 1, "preempted": 1, "failed": 1}
    assert {path: trial.state for path, trial in shown.survey.problems.items()} == {
        second.path: "preempted",
        third.path: "failed",
    }


def test_an_event_costs_the_same_in_a_large_study(begin, tmp_path):
    _, trials = begin(points=1, **GRID)

    def seconds(count):
        shown = progress.Progress()
        many = [dataclasses.replace(trials[0], point=point) for point in range(count)]
        shown.stage("grid", many, tmp_path / "empty")
        steps = itertools.cycle(range(1, 12))

        def event():
            shown.looked(many[0], {**status.NEW, "global_step": next(steps), "step_seconds": 1.0})
            shown.survey.time_left()

        return min(timeit.repeat(event, number=100, repeat=5))

    # A sum over the trials would make it 10 times as long.
    assert seconds(10_000) < 5 * seconds(100)


def test_file_operations_per_trial_stay_constant(begin, monkeypatch):
    """As the docstring of sweeps.monitoring.survey counts them; a second look spares those that
    have ended well."""

    def operations(points):
        directory, trials = begin(points=points, name=f"of_{points}", **GRID)
        for number, trial in enumerate(trials):
            state = ("pending", "done", "failed", "running")[number % 4]
            if state in ("failed", "running"):
                attempt = lease.claim(directory / trial.path)
            if state == "failed":
                attempt.end("failed")
            if state != "pending":
                _write(directory / trial.path, state)
        reader, counts = StudyReader(directory), []
        for _ in range(2):
            counter = itertools.count()
            with counted_files(str(directory), lambda c=counter: next(c), lambda target: None):
                reader.look()
            counts.append(next(counter))
        return counts

    monkeypatch.setattr(survey, "LISTED", 2)  # the logs of so many failed trials are read
    (few_first, few_again), (first, again) = operations(8), operations(16)
    # Of four trials one is pending, one done, one failed, one says that it runs.
    assert (first - few_first) / 8 == (1 + 1 + 3 + 10) / 4
    assert (again - few_again) / 8 == (1 + 0 + 3 + 10) / 4


@pytest.mark.parametrize(
    "change", [{"variant": 3}, {"variant": None}, {"steps": "x"}, {"steps": 1.5}, {"path": []}]
)
def test_a_list_of_trials_that_was_edited_is_named(begin, change):
    directory, trials = begin(points=2, **GRID)
    for trial in trials:
        _write(directory / trial.path, "done", 12)
    file = directory / "grid" / layout.TRIALS
    record = layout.read_json(file)
    record["trials"][1] |= change
    layout.write_json(file, record)
    look = StudyReader(directory).look()
    assert not look.complete
    assert str(file) in look.damaged["grid"]
