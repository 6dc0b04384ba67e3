"""Reading a study's directory: every planned trial is a run, everything wrong has a name."""

import json
import pathlib
import shutil

import pytest

from analysis.load.studies import NotAStudyError, read_study
from sweeps.records import layout, lease, measurements, status


@pytest.fixture
def study(hand_made):
    """Returns a study with one tuning trial and three seeds of `standard`, not yet finished."""
    made = hand_made(("standard",))
    for stage, seeds in (("tune", 1), ("compare", 3)):
        for seed in range(seeds):
            rows = [made.evaluation(step, 0.5 - step / 1000) for step in (100, 200, 300, 400)]
            made.trial(stage, "standard", 0, seed, rows)
    made.select({"standard": 0})
    return made


def test_a_sound_study_has_runs_and_no_problems(study) -> None:
    read = read_study(study.finish())
    assert read.name == "tiny"
    assert read.config["baseline"] == "standard"
    assert read.problems == ()
    assert read.notes == ()
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


def test_a_trial_without_measurements_is_missing_by_name(study) -> None:
    study.trial("compare", "standard", 0, 3, None, state="pending")
    read = read_study(study.finish())
    assert read.problems == (
        "missing: compare/standard/imagenet_vit_jax/trial_4: pending, no eval_measurements.csv",
    )
    assert read.runs[-1].evals == {}
    assert read.runs[-1].hyperparameters == {"learning_rate": 0.001}


def test_a_directory_that_was_deleted_is_missing_by_name(study) -> None:
    root = study.finish()
    shutil.rmtree(root / study.planned["compare"][1]["path"])
    assert read_study(root).problems == (
        "missing: compare/standard/imagenet_vit_jax/trial_2: pending, no eval_measurements.csv",
    )


@pytest.mark.parametrize(
    ("state", "reason", "says"),
    [
        ("failed", "out of memory", ["failed: {}: out of memory"]),
        ("diverged", "loss is nan at step 61", ["diverged: {}: loss is nan at step 61"]),
        ("failed", None, ["failed: {}: no reason was recorded"]),
        ("running", None, ["unfinished: {}: running, last evaluation at step 200 of 400"]),
        (
            "sleeping",
            None,
            [
                "unreadable: {}/status.json is damaged: its state is 'sleeping'",
                "unfinished: {}: pending, last evaluation at step 200 of 400",
            ],
        ),
    ],
)
def test_a_trial_that_is_not_done_says_why(study, state, reason, says) -> None:
    rows = [study.evaluation(step, 0.3) for step in (100, 200)]
    study.trial("compare", "standard", 0, 3, rows, state=state, reason=reason)
    problems = read_study(study.finish()).problems
    name = "compare/standard/imagenet_vit_jax/trial_4"
    assert len(problems) == len(says)
    for problem, said in zip(problems, says, strict=True):
        assert problem.startswith(said.format(name))


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


def test_a_cut_file_is_truncated_by_name_and_its_complete_rows_are_used(study) -> None:
    root = study.finish()
    path = root / study.planned["compare"][0]["path"] / layout.EVAL_MEASUREMENTS
    path.write_bytes(path.read_bytes()[:-20])
    read = read_study(root)
    assert read.runs[1].last_step == 300
    assert [problem.split(": ")[0] for problem in read.problems] == ["truncated", "truncated"]
    assert f"{read.runs[1].name}/eval_measurements.csv" in read.problems[0]
    assert read.problems[1].endswith("done, but it ends at step 300 of 400")


def test_a_file_cut_at_the_end_of_a_line_is_truncated_too(study) -> None:
    root = study.finish()
    path = root / study.planned["compare"][0]["path"] / layout.EVAL_MEASUREMENTS
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert read_study(root).problems == (
        "truncated: compare/standard/imagenet_vit_jax/trial_1: "
        "done, but it ends at step 300 of 400",
    )


@pytest.mark.parametrize("last", [(), (301,), (399,), (301, 400)])
def test_a_done_trial_ends_with_the_evaluation_of_its_last_step(hand_made, last) -> None:
    """The engine evaluates there whatever the interval, and judges by it what is done."""
    made = hand_made(("standard",), stages=("grid",))
    rows = [made.evaluation(step, 0.3) for step in (1, 101, 201, *last)]
    trial = made.trial("grid", "standard", 0, 0, rows)
    study = read_study(made.finish())
    is_whole = measurements.are_whole(trial, 400)
    assert is_whole == (400 in last) == (not study.runs[0].ends_early)
    cut = f"done, but it ends at step {max(last, default=201)} of 400"
    expected = () if is_whole else (f"truncated: {study.runs[0].name}: {cut}",)
    assert study.problems == expected
    assert bool(study.notes) == (not is_whole)
    assert all(f"python -m sweeps resume {study.directory}" in note for note in study.notes)


def test_damaged_json_is_named(study) -> None:
    root = study.finish()
    trial = root / study.planned["compare"][0]["path"]
    (trial / layout.STATUS).write_text('{"state": "do')
    (root / layout.SELECTION).write_text("[]")
    problems = read_study(root).problems
    assert len(problems) == 3
    assert "selection.json: not a JSON object" in problems[0]
    assert "trial_1/status.json" in problems[1]
    assert problems[2].startswith("unfinished: ")


