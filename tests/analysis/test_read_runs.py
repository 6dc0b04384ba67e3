"""Reading a study's directory: every planned trial is a run, everything wrong has a name."""

import json
import shutil

import pytest

from analysis.load.studies import NotAStudyError, read_study
from sweeps.records import layout, lease, measurements, status

TRIAL = "compare/standard/imagenet_vit_jax/trial_{}"


def found(study):
    """Returns the kinds and trials of a study's problems."""
    return [(problem.kind, problem.trial) for problem in read_study(study.finish()).problems]


@pytest.fixture
def study(hand_made):
    """Returns a study with one tuning trial and three seeds of `standard`, not yet finished."""
    made = hand_made(("standard",))
    for stage, seeds in (("tune", 1), ("compare", 3)):
        for seed in range(seeds):
            rows = [made.evaluation(step, 0.5 - step / 1000) for step in (100, 200, 300, 400)]
            made.trial(stage, "standard", 0, seed, rows)
    return made


def test_a_sound_study_has_runs_and_no_problems(study) -> None:
    read = read_study(study.finish())
    assert (read.problems, read.notes) == ((), ())
    assert [(run.stage, run.seed) for run in read.runs] == [
        ("tune", 0),
        ("compare", 0),
        ("compare", 1),
        ("compare", 2),
    ]
    run = read.runs[-1]
    assert (run.workload, run.variant, run.point, run.state) == (
        "imagenet_vit",
        "standard",
        0,
        "done",
    )
    assert run.hyperparameters == {"learning_rate": 0.001}
    assert (run.steps, run.last_step, run.metric) == (400, 400, "accuracy")
    assert run.evals["validation/accuracy"].tolist() == pytest.approx([0.6, 0.7, 0.8, 0.9])
    assert run.losses()["global_step"].tolist() == [100, 200, 300, 400]
    assert run.path == study.root / run.name


@pytest.mark.parametrize("state", ["done", "running", "diverged"])
def test_evaluations_that_are_missing_are_named(study, state) -> None:
    """trial.json plans one every 100 of 400 steps; the end of a trial has a kind of its own."""
    study.change("standard", 0, eval_every=100)
    assert found(study) == []
    study.change("standard", 0, layout.STATUS, state=state)
    rows = [study.evaluation(step, 0.3) for step in (100, 300)]
    path = study.root / TRIAL.format(1) / layout.EVAL_MEASUREMENTS
    path.write_text(study.csv_text(rows))
    kind = {"done": "truncated", "running": "unfinished"}.get(state, state)
    assert found(study) == [(kind, TRIAL.format(1)), ("missing", TRIAL.format(1))]
    assert "step 200" in read_study(study.root).problems[1].text


def test_trials_without_measurements_are_missing(study) -> None:
    study.trial("compare", "standard", 0, 3, None, state="pending")
    shutil.rmtree(study.root / study.planned["compare"][1]["path"])
    assert found(study) == [("missing", TRIAL.format(2)), ("missing", TRIAL.format(4))]
    for run in read_study(study.root).runs[2::2]:
        assert (run.evals, run.hyperparameters) == ({}, {"learning_rate": 0.001})


@pytest.mark.parametrize(
    ("state", "reason", "kinds"),
    [
        ("failed", "out of memory", ["failed"]),
        ("diverged", "loss is nan at step 61", ["diverged"]),
        ("failed", None, ["failed"]),
        ("running", None, ["unfinished"]),
        ("sleeping", None, ["unreadable", "unfinished"]),
    ],
)
def test_a_trial_that_is_not_done_says_why(study, state, reason, kinds) -> None:
    last = float("nan") if state == "diverged" else 0.3  # which is not named once more
    rows = [study.evaluation(100, 0.3), study.evaluation(200, last)]
    study.trial("compare", "standard", 0, 3, rows, state=state, reason=reason)
    assert found(study) == [(kind, TRIAL.format(4)) for kind in kinds]
    assert (reason or "") in read_study(study.root).problems[0].text


def test_a_stale_running_over_done_is_done_for_the_engine_and_for_tables(study) -> None:
    """A worker that slept between its check and its write replaced `done`; its attempt says so."""
    rows = [study.evaluation(step, 0.3) for step in (100, 200, 300, 400)]
    stale = study.trial("compare", "standard", 0, 3, rows)
    killed = study.trial("compare", "standard", 0, 4, rows[:2])
    for trial in (stale, killed):
        attempt = lease.claim(trial)
        status.write(trial, "running", global_step=200)
        if trial == stale:
            attempt.end("done")
        else:
            (attempt.directory / lease.LEASE).write_text("{}")  # of no process that lives
    runs = {run.path: run for run in read_study(study.finish()).runs}
    assert [runs[trial].state for trial in (stale, killed)] == ["done", "pending"]
    assert [status.read(trial)["state"] for trial in (stale, killed)] == ["done", "pending"]
    assert runs[stale].problems == ()
    assert runs[killed].reason == "interrupted at step 200"


