"""What a person sees of a study: `status`, a run in a log, a screen that changes."""

import json
import re
import sys

import pytest

from sweeps import __main__ as command
from sweeps.monitoring import progress, view
from sweeps.monitoring.survey import StudyReader, Survey, TrialStatus
from sweeps.records import layout, lease, status, submissions
from sweeps.study import study_directory
from tests.sweeps.conftest import begin_stage


@pytest.fixture
def begun(make_study):
    """A grid of two trials, one of them running: the directory, the trials, their directories."""
    made = make_study(points=2, name="watched", protocol="grid", variants="standard")
    directory, trials = made.directory, begin_stage(made, "grid")
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
        monkeypatch.setattr(progress, "_LINE_S", -1.0)
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

    monkeypatch.setattr(progress, "looks", looks)
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

    monkeypatch.setattr(progress, "looks", looks)
    progress.watch(directory)
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
    looks = progress.looks(StudyReader(directory), 0.0)
    assert next(looks).complete
    lease.claim(directories[0])
    assert next(looks).running
    (attempts / "2/outcome.json").write_text("{}")
    assert [look.complete for look in looks] == [True, True]


def test_a_selection_names_the_variants_that_were_tuned(make_study, capsys):
    resolved = make_study(protocol="tune_then_compare", points=2, variants="standard,laser")
    with progress.Progress() as shown:
        shown.stage("tune", begin_stage(resolved, "tune"), resolved.directory)
        shown.selected({"points": {"standard": 1, "laser": 1}, "metric": "loss", "lost": []})
    assert capsys.readouterr().out.endswith("point 1 of standard\n")


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


def test_jobs_of_this_host_are_not_submitted_again(begun, capsys):
    directory, _, _ = begun
    assert command.main(["resubmit", str(directory), "4711_3"]) == 2
    assert "launcher local" in capsys.readouterr().err
