"""`python -m analysis` as a person runs it."""

import contextlib
import csv
import io
import json
import os
import pathlib
import subprocess
import sys

import pytest

from analysis import cli
from analysis.render import printing

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
    assert cli.main(["table", str(made.finish()), "--out", str(tmp_path / file)]) == 0
    assert (tmp_path / file).read_text().startswith(begins)
    assert capsys.readouterr().out == ""


def test_a_file_in_no_directory_is_one_line(made, tmp_path, capsys) -> None:
    out = tmp_path / "nowhere" / "t.md"
    assert cli.main(["table", str(made.finish()), "--out", str(out)]) == 2
    assert f"{out.parent} is no directory" in capsys.readouterr().err


@pytest.mark.parametrize("bad", ["/proc/none/x", "/proc/x", "{file}/x"])
@pytest.mark.parametrize(
    "command",
    [
        ("table", "DIR", "--out=OUT.md"),
        ("summary", "DIR", "--out=OUT.md"),
        ("summary", "DIR", "--plot=OUT.png"),
        ("time", "DIR", "--out=OUT.csv"),
        ("spikes", "DIR", "--out=OUT.txt"),
        ("downstream", "DIR", "--out=OUT.tex"),
        ("scaling", "DIR", "--out=OUT.html"),
        ("plots", "DIR", "--out=OUT"),
        ("report", "DIR", "--out=OUT.html"),
        ("hardware", "FILE", "--out=OUT.md"),
        ("reconstruction", "FILE", "--out=OUT.md"),
        ("paper", "--out=OUT.md"),
    ],
)
def test_an_output_is_checked_before_anything_is_read(tmp_path, capsys, command, bad) -> None:
    """The study does not exist, and yet the output is what is refused."""
    (tmp_path / "file").write_text("")
    bad = bad.format(file=tmp_path / "file")
    given = [each.replace("DIR", str(tmp_path / "no")).replace("OUT", bad) for each in command]
    assert cli.main([each.replace("FILE", str(tmp_path / "no.json")) for each in given]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    option = "--plot=" if "--plot" in given[-1] else "--out="
    assert f"{option}{bad}" in printed.err


def test_csv_names_problems_on_stderr(made, capsys) -> None:
    made.trial("compare", "laser", 0, 2, None, state="pending")
    assert cli.main(["table", str(made.finish()), "--format=csv"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("study,workload")
    assert "missing: compare/laser/imagenet_vit_jax/trial_3" in printed.err


def test_runs_exits_with_0_or_with_1_where_something_is_wrong(made, capsys) -> None:
    root = made.finish()
    assert cli.main(["runs", str(root)]) == 0
    assert "compare/laser/imagenet_vit_jax/trial_2" in capsys.readouterr().out
    made.trial("compare", "laser", 0, 2, None, state="pending")
    assert cli.main(["runs", str(made.finish())]) == 1
    assert "missing: compare/laser/imagenet_vit_jax/trial_3" in capsys.readouterr().out


def test_runs_as_json(made, capsys) -> None:
    rows = [made.evaluation(400, float("nan"))]
    made.trial("compare", "laser", 0, 2, rows)
    cli.main(["runs", str(made.finish()), "--json"])
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
    assert cli.main(["plots", str(root)]) == 0
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
    assert cli.main(["table", str(tmp_path), "--format=markdown"]) == 0
    printed = capsys.readouterr().out
    assert "| Variant | n | Train | Validation | Test |\n" in printed
    assert "| baseline | 1 | – | 0.5000 | – |\n" in printed
    assert "| other | 1 | – | 0.2500 | – |\n" in printed
    assert "Paired by seed" not in printed
    for name, rate in (("baseline", 0.5), ("other", 0.25)):
        chosen = f"Point 1, chosen by validation in stage published for {name}: "
        assert f"{chosen}learning_rate={rate}." in printed


def test_a_metric_that_is_not_there_is_one_line(made, capsys) -> None:
    assert cli.main(["table", str(made.finish()), "--metric", "wer"]) == 2
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
    assert f"this command runs from {ROOT}" in done.stderr


NUMBERS = ("nan", "inf", "-inf", "1e400", "x", "")


@pytest.mark.parametrize(
    ("command", "option", "wrong"),
    [
        ("table", "--effect", ("-1", "0", *NUMBERS)),
        *((name, "--last", ("-1", "0", "1.5", "9" * 30, *NUMBERS))
          for name in ("table", "plots", "report")),
        ("time", "--target", ("-1", *NUMBERS)),
        ("scaling", "--loss", ("-1", "0", *NUMBERS)),
        ("scaling", "--parameters",
         ("c4_lm=-1", "c4_lm=0", "c4_lm=0.5", "=3", *(f"c4_lm={each}" for each in NUMBERS))),
    ],
)  # fmt: skip
def test_a_number_that_means_nothing_is_refused_at_the_door(command, option, wrong, capsys) -> None:
    """Before the directory, which is not there, is looked at."""
    parser = cli.parser()
    for text in wrong:
        with pytest.raises(SystemExit) as ended:
            parser.parse_args([command, "nowhere", f"{option}={text}"])
        assert ended.value.code == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert f"argument {option}: " in said
        assert "give " in said


@pytest.mark.parametrize("name", ["t.xlsx", "t.CSVX", "t.pdf", "t.1"])
@pytest.mark.parametrize("form", [(), ("--format=csv",)])
def test_a_suffix_of_no_format_is_refused_by_name(name, form, tmp_path, capsys) -> None:
    out = tmp_path / name
    assert cli.main(["table", "nowhere", f"--out={out}", *form]) == 2
    error = capsys.readouterr().err
    assert f"{out.suffix.lower()} is no format of ours; give one of .txt, .md, .tex, .csv" in error
    assert not out.exists()


def test_a_suffix_of_another_format_is_refused(tmp_path, capsys) -> None:
    assert cli.main(["paper", f"--out={tmp_path / 't.md'}", "--format=csv"]) == 2
    assert "is a name for markdown, --format=csv writes .csv" in capsys.readouterr().err
    assert cli.main(["paper", f"--out={tmp_path / 'T.MD'}"]) == 0
    assert (tmp_path / "T.MD").read_text().startswith("**")
    assert cli.main(["paper", f"--out={tmp_path / 'plain'}", "--format=csv"]) == 0
    assert (tmp_path / "plain").read_text().startswith("document,")


@pytest.mark.parametrize(
    "command", ["table", "time", "spikes", "scaling", "reconstruction", "report", "plots"]
)
def test_out_that_cannot_be_written_is_named_before_anything_is_read(
    command, tmp_path, capsys
) -> None:
    """No number of the system's, and no need of a study."""
    (tmp_path / "file").write_text("")
    outs = [tmp_path / "file"] if command == "plots" else [
        tmp_path, tmp_path / "no" / "t.html", tmp_path / "file" / "t.html",
    ]  # fmt: skip
    for out in outs:
        assert cli.main([command, "nowhere", f"--out={out}"]) == 2
        error = capsys.readouterr().err
        assert f"--out={out}: " in error
        assert "Errno" not in error
        assert error.count("\n") == 1


@pytest.mark.parametrize("start", ["=1+1", "+1+1", "-1+1", "@SUM(1)", "\t=1", "\r=1", "＝1+1"])
def test_no_name_is_a_formula_in_csv(start, hand_made, capsys) -> None:
    made = hand_made(config={"name": start})
    for variant, error in (("standard", 0.3), ("laser", 0.2)):
        for seed in range(2):
            rows = [made.evaluation(400, error + seed**2 / 100)]
            made.trial("compare", variant, 0, seed, rows)
    made.select({"standard": 0, "laser": 0})
    root = made.finish()
    for arguments in (["table"], ["table", "--short"], ["time", "--target=0.5", "--metric=error"]):
        assert cli.main([*arguments, str(root), "--format=csv"]) == 0
        cells = [c for row in csv.reader(io.StringIO(capsys.readouterr().out)) for c in row]
        assert any(cell.startswith("'" + start.replace("\r", " ")) for cell in cells)
        for cell in cells:
            assert not cell.startswith(tuple("=@\t\r＝"))
            if cell.startswith(("+", "-")):
                assert float(cell) < 0 or cell[0] == "+"


@pytest.mark.parametrize(
    "cell", ["-0.0017", "+0.0050", "-4.5%", "-1e-05", "-inf", "+1,000", "-0.1 0.25", -0.5, 3, "a-b"]
)
def test_numbers_of_a_csv_stay_numbers(cell) -> None:
    assert printing.cell_text(cell) == cell


@pytest.mark.parametrize("cell", ["-", "-x", "+1+1", "-1 =2", "=", "-2%+3", "@a", "- 1"])
def test_what_begins_as_a_formula_and_is_no_number_is_quoted(cell) -> None:
    assert printing.cell_text(cell) == f"'{cell}"


def test_a_target_that_no_seed_reached_is_not_called_unknown(made, capsys) -> None:
    root = made.finish()
    for record in root.glob("compare/*/*/*/trial.json"):
        stated = json.loads(record.read_text())
        stated["targets"] = {"metric": "accuracy", "validation": 0.99, "test": 0.99}
        record.write_text(json.dumps(stated))
    assert cli.main(["time", str(root)]) == 0
    said = capsys.readouterr().out
    assert "0 of 2" in said
    assert cli.main(["plots", str(root)]) == 0
    assert "time_to_target.png: no target is known, or no seed reached it" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(("first", "seeds"), [(0, "12"), (1, "11"), (10, "12 v 12")])
def test_the_short_table_has_the_n_of_the_test(hand_made, capsys, first, seeds) -> None:
    """Of 12 seeds each 12, 11 or 2 are in both. The runs of each variant alone are told."""
    made = hand_made()
    for variant, begin in {"standard": 0, "laser": first}.items():
        for seed in range(12):
            row = made.evaluation(400, 0.5 + 0.01 * (seed * 7 % 5) - 0.1 * (variant == "laser"))
            made.trial("compare", variant, 0, begin + seed, [row])
    made.select({"standard": 0, "laser": 0})
    assert cli.main(["table", str(made.finish()), "--short", "--format=markdown"]) == 0
    printed = capsys.readouterr().out
    laser = next(line for line in printed.splitlines() if line.startswith("| LASER |"))
    assert f" | {seeds} | " in laser.removeprefix("| LASER | 12 | ")
    assert ("11 (12 and 12 seeds)" in printed) == (seeds == "11")


def test_a_short_table_has_what_a_reader_needs(made, tmp_path, capsys) -> None:
    root = made.finish()
    assert cli.main(["table", str(root), "--short"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 12
    for word in ("Variant", "Test, median", "Mean - Standard", "p (Holm)", "Verdict", "-0.1000"):
        assert word in text
    for suffix in ("md", "tex", "html"):
        out = tmp_path / f"t.{suffix}"
        assert cli.main(["table", str(root), "--short", f"--out={out}"]) == 0
        assert "0.1000" in out.read_text()
        assert "bootstrap" not in out.read_text()
    capsys.readouterr()
    assert cli.main(["table", str(root), "--short", "--format=csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["variant"] for row in rows] == ["standard", "laser"]
    assert float(rows[1]["difference"]) == pytest.approx(-0.1)
    assert cli.main(["table", str(root), "--short", "--baseline=laser"]) == 0
    assert "Mean - LASER" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["table", "~/nowhere"],
        ["report", "nowhere", "--out=~/no/report.html"],
        ["summary", "~/nowhere"],
        ["reconstruction", "~/nowhere.json"],
    ],
)
def test_the_home_directory_is_read_as_typed(arguments, tmp_path, monkeypatch, capsys) -> None:
    """Shells leave `~` alone behind `--out=`."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert str(tmp_path / "home") in error
    assert "~" not in error


@pytest.mark.parametrize("out", ["gs://bucket/x", "$SCRATCH/x", "~/made"])
def test_plots_of_a_mistyped_study_make_nothing(out, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(SystemExit):  # argparse's own, for a path that nobody means
        assert cli.main(["plots", "nowhere", f"--out={out}"]) == 2
    assert capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["home"]