@pytest.mark.parametrize("last", [(), (301,), (399,), (301, 400)])
def test_a_done_trial_ends_with_the_evaluation_of_its_last_step(hand_made, last) -> None:
    """The engine evaluates there whatever the interval, and judges by it what is done."""
    made = hand_made(("standard",), stages=("grid",))
    rows = [made.evaluation(step, 0.3) for step in (1, 101, 201, *last)]
    trial = made.trial("grid", "standard", 0, 0, rows)
    study = read_study(made.finish())
    is_whole = measurements.are_whole(trial, 400)
    assert is_whole == (400 in last) == (not study.runs[0].ends_early)
    assert [problem.kind for problem in study.problems] == ["truncated"] * (not is_whole)
    assert bool(study.notes) == (not is_whole)
    assert all(str(study.directory) in note.text for note in study.notes)


def test_a_trial_planned_twice_is_duplicated(study) -> None:
    study.planned["compare"].append(study.planned["compare"][0])
    assert found(study) == [("duplicated", TRIAL.format(1))]
    assert len(read_study(study.root).runs) == 4


@pytest.mark.parametrize(("state", "counts"), [("done", 1), ("failed", 1), ("pending", 0)])
def test_trials_of_an_earlier_plan_are_noted_and_read_if_they_ended(study, state, counts) -> None:
    study.trial("compare", "standard", 0, 7, [study.evaluation(400, 0.1)], state=state)
    study.planned["compare"].pop()
    read = read_study(study.finish())
    assert len(read.runs) == 4 + counts
    assert [problem.kind for problem in read.problems] == ["failed"] * (state == "failed")
    (note,) = read.notes
    assert (note.kind, note.trial) == ("note", "compare/standard/imagenet_vit_jax/trial_8")


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"format": "attnperf-study-9"}, "format is 'attnperf-study-9'"),
        ([], "study.json"),
        ({"format": layout.FORMAT}, "no object 'config'"),
    ],
)
def test_a_study_record_of_another_kind_is_refused(tmp_path, record, says) -> None:
    (tmp_path / layout.STUDY).write_text(json.dumps(record))
    with pytest.raises(NotAStudyError, match=says):
        read_study(tmp_path)


def test_evaluations_that_are_not_finite_are_named(study) -> None:
    """An empty cell of ours is a metric that was not measured; nan and inf are written so."""
    rows = [study.evaluation(100, 0.3), study.evaluation(200, float("nan"), test=float("inf"))]
    rows += [
        study.evaluation(300, 0.25, test=float("-inf")),
        {"global_step": 350, "validation/accuracy": 0.8},
    ]
    rows += [study.evaluation(400, 0.2)]
    study.trial("compare", "standard", 0, 3, rows)
    assert found(study) == [("non-finite", TRIAL.format(4))] * 2
    both, one = (problem.text for problem in read_study(study.root).problems)
    assert ("train/accuracy" in both, "validation/accuracy" in both) == (True, True)
    assert ("test/accuracy" in one, " 2 " in one) == (True, True)


def test_losses_are_read_when_asked_for_and_checked_by_runs(study) -> None:
    root = study.finish()
    name = study.planned["compare"][0]["path"]
    (root / name / layout.MEASUREMENTS).write_text("global_step,loss\n1,2.5\n2,x\n3,2.25\n")
    assert read_study(root).problems == ()
    (problem,) = read_study(root, whole=True).problems
    assert (problem.kind, problem.trial, problem.file) == ("damaged", name, layout.MEASUREMENTS)
    run = read_study(root).runs[1]
    assert run.losses()["loss"].tolist() == [2.5, 2.25]


def test_a_running_trial_has_logged_what_its_attempts_hold(study) -> None:
    """Before its first evaluation there is no CSV; the second attempt resumed after step 10."""
    directory = study.trial("compare", "laser", 0, 3, None, state="running")
    (directory / layout.MEASUREMENTS).unlink(missing_ok=True)
    for number, (resumed, steps) in enumerate(((0, (0, 10, 20)), (20, (20, 30))), 1):
        attempt = directory / layout.ATTEMPTS / str(number)
        attempt.mkdir(parents=True)
        layout.write_json(attempt / "resumed.json", {"global_step": resumed})
        rows = [
            {"kind": "train", "global_step": step, "loss": step + number / 10} for step in steps
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (attempt / "measurements.jsonl").write_text(text)
    losses = read_study(study.finish()).runs[-1].losses()
    assert losses["global_step"].tolist() == [0, 10, 20, 30]
    assert losses["loss"].tolist() == [0.1, 10.1, 20.2, 30.2]
