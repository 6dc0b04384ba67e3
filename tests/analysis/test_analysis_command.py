"""`python -m analysis` as a person runs it."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from analysis import commands

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*arguments, cwd: pathlib.Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "analysis", *map(str, arguments)],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def made(hand_made):
    made = hand_made()
    for variant, error in (("standard", 0.3), ("laser", 0.2)):
        for seed in range(2):
            rows = [made.evaluation(400, error + seed / 100)]
            made.trial("compare", variant, 0, seed, rows)
    made.select({"standard": 0, "laser": 0})
    return made


def test_help_names_the_commands_and_needs_no_libraries() -> None:
    """Whoever asks for help may have installed nothing yet, and wants it at once."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "analysis", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    for word in ("runs", "table", "plots", "Exit codes"):
        assert word in done.stdout


def test_table_prints_and_exits_with_0_despite_problems(made) -> None:
    made.trial("compare", "laser", 0, 2, None, state="failed", reason="out of memory")
    root = made.finish()
    done = run("table", root)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "LASER" in done.stdout
    assert (
        "failed: compare/laser/imagenet_vit_jax/trial_3: out of memory (no eval_measurements.csv)"
        in done.stdout
    )


@pytest.mark.parametrize(
    ("file", "begins"),
    [("t.md", "**tiny"), ("t.tex", "% needs"), ("t.csv", "study,workload"), ("t.txt", "tiny:")],
)
def test_the_suffix_of_the_file_chooses_the_format(made, tmp_path, file, begins, capsys) -> None:
    assert commands.main(["table", str(made.finish()), "--out", str(tmp_path / file)]) == 0
    assert (tmp_path / file).read_text().startswith(begins)
    assert capsys.readouterr().out == ""


def test_a_file_in_no_directory_is_one_line(made, tmp_path, capsys) -> None:
    out = tmp_path / "nowhere" / "t.md"
    assert commands.main(["table", str(made.finish()), "--out", str(out)]) == 2
    assert f"{out.parent} is no directory" in capsys.readouterr().err


def test_csv_names_problems_on_stderr(made, capsys) -> None:
    made.trial("compare", "laser", 0, 2, None, state="pending")
    assert commands.main(["table", str(made.finish()), "--format=csv"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("study,workload")
    assert "missing: compare/laser/imagenet_vit_jax/trial_3" in printed.err


def test_runs_exits_with_0_or_with_1_where_something_is_wrong(made, capsys) -> None:
    root = made.finish()
    assert commands.main(["runs", str(root)]) == 0
    assert "compare/laser/imagenet_vit_jax/trial_2" in capsys.readouterr().out
    made.trial("compare", "laser", 0, 2, None, state="pending")
    assert commands.main(["runs", str(made.finish())]) == 1
    assert "missing: compare/laser/imagenet_vit_jax/trial_3" in capsys.readouterr().out


def test_runs_as_json(made, capsys) -> None:
    rows = [made.evaluation(400, float("nan"))]
    made.trial("compare", "laser", 0, 2, rows)
    commands.main(["runs", str(made.finish()), "--json"])
    record = json.loads(capsys.readouterr().out)
    assert record["problems"] == [
        "non-finite: compare/laser/imagenet_vit_jax/trial_3: "
        "test/accuracy, train/accuracy, validation/accuracy at step 400 (1 evaluation)"
    ]
    assert [run["best_step"] for run in record["runs"]] == [400, 400, 400, 400, None]
    assert record["runs"][0]["metric"] == "error"
    assert record["runs"][0]["best_validation"] == pytest.approx(0.3)


def test_plots_go_into_the_study_unless_told(made, capsys) -> None:
    root = made.finish()
    assert commands.main(["plots", str(root)]) == 0
    assert (root / "plots" / "errors.png").stat().st_size > 0
    printed = capsys.readouterr().out
    assert "wrote" in printed
    assert "not written: hyperparameters.png" in printed


@pytest.mark.parametrize("command", ["runs", "table", "plots"])
def test_a_directory_that_is_no_study_is_one_line_and_exit_2(command, tmp_path) -> None:
    done = run(command, tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "looked for study.json" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_table_of_published_logs_compares_with_nothing(tmp_path, capsys) -> None:
    """Two submissions, each with a first point of its own."""
    for submission, rate in (("baseline", 0.5), ("other", 0.25)):
        directory = tmp_path / submission / "study_0" / "w_jax" / "trial_1"
        directory.mkdir(parents=True)
        text = f"global_step,validation/wer\n1,0.5\n2,{rate}\n"
        (directory / "eval_measurements.csv").write_text(text)
        (directory / "hparams.json").write_text(json.dumps({"learning_rate": rate}))
    assert commands.main(["table", str(tmp_path), "--format=markdown"]) == 0
    printed = capsys.readouterr().out
    assert "| Variant | n | Train | Validation | Test |\n" in printed
    assert "| baseline | 1 | – | 0.5000 | – |\n" in printed
    assert "| other | 1 | – | 0.2500 | – |\n" in printed
    assert "Paired by seed" not in printed
    for name, rate in (("baseline", 0.5), ("other", 0.25)):
        chosen = f"Point 1, chosen by validation in stage published for {name}: "
        assert f"{chosen}learning_rate={rate}." in printed


def test_a_metric_that_is_not_there_is_one_line(made, capsys) -> None:
    assert commands.main(["table", str(made.finish()), "--metric", "wer"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "no column validation/wer; it has test/accuracy" in error


def test_another_sweeps_on_the_path_is_refused_with_both_places(tmp_path) -> None:
    """Weights & Biases' package has the same name."""
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "__init__.py").write_text("")
    program = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\n"
        "import runpy; runpy.run_module('analysis', run_name='__main__', alter_sys=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert str(tmp_path / "sweeps") in done.stderr
    assert str(ROOT / "analysis") in done.stderr
