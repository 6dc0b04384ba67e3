"""JSON that holds something else than it should: named with its file, the rest is read."""

import json
import pathlib
from collections.abc import Callable

import pytest

from analysis import cli
from analysis.compare import build
from analysis.load.studies import read_study
from sweeps.records import layout

TRIAL = "compare/standard/imagenet_vit_jax/trial_1"


@pytest.fixture
def root(hand_made) -> pathlib.Path:
    """Returns a study of two seeds at one point, which was selected."""
    made = hand_made(("standard",))
    for seed in range(2):
        rows = [made.evaluation(step, 0.5 - step / 1000) for step in (100, 200, 300, 400)]
        trial = made.trial("compare", "standard", 0, seed, rows)
        (trial / layout.MEASUREMENTS).write_text("global_step,loss\n100,2.5\n400,2.25\n")
    made.select({"standard": 0})
    made.stages = ("compare",)
    return made.finish()


def change(path: pathlib.Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def listed(root: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict]:
    """Returns the exit code of `runs --json` and what it prints, strictly JSON."""
    code = cli.main(["runs", str(root), "--json"])
    return code, json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


WHOLE = "expected a whole number from 1 or null"


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("steps", "3000", f"steps is '3000', {WHOLE}"),
        ("steps", float("nan"), f"steps is nan, {WHOLE}"),
        ("steps", True, f"steps is True, {WHOLE}"),
        ("steps", 2**53, f"steps is 9007199254740992, {WHOLE}"),
        ("eval_every", "600", f"eval_every is '600', {WHOLE}"),
        ("step_hint", "3k", f"step_hint is '3k', {WHOLE}"),
        ("targets", {"metric": 5}, "targets.metric is 5, expected text or null"),
        ("targets", {"validation": "x"}, "targets.validation is 'x', expected a finite number"),
        ("hyperparameters", None, "hyperparameters is None, expected an object"),
        ("hyperparameters", [1], "hyperparameters is [1], expected an object"),
        ("hyperparameters", {"warmup_factor": None}, "hyperparameters.warmup_factor is None, "),
        ("hyperparameters", {"b": float("inf")}, "hyperparameters.b is inf, expected a value w"),
        ("variant_hyperparameters", "x", "variant_hyperparameters is 'x', expected an object"),
    ],
)
def test_a_trials_record_is_read_without_what_is_wrong(root, key, value, says, capsys) -> None:
    change(root / TRIAL / layout.TRIAL, **{key: value})
    code, record = listed(root, capsys)
    (problem,) = record["problems"]
    assert code == 1
    assert problem.startswith(f"unreadable: {TRIAL}/trial.json: {says}")
    assert [run["state"] for run in record["runs"]] == ["done", "done"]
    assert record["runs"][0]["steps"] == 400
    assert record["medians"][0]["n"] == 2
    for command in ("table", "spikes"):
        assert cli.main([command, str(root)]) == 0


@pytest.mark.parametrize(
    ("file", "values", "says"),
    [
        (layout.STUDY, {"points": [1]}, "study.json: points is [1], expected a list of objects"),
        (layout.STUDY, {"points": {"a": 1}}, "study.json: points is {'a': 1}, expected a list"),
        (layout.STUDY, {"stages": "compare"}, "study.json: stages is 'compare', expected a list"),
        (layout.STUDY, {"name": 5}, "study.json: name is 5, expected text"),
        (layout.SELECTION, {"metric": 5}, "selection.json: metric is 5, expected text or null"),
        (layout.SELECTION, {"points": [1]}, "selection.json: points is [1], expected an object"),
        (layout.SELECTION, {"points": {"standard": "0"}}, "selection.json: points.standard is '0'"),
        ("reference.json", {"imagenet_vit": {"rows": 5}}, "reference.json: imagenet_vit.rows is 5"),
        ("reference.json", {"rows": [{"test/loss": "x"}]}, "reference.json: rows is [{'test/loss'"),
    ],
)
def test_a_studys_records_are_read_without_what_is_wrong(root, file, values, says, capsys) -> None:
    layout.write_json(root / "reference.json", {})
    change(root / file, **values)
    code, record = listed(root, capsys)
    assert code == 1
    assert record["problems"][0].startswith(f"unreadable: {says}")
    assert [run["state"] for run in record["runs"]] == ["done", "done"]
    assert build.error_table(read_study(root)).problems[0].startswith(f"unreadable: {says}")


