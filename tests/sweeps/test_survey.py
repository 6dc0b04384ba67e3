"""What a survey holds, a reader's as a driver's, and what a person sees of it."""

import dataclasses
import itertools
import json
import re
import sys
import timeit

import pytest

from sweeps import __main__ as command
from sweeps.monitoring import progress, survey, view
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
    assert re.search(rf"{paths[2]} says running.*{lease.HEARTBEAT}", look.damaged[trials[2].path])
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
            record = {**status.NEW, "global_step": next(steps), "step_seconds": 1.0}
            shown.looked(many[0], record)
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


@pytest.fixture
def begun(begin):
    """A grid of two trials, one of them running: the directory, the trials, their directories."""
    directory, trials = begin(points=2, name="watched", **GRID)
    directories = [directory / trial.path for trial in trials]
    lease.claim(directories[0])
    status.write(directories[0], "running", global_step=4, steps=12, step_seconds=2.0)
    return directory, trials, directories


def _finish(directories):
    for directory in directories:
        status.write(directory, "done", global_step=12)


# 8 steps are left of the first trial and 12 of the second, 2 s each.
LEFT = "time left: about 40 s (grid 40 s) with 1 at a time"


def test_a_status(begun, capsys):
    directory, trials, directories = begun
    figures = {"global_step": 3, "loss": 0.5, "images_per_second": 123.45, "share": None}
    evaluation = {"validation/accuracy": 0.25}
    status.write(
        directories[0], "running", figures=figures, evaluation=evaluation, host="node7", note="slow"
    )
    assert command.main(["status", str(directory)]) == 3
    assert capsys.readouterr().out.splitlines() == [
        f"study watched in {directory}",
        "stage  variant   pending  running  done  diverged  failed  preempted",
        "grid   standard  1        1        0     0         0       0",
        LEFT,
        f"{trials[0].path} running on node7: step 4/12, loss 0.5, images_per_second 123.5, "
        "validation/accuracy 0.25; slow",
    ]
    lease.last(directories[0]).joinpath(lease.OUTCOME).write_text("{}")
    assert command.main(["status", str(directory)]) == 3
    assert f"python -m sweeps resume {directory}\n" in capsys.readouterr().out
    _finish(directories)
    assert command.main(["status", str(directory)]) == 0
    assert capsys.readouterr().out.endswith("\ncomplete\n")
    assert command.main(["status", str(directory.parent)]) == 2


def test_a_status_as_one_object(begun, capsys):
    directory, trials, directories = begun
    with pytest.raises(SystemExit, match="2"):
        command.main(["status", "--watch", "--json", str(directory)])
    status.write(directories[1], "failed", global_step=7, reason="KeyError: 'x'")
    lease.claim(directories[1]).end("failed")
    (directory / "jobs").mkdir()
    (directory / "jobs" / "s-a-00000000.json").write_text("{")
    capsys.readouterr()
    assert command.main(["status", "--json", str(directory)]) == 3
    now = json.loads(capsys.readouterr().out)
    assert 0 <= now["running"][0].pop("age_s") < 60
    assert list(now.pop("damaged")) == ["s-a-00000000.json"]
    counts = dict.fromkeys(("pending", "done", "diverged", "preempted"), 0)
    assert now == {
        "study": "watched",
        "directory": str(directory),
        "complete": False,
        "stages": [{"stage": "grid", "variant": "standard", "running": 1, "failed": 1, **counts}],
        "seconds_left": {"grid": 16.0},  # 8 steps of 2 s
        "running": [{"path": trials[0].path, "host": None, "step": 4, "steps": 12}],
        "problems": [{"path": trials[1].path, "state": "failed", "reason": "KeyError: 'x'"}],
        "jobs": [],
        "unanswered": [],
    }
    _finish(directories)
    assert command.main(["status", "--json", str(directory)]) == 0
    assert json.loads(capsys.readouterr().out)["seconds_left"] is None


def test_many_failures_do_not_fill_the_screen():
    survey = Survey(None, "failing", ["grid"])
    for number in range(25):
        record = {**status.NEW, "reason": "RuntimeError: boom"}
        survey.put(TrialStatus(f"trial_{number}", "grid", "laser", "failed", 12, record, ["end"]))
    text = view.render(survey)
    assert text.count("RuntimeError: boom\n    end") == 20
    assert text.endswith("and 5 more failed")


def test_a_run_in_a_log(begun, capsys, monkeypatch):
    directory, trials, directories = begun
    with progress.Progress() as shown:
        shown.stage("grid", trials, directory)
        shown.selected({"points": {"a": 3, "b": 1}, "metric": "loss", "lost": ["x"]})
        shown.started(trials[1], "slurm job 12_3")
        monkeypatch.setattr(view, "_LINE_S", -1.0)
        shown.tick()
        monkeypatch.undo()
        shown.tick()  # not yet a minute later
        shown.ended(trials[1], "pending", "KeyError: 'x'")
        _finish(directories)
        shown.ended(trials[1], "done", None)
        shown.ended(trials[1], "done", None)  # counts once
        shown.ended(trials[0], "failed", "KeyError: 'x'", ["last line"])
    paths = [trial.path for trial in trials]
    assert [line.split("] ", 1)[1] for line in capsys.readouterr().out.splitlines()] == [
        "stage grid: 2 trials, 0 already finished",
        "selected by loss: point 3 of a, point 1 of b; 1 lost trial counted as the worst",
        f"{paths[1]} started on slurm job 12_3",
        "grid 2 running; time left: about 24 s (grid 24 s) with 2 at a time; "
        f"{paths[0]} running: step 4/12; {paths[1]} running: step 0/12",
        f"{paths[1]} will be tried again: KeyError: 'x' [0/2]",
        f"{paths[1]} done [1/2]",
        f"{paths[1]} done [1/2]",
        f"{paths[0]} failed: KeyError: 'x' [2/2]",
        "    last line",
    ]