def test_measurements_of_another_trial_are_not_read(study) -> None:
    root = study.finish()
    trial = root / study.planned["compare"][0]["path"]
    record = layout.read_json(trial / layout.TRIAL)
    layout.write_json(trial / layout.TRIAL, record | {"id": "another"})
    read = read_study(root)
    assert read.runs[1].evals == {}
    assert read.problems[0].startswith("mismatch: compare/standard/imagenet_vit_jax/trial_1: ")


def test_a_trial_planned_twice_is_duplicated_by_name(study) -> None:
    study.planned["compare"].append(study.planned["compare"][0])
    read = read_study(study.finish())
    assert len(read.runs) == 4
    assert read.problems[0].startswith(
        "duplicated: compare/standard/imagenet_vit_jax/trial_1: planned 2 times"
    )


def test_an_entry_that_plans_nothing_is_named(study) -> None:
    study.planned["compare"].append({"path": "compare/x"})
    assert "an entry without" in read_study(study.finish()).problems[0]


def test_leavings_of_an_earlier_plan_are_noted_and_left_out(study) -> None:
    study.trial("compare", "standard", 0, 7, [study.evaluation(400, 0.1)])
    study.planned["compare"].pop()
    read = read_study(study.finish())
    assert len(read.runs) == 4
    assert read.problems == ()
    assert read.notes == (
        "compare/standard/imagenet_vit_jax/trial_8: not planned any more, left out",
    )


def test_a_directory_without_a_study_says_what_was_looked_for(tmp_path: pathlib.Path) -> None:
    with pytest.raises(NotAStudyError, match=r"looked for study\.json and for AlgoPerf's study_"):
        read_study(tmp_path)
    with pytest.raises(NotAStudyError, match="no such directory"):
        read_study(tmp_path / "nowhere")


def test_the_parent_of_a_study_names_the_study(study) -> None:
    with pytest.raises(NotAStudyError, match="did you mean one of these in it: tiny"):
        read_study(study.finish().parent)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"format": "attnperf-study-9"}, "format is 'attnperf-study-9'"),
        ([], "format is None"),
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
    name = "compare/standard/imagenet_vit_jax/trial_4"
    assert read_study(study.finish()).problems == (
        f"non-finite: {name}: train/accuracy, validation/accuracy at step 200 (1 evaluation)",
        f"non-finite: {name}: test/accuracy at step 200 (2 evaluations)",
    )


def test_a_diverged_trial_is_said_once(study) -> None:
    rows = [study.evaluation(100, 0.3), study.evaluation(200, float("nan"))]
    study.trial("compare", "standard", 0, 3, rows, state="diverged", reason="loss is nan at 150")
    assert read_study(study.finish()).problems == (
        "diverged: compare/standard/imagenet_vit_jax/trial_4: loss is nan at 150",
    )


def test_losses_are_read_when_asked_for_and_checked_by_runs(study) -> None:
    root = study.finish()
    name = study.planned["compare"][0]["path"]
    path = root / name / layout.MEASUREMENTS
    path.write_text("global_step,loss\n1,2.5\n2,x\n3,2.25\n")
    assert read_study(root).problems == ()
    assert read_study(root, whole=True).problems == (
        f"damaged: {name}/measurements.csv: in line 3, which is left out: "
        "loss is 'x', not a number",
    )
    run = read_study(root).runs[1]
    assert run.losses()["loss"].tolist() == [2.5, 2.25]


def test_a_trials_record_carries_its_targets_and_step_hint(study) -> None:
    run = read_study(study.finish()).runs[0]
    assert run.targets == {"metric": "accuracy", "validation": 0.9, "test": 0.9}
    assert run.step_hint == 400


def test_our_studies_share_their_seeds(study) -> None:
    assert read_study(study.finish()).shares_seeds


def test_each_file_is_read_once_to_list_and_to_choose(study, monkeypatch) -> None:
    """Of measurements.csv, which may be long, nothing is read."""
    from analysis.load import selection
    from analysis.load.files import csv_reader
    from analysis.views import runs as listing

    parsed = []
    content = csv_reader._text
    monkeypatch.setattr(csv_reader, "_text", lambda text: parsed.append(1) or content(text))
    read = read_study(study.finish())
    listing.to_json(read)
    assert selection.best_point(read.stage("compare")) == 0
    assert len(parsed) == len(read.runs) == 4


def test_two_trials_of_one_seed_are_duplicated(study) -> None:
    """In trials.json two directories have one variant, point and seed."""
    study.planned["compare"][2]["seed"] = 1
    root = study.finish()
    path = root / study.planned["compare"][2]["path"] / layout.TRIAL
    layout.write_json(path, layout.read_json(path) | {"seed": 1})
    assert read_study(root).problems == (
        "duplicated: compare/standard/imagenet_vit_jax/trial_3: standard, point 0, seed 1 is "
        "compare/standard/imagenet_vit_jax/trial_2, too; the first counts",
    )