def test_points_of_a_damaged_list_are_nobodys_hyperparameters(hand_made) -> None:
    """Without its first item, the second would be taken for point 0."""
    made = hand_made(("standard",), points=({"learning_rate": 0.1}, {"learning_rate": 0.2}))
    made.trial("tune", "standard", 1, 0, None, state="pending")
    root = made.finish()
    (root / made.planned["tune"][0]["path"] / layout.TRIAL).unlink()
    assert read_study(root).runs[0].hyperparameters == {"learning_rate": 0.2}
    change(root / layout.STUDY, points=[7, {"learning_rate": 0.2}])
    assert read_study(root).runs[0].hyperparameters == {}


def test_trials_that_are_no_list_are_named(root, capsys) -> None:
    change(root / "compare/trials.json", trials=5)
    code, record = listed(root, capsys)
    assert (code, record["runs"]) == (1, [])
    (problem,) = record["problems"]
    assert problem.startswith("unreadable: compare/trials.json: ")
    assert "trials.json is damaged: " in problem


def test_a_path_out_of_the_study_is_not_followed(root, capsys) -> None:
    record = layout.read_json(root / "compare/trials.json")
    record["trials"][0]["path"] = "../../elsewhere"
    layout.write_json(root / "compare/trials.json", record)
    code, record = listed(root, capsys)
    assert (code, len(record["runs"])) == (1, 1)
    assert record["problems"][0].endswith("path '../../elsewhere' leads out of the study")


def test_a_record_of_another_trial_is_a_mismatch_without_an_id_too(root) -> None:
    record = layout.read_json(root / TRIAL / layout.TRIAL)
    del record["id"]
    layout.write_json(root / TRIAL / layout.TRIAL, record | {"seed": 7})
    study = read_study(root)
    assert "trial.json has seed 7, trials.json plans 0" in study.problems[0]
    assert study.runs[0].evals == {}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_json_is_read_in_every_encoding_of_unicode(root, capsys, encoding) -> None:
    """As editors and PowerShell save it, with a byte order mark and other ends of lines."""
    _, before = listed(root, capsys)
    for path in root.rglob("*.json"):
        path.write_bytes(path.read_text("utf-8").replace("\n", "\r\n").encode(encoding))
    _, after = listed(root, capsys)
    assert after == before


def delete(name: str) -> Callable[[pathlib.Path], None]:
    return lambda root: (root / name).unlink()


def rename_test(root: pathlib.Path) -> None:
    path = root / TRIAL / layout.EVAL_MEASUREMENTS
    path.write_text(path.read_text().replace("test/accuracy", "tst/accuracy"))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (delete(f"{TRIAL}/trial.json"), f"missing: {TRIAL}: no trial.json, though it began"),
        (delete(f"{TRIAL}/measurements.csv"), f"missing: {TRIAL}: no measurements.csv: its logged"),
        (
            delete("compare/trials.json"),
            "missing: compare/trials.json: 2 directories of trials lie",
        ),
        (rename_test, f"missing: {TRIAL}: no column test/accuracy"),
    ],
)
def test_what_was_lost_is_a_problem(root, damage, says, capsys) -> None:
    damage(root)
    assert cli.main(["runs", str(root)]) == 1
    assert says in capsys.readouterr().out
    assert read_study(root).notes == ()
    assert any(says in problem for problem in build.error_table(read_study(root)).problems)


def test_an_evaluation_beyond_the_planned_steps_is_a_mismatch(root) -> None:
    path = root / TRIAL / layout.EVAL_MEASUREMENTS
    path.write_text(path.read_text().replace("\n400,", "\n4000,"))
    assert read_study(root).problems == (
        f"mismatch: {TRIAL}: an evaluation at step 4000 of 400 planned",
    )


@pytest.mark.parametrize("content", [b"", b"epoch,accuracy\n1,0.5", b"\xff\xfe\0x"])
def test_a_file_that_cannot_be_read_is_named_once(root, content) -> None:
    (root / TRIAL / layout.EVAL_MEASUREMENTS).write_bytes(content)
    (problem,) = read_study(root).problems
    assert f"{TRIAL}/eval_measurements.csv: " in problem


def test_a_point_that_was_chosen_and_has_no_trials_is_named(root, capsys) -> None:
    change(root / layout.SELECTION, points={"standard": 5})
    says = (
        "missing: selection.json: it chose point 5 for standard, of which compare has no trial; "
        "it has points 0"
    )
    assert cli.main(["runs", str(root)]) == 1
    assert cli.main(["table", str(root)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count(says) == 2


def test_a_column_that_no_trial_has_is_said_once(root) -> None:
    for path in root.glob("compare/*/*/*/eval_measurements.csv"):
        path.write_text(path.read_text().replace("test/accuracy", "tst/accuracy"))
    assert read_study(root).problems == ("missing: no trial has a column test/accuracy",)
    assert build.error_table(read_study(root)).problems == read_study(root).problems