def test_a_brief_run_speaks_of_trials_that_fail_alone(begun, capsys):
    directory, trials, directories = begun
    with progress.Progress(brief=True) as shown:
        shown.stage("grid", trials, directory)
        shown.started(trials[1], "slurm job 12_3")
        _finish(directories[1:])
        shown.ended(trials[1], "done", None)
        shown.ended(trials[0], "failed", "KeyError: 'x'")
    assert [line.split("] ", 1)[1] for line in capsys.readouterr().out.splitlines()] == [
        "stage grid: 2 trials, 0 already finished",
        f"{trials[0].path} failed: KeyError: 'x' [2/2]",
    ]


def test_a_log_gets_a_line_per_change_until_ctrl_c(begun, monkeypatch, capsys):
    directory, _, directories = begun

    def looks(reader, every_s):
        for finished in ([], [], directories[:1], directories):
            _finish(finished)
            yield reader.look()
        raise KeyboardInterrupt

    monkeypatch.setattr(view, "looks", looks)
    assert command.main(["status", "--watch", str(directory)]) == 0
    lines = [line.split("] ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    states = [line.partition(";")[0] for line in lines]
    assert states == ["grid 1 pending 1 running", "grid 1 pending 1 done", "grid 2 done"]


def test_a_terminal_gets_a_table_that_changes(begun, monkeypatch, capsys):
    directory, _, directories = begun
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")

    def looks(reader, every_s):
        yield reader.look()
        _finish(directories)
        yield reader.look()

    monkeypatch.setattr(view, "looks", looks)
    view.watch(directory)
    text = capsys.readouterr().out
    assert re.search("stage +variant .*preempted", text)
    assert "trial_1 running" in text
    assert re.search(r"\n\S*complete", text)


def test_a_trial_that_failed_may_be_tried_again(begun):
    """It is failed for a moment: the study is over where it still looks so at the next look."""
    directory, _, directories = begun
    _finish(directories[1:])
    attempts = directories[0] / "attempts"
    (attempts / "1/outcome.json").write_text("{}")
    status.write(directories[0], "failed", reason="RuntimeError: boom")
    looks = view.looks(StudyReader(directory), 0.0)
    assert next(looks).complete
    lease.claim(directories[0])
    assert next(looks).running
    (attempts / "2/outcome.json").write_text("{}")
    assert [look.complete for look in looks] == [True, True]


@pytest.mark.parametrize(
    ("protocol", "named"),
    [
        ("tune_each", "point 1 of standard, point 1 of laser"),
        ("tune_then_compare", "point 1 of standard"),
    ],
)
def test_a_selection_names_the_variants_that_were_tuned(make_study, capsys, protocol, named):
    resolved = make_study(protocol=protocol, points=2, variants="standard,laser")
    with progress.Progress() as shown:
        shown.stage("tune", begin_stage(resolved, "tune"), resolved.directory)
        shown.selected({"points": {"standard": 1, "laser": 1}, "metric": "loss", "lost": []})
    assert capsys.readouterr().out.endswith(f"selected by loss: {named}\n")


@pytest.mark.parametrize(
    ("is_cancelled", "held", "words"),
    [
        (False, {}, "no trial is running; to go on: "),
        (False, {"/another": ["core 0"]}, "unless a driver"),
        (True, {"/another": ["core 0"]}, "cancelled"),
    ],
)
def test_the_advice_of_status_is_true(make_study, monkeypatch, capsys, is_cancelled, held, words):
    made = make_study()
    study_directory.prepare(made)
    monkeypatch.setattr("sweeps.launchers.device_locks.holders", lambda: held)
    if is_cancelled:
        layout.write_json(made.directory / submissions.CANCELLED, {})
    assert command.main(["status", str(made.directory)]) == 3
    last = capsys.readouterr().out.splitlines()[-1]
    assert words in last
    assert last.endswith(f"python -m sweeps resume {made.directory}")


@pytest.mark.parametrize(
    "change", [{"variant": 3}, {"variant": None}, {"steps": "x"}, {"steps": 1.5}, {"path": []}]
)
def test_a_status_names_a_list_of_trials_that_was_edited(begun, change):
    directory, _, directories = begun
    _finish(directories)
    file = directory / "grid" / layout.TRIALS
    record = layout.read_json(file)
    record["trials"][1] |= change
    layout.write_json(file, record)
    look = StudyReader(directory).look()
    assert not look.complete
    assert str(file) in look.damaged["grid"]


def test_jobs_of_this_host_are_not_submitted_again(begun, capsys):
    directory, _, _ = begun
    assert command.main(["resubmit", str(directory), "4711_3"]) == 2
    assert "launcher local" in capsys.readouterr().err
