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
    made.add_seeds("standard", (0.3, 0.31))
    made.add_seeds("laser", (0.2, 0.21))
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


def test_a_table_of_a_study_with_problems_exits_with_0(made) -> None:
    made.trial("compare", "laser", 0, 2, None, state="failed", reason="out of memory")
    done = run("table", made.finish())
    assert done.returncode == 0
    assert done.stderr == ""
    for part in ("LASER", "compare/laser/imagenet_vit_jax/trial_3", "out of memory"):
        assert part in done.stdout


@pytest.mark.parametrize(
    ("file", "begins"),
    [("t.md", "**tiny"), ("t.tex", "% needs"), ("t.csv", "study,workload"), ("t.txt", "tiny:")],
)
def test_the_suffix_of_the_file_chooses_the_format(made, tmp_path, file, begins, capsys) -> None:
    assert cli.main(["table", str(made.finish()), "--out", str(tmp_path / file)]) == 0
    assert (tmp_path / file).read_text().startswith(begins)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("place", ["/proc/none/x", "/proc/x", "{}/file/x"])
@pytest.mark.parametrize(
    ("command", "option", "suffix"),
    [
        ("table", "--out", ".md"),
        ("summary", "--out", ".md"),
        ("summary", "--plot", ".png"),
        ("time", "--out", ".csv"),
        ("spikes", "--out", ".txt"),
        ("downstream", "--out", ".tex"),
        ("scaling", "--out", ".html"),
        ("plots", "--out", ""),
        ("report", "--out", ".html"),
    ],
)
def test_an_output_is_checked_before_anything_is_read(
    tmp_path, capsys, command, option, suffix, place
) -> None:
    """The study does not exist, and yet the output is what is refused, in one line."""
    (tmp_path / "file").write_text("")
    given = f"{option}={place.format(tmp_path)}{suffix}"
    assert cli.main([command, "nowhere", given]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert given in printed.err
    assert "Errno" not in printed.err
    assert printed.err.count("\n") == 1


def test_csv_names_problems_on_stderr(made, capsys) -> None:
    made.trial("compare", "laser", 0, 2, None, state="pending")
    assert cli.main(["table", str(made.finish()), "--format=csv"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("study,workload")
    assert "compare/laser/imagenet_vit_jax/trial_3" in printed.err


def test_runs_exits_with_1_if_anything_is_wrong(made, capsys) -> None:
    assert cli.main(["runs", str(made.finish())]) == 0
    made.trial("compare", "laser", 0, 2, None, state="pending")
    assert cli.main(["runs", str(made.finish())]) == 1
    assert "compare/laser/imagenet_vit_jax/trial_3" in capsys.readouterr().out


def test_runs_as_json(made, capsys) -> None:
    made.trial("compare", "laser", 0, 2, [made.evaluation(400, float("nan"))])
    cli.main(["runs", str(made.finish()), "--json"])
    record = json.loads(capsys.readouterr().out)
    assert [problem["kind"] for problem in record["problems"]] == ["non-finite"]
    assert [run["best_step"] for run in record["runs"]] == [400, 400, 400, 400, None]
    assert record["runs"][0]["metric"] == "error"
    assert record["runs"][0]["best_validation"] == pytest.approx(0.3)


def test_plots_go_into_the_study_unless_told(made, capsys) -> None:
    root = made.finish()
    for suffix, begins in (("png", b"\x89PNG"), ("svg", b"<svg"), ("pdf", b"%PDF")):
        assert cli.main(["plots", str(root), f"--pictures={suffix}"]) == 0
        assert (root / "plots" / f"effects.{suffix}").read_bytes().startswith(begins)
        assert "hyperparameters" in capsys.readouterr().out


def _limited(gigabytes: float, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `python -m analysis` under `ulimit -v`."""
    command = f'ulimit -v {int(gigabytes * 1e9 / 1024)} && exec "$0" -m analysis "$@"'
    return subprocess.run(
        ["bash", "-c", command, sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("gigabytes", [16, 48])
@pytest.mark.parametrize("command", ["plots", "summary"])
def test_pictures_under_a_limit_of_the_address_space_are_refused(command, gigabytes) -> None:
    """Before anything is read: the directory is none."""
    picture = ["--plot=x.png"] if command == "summary" else []
    done = _limited(gigabytes, command, "/no/study", *picture)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"{gigabytes}.0 GB" in line
    assert "`ulimit -v unlimited`" in line


@pytest.mark.parametrize("command", ["table", "summary", "time", "runs", "report"])
def test_what_draws_nothing_works_under_a_limit_of_the_address_space(study, command) -> None:
    assert _limited(16, command, str(study.finish())).returncode == 0


@pytest.mark.slow
def test_pictures_are_made_from_the_least_address_space_on(study, tmp_path) -> None:
    done = _limited(cli.PICTURES_GB, "plots", str(study.finish()), f"--out={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "effects.png").is_file()


@pytest.mark.parametrize("command", ["runs", "table", "plots"])
def test_a_directory_that_is_no_study_is_one_line_and_exit_2(command, tmp_path) -> None:
    done = run(command, tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "study.json" in done.stderr


def test_a_metric_that_is_not_there_is_one_line(made, capsys) -> None:
    assert cli.main(["table", str(made.finish()), "--metric", "wer"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "validation/wer" in error
    assert "test/accuracy" in error


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
    assert out.suffix.lower() in error
    assert not out.exists()


def test_a_suffix_of_another_format_is_refused(made, tmp_path, capsys) -> None:
    command = ["table", str(made.finish())]
    assert cli.main([*command, f"--out={tmp_path / 't.md'}", "--format=csv"]) == 2
    assert "--format=csv" in capsys.readouterr().err
    assert cli.main([*command, f"--out={tmp_path / 'T.MD'}"]) == 0
    assert (tmp_path / "T.MD").read_text().startswith("**")
    assert cli.main([*command, f"--out={tmp_path / 'plain'}", "--format=csv"]) == 0
    assert (tmp_path / "plain").read_text().startswith("study,")


@pytest.mark.parametrize("start", ["=1+1", "+1+1", "-1+1", "@SUM(1)", "\t=1", "\r=1", "＝1+1"])
def test_no_name_is_a_formula_in_csv(start, hand_made, capsys) -> None:
    made = hand_made(config={"name": start})
    for variant, error in (("standard", 0.3), ("laser", 0.2)):
        for seed in range(2):
            rows = [made.evaluation(400, error + seed**2 / 100)]
            made.trial("compare", variant, 0, seed, rows)
    made.select({"standard": 0, "laser": 0})
    root = made.finish()
    for arguments in (["table"], ["time", "--target=0.5", "--metric=error"]):
        assert cli.main([*arguments, str(root), "--format=csv"]) == 0
        cells = [c for row in csv.reader(io.StringIO(capsys.readouterr().out)) for c in row]
        assert any(cell.startswith("'" + start.replace("\r", " ")) for cell in cells)
        for cell in cells:
            assert not cell.startswith(tuple("=@\t\r＝"))
            if cell.startswith(("+", "-")):
                assert float(cell) < 0 or cell[0] == "+"


@pytest.mark.parametrize(
    ("cell", "is_number"),
    [
        *((text, True) for text in ("-0.0017", "+0.0050", "-4.5%", "-1e-05", "-inf", "+1,000")),
        *((text, True) for text in ("-0.1 0.25", -0.5, 3, "a-b")),
        *((text, False) for text in ("-", "-x", "+1+1", "-1 =2", "=", "-2%+3", "@a", "- 1")),
    ],
)
def test_what_begins_as_a_formula_and_is_no_number_is_quoted(cell, is_number) -> None:
    assert printing.cell_text(cell) == (cell if is_number else f"'{cell}")


@pytest.mark.parametrize("first", [0, 1, 10])
def test_a_table_has_the_n_of_the_test(hand_made, capsys, first) -> None:
    """Of 12 seeds each 12, 11 or 2 are in both; 2 are no pairs, so that all 12 are compared."""
    made = hand_made()
    for variant, begin in {"standard": 0, "laser": first}.items():
        for seed in range(12):
            row = made.evaluation(400, 0.5 + 0.01 * (seed * 7 % 5) - 0.1 * (variant == "laser"))
            made.trial("compare", variant, 0, begin + seed, [row])
    made.select({"standard": 0, "laser": 0})
    assert cli.main(["table", str(made.finish()), "--format=markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (laser,) = (line for line in lines if line.startswith("| LASER |"))
    assert ("| 11 |" in laser) == (first == 1)


def test_a_table_is_short(made, capsys) -> None:
    root = str(made.finish())
    assert cli.main(["table", root]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 16
    for word in ("Variant", "Standard", "LASER", "-0.1000", "cannot tell"):
        assert word in text
    assert cli.main(["table", root, "--details"]) == 0
    assert len(capsys.readouterr().out) > 2 * len(text)


@pytest.mark.parametrize(
    "arguments",
    [
        ["table", "~/nowhere"],
        ["report", "nowhere", "--out=~/no/report.html"],
        ["summary", "~/nowhere"],
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
