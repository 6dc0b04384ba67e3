"""`python -m analysis` as a person runs it."""

import json
import pathlib
import subprocess
import sys

import pytest

from analysis import cli
from analysis.render import printing
from analysis.views import diagnostics, downstream, spikes, time

ROOT = pathlib.Path(__file__).resolve().parents[2]


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


@pytest.mark.parametrize("form", ["text", "csv"])
def test_a_table_of_a_study_with_problems_exits_with_0(study, form, capsys) -> None:
    """CSV names them on stderr."""
    study.trial("compare", "laser", 0, 3, None, state="failed", reason="out of memory")
    assert cli.main(["table", str(study.finish()), f"--format={form}"]) == 0
    printed = capsys.readouterr()
    problems = printed.err if form == "csv" else printed.out
    assert "compare/laser/imagenet_vit_jax/trial_4" in problems
    assert "out of memory" in problems
    assert bool(printed.err) == (form == "csv")


@pytest.mark.parametrize(
    ("file", "form", "begins"),
    [
        ("t.md", (), "**tiny"),
        ("T.MD", (), "**tiny"),
        ("t.tex", (), "% needs"),
        ("t.csv", (), "study,workload"),
        ("t.txt", (), "tiny:"),
        ("plain", ("--format=csv",), "study,workload"),
    ],
)
def test_the_suffix_of_the_file_chooses_the_format(
    study, tmp_path, file, form, begins, capsys
) -> None:
    assert cli.main(["table", str(study.finish()), "--out", str(tmp_path / file), *form]) == 0
    assert (tmp_path / file).read_text().startswith(begins)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("place", ["/proc/none/x", "~/file/x"])
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
        ("ledger", "--site", ".html"),
        ("results", "--out", ""),
    ],
)
def test_an_output_is_checked_before_anything_is_read(
    tmp_path, monkeypatch, capsys, command, option, suffix, place
) -> None:
    """The study does not exist, and yet the output is what is refused, in one line. Shells leave
    `~` alone behind `--out=`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "file").write_text("")
    argument = f"{option}={place}{suffix}"
    assert cli.main([command, "nowhere", argument]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert argument.replace("~", str(tmp_path)) in printed.err
    assert "Errno" not in printed.err
    assert printed.err.count("\n") == 1


def test_runs_exits_with_1_if_anything_is_wrong(study, capsys) -> None:
    assert cli.main(["runs", str(study.finish())]) == 0
    study.trial("compare", "laser", 0, 3, None, state="pending")
    assert cli.main(["runs", str(study.finish())]) == 1
    assert "compare/laser/imagenet_vit_jax/trial_4" in capsys.readouterr().out


def test_runs_as_json(study, capsys) -> None:
    study.trial("compare", "laser", 0, 3, [study.evaluation(400, float("nan"))])
    cli.main(["runs", str(study.finish()), "--json"])
    record = json.loads(capsys.readouterr().out)
    assert [problem["kind"] for problem in record["problems"]] == ["non-finite"]
    assert [run["best_step"] for run in record["runs"]] == [400] * 6 + [None]
    assert record["runs"][0]["metric"] == "error"
    assert record["runs"][0]["best_validation"] == pytest.approx(0.3)


def test_plots_go_into_the_study_unless_told(study, capsys) -> None:
    root = study.finish()
    assert cli.main(["plots", str(root), "--pictures=svg"]) == 0
    assert (root / "plots" / "effects.svg").read_text("utf-8").startswith("<svg")
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


@pytest.mark.parametrize(("command", "gigabytes"), [("plots", 48), ("summary", 16)])
def test_pictures_under_a_limit_of_the_address_space_are_refused(
    command, gigabytes, monkeypatch, capsys
) -> None:
    """Before anything is read: the directory is none."""
    monkeypatch.setattr(cli.resource, "getrlimit", lambda which: (int(gigabytes * 1e9), -1))
    picture = "--plot=x.png" if command == "summary" else "--pictures=png"
    assert cli.main([command, "/no/study", picture]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{gigabytes}.0 GB" in line


@pytest.mark.parametrize("command", ["summary", "report"])
def test_what_draws_nothing_works_under_a_limit_of_the_address_space(study, command) -> None:
    assert _limited(16, command, str(study.finish())).returncode == 0


@pytest.mark.slow
def test_pictures_are_made_from_the_least_address_space_on(study, tmp_path) -> None:
    done = _limited(cli.PICTURES_GB, "plots", str(study.finish()), f"--out={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "effects.png").is_file()


@pytest.mark.parametrize(
    ("command", "page", "draw", "named"),
    [
        ("downstream", downstream.page, downstream.draw, "sweeps evaluate"),
        ("spikes", spikes.page, None, "measurements.csv"),
        ("time", time.page, None, ""),
        (None, diagnostics.page, None, ""),
    ],
)
def test_what_no_trial_has_is_no_view(hand_made, capsys, command, page, draw, named) -> None:
    pending = hand_made(workload="digits_vit")
    pending.trial("compare", "standard", 0, 0, None, state="pending")
    table = pending.table()
    assert page(table) is None
    assert draw is None or draw(table) is None
    assert command is None or cli.main([command, str(pending.root)]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("command", ["runs", "table", "plots", "report"])
def test_a_directory_that_is_no_study_is_one_line_and_exit_2(command, tmp_path, capsys) -> None:
    assert cli.main([command, str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "study.json" in printed.err


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
        ("summary", "--plot", ("x.jpg", "png")),
    ],
)  # fmt: skip
def test_a_value_that_means_nothing_is_refused_at_the_door(command, option, wrong, capsys) -> None:
    """Before the directory, which is not there, is looked at."""
    parser = cli.parser()
    for text in wrong:
        with pytest.raises(SystemExit) as ended:
            parser.parse_args([command, "nowhere", f"{option}={text}"])
        assert ended.value.code == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert f"argument {option}: " in said
        assert "give " in said


@pytest.mark.parametrize(
    ("name", "form"),
    [("t.xlsx", ()), ("t.CSVX", ()), ("t.pdf", ("--format=csv",)), ("t.md", ("--format=csv",))],
)
def test_a_suffix_of_no_or_another_format_is_refused(name, form, tmp_path, capsys) -> None:
    out = tmp_path / name
    assert cli.main(["table", "nowhere", f"--out={out}", *form]) == 2
    assert name in capsys.readouterr().err
    assert not out.exists()


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


def test_a_table_is_short(study, capsys) -> None:
    root = str(study.finish())
    assert cli.main(["table", root]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 16
    for word in ("Variant", "Standard", "LASER", "-0.2000", "cannot tell"):
        assert word in text
    assert cli.main(["table", root, "--details"]) == 0
    assert len(capsys.readouterr().out) > 2 * len(text)


# Runs commands on a study, and prints after each the modules that are loaded.
LOADED = """
import contextlib, io, sys
from analysis import cli
for command in sys.argv[2:]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        cli.main([command, sys.argv[1]])
    print(*sys.modules)
"""


def test_no_command_imports_jax_nor_a_table_what_draws(study):
    """The import closure of the most common command is small: it starts at once."""
    others = sorted(cli.COMMANDS.keys() - {"table", "plots"})  # pictures take seconds
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(study.finish()), "table", *others],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    table, *_, everything = (set(line.split()) for line in done.stdout.splitlines())
    assert not {"jax", "jaxlib", "flax", "optax", "orbax", "vl_convert"} & everything
    assert "analysis.render.charts" in everything - table
    ours = [name for name in table if name.startswith("analysis.")]
    assert len(ours) <= 44, ours
