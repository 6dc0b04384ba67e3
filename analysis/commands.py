"""The command line: `runs`, `table`, `plots`. Each imports what it needs when it is asked."""

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sweeps import layout

if TYPE_CHECKING:
    from analysis.error_table import ErrorTable
    from analysis.grid import Document

DESCRIPTION = """\
Reads what a sweep left on disk, chooses by validation, and prints tables and plots.

  python -m analysis runs  experiments/mystudy      which trials there are, what is wrong with them
  python -m analysis table experiments/mystudy      errors per variant, with intervals and verdicts
  python -m analysis plots experiments/mystudy      learning curves, hyperparameters, errors (PNG)

A study's directory is the one that holds study.json. `runs` also reads the logs that AlgoPerf
publishes (study_<seed>/<workload>_jax/trial_<n>/eval_measurements.csv).
"""
EPILOG = """\
How numbers are chosen: a trial counts at the step where its validation metric is best (first on
ties); train and test are reported at that step and choose nothing. A search's point is the one
with the best median over seeds. A table counts only trials that are done; every other one is named.

Exit codes: 0 success; 1 `runs` found a problem (missing, truncated, damaged, duplicated, failed,
diverged or unfinished trials); 2 the directory holds no study, or the command was misspelt.
`table` and `plots` exit with 0 on a study with problems: they print what exists and name the rest.
"""
FORMATS = ("text", "markdown", "latex", "csv")
SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    options = parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except (ValueError, OSError) as error:
        print(f"python -m analysis: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="python -m analysis", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw
    )
    commands = top.add_subparsers(required=True, metavar="{runs,table,plots}")
    _add_runs(commands.add_parser("runs", help="list trials and what is wrong with them"))
    _add_table(commands.add_parser("table", help="print the error table"))
    _add_plots(commands.add_parser("plots", help="write the plots as PNG"))
    return top


def _add_runs(command: argparse.ArgumentParser) -> None:
    command.description = "Lists every trial. Exits with 1 where anything is wrong, else 0."
    command.add_argument("directory", type=pathlib.Path, help="a study, or AlgoPerf's logs")
    command.add_argument("--json", action="store_true", help="print JSON instead of tables")
    command.set_defaults(command=_runs)


def _add_table(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Prints errors per variant: medians and verdicts against the baseline, then the spread "
        "over seeds. Problems are listed below it (with csv: on stderr), and the exit code stays 0."
    )
    _add_study(command)
    command.add_argument(
        "--format",
        choices=FORMATS,
        help="default: by the suffix of --out (.md .tex .csv), else text",
    )
    command.add_argument("--out", type=pathlib.Path, metavar="FILE", help="write to FILE instead")
    command.add_argument(
        "--metric",
        help="error, accuracy, loss, wer ... (default: what the study selects by, or error)",
    )
    command.set_defaults(command=_table)


def _add_plots(command: argparse.ArgumentParser) -> None:
    command.description = "Writes learning_curves.png, hyperparameters.png and errors.png."
    _add_study(command)
    command.add_argument(
        "--out", type=pathlib.Path, metavar="DIR", help="default: plots/ in the study's directory"
    )
    command.add_argument("--metric", help="as for `table`")
    command.set_defaults(command=_plots)


def _add_study(command: argparse.ArgumentParser) -> None:
    command.add_argument("study", type=pathlib.Path, metavar="STUDY_DIR", help="has study.json")
    command.add_argument("--stage", help="tune, compare ... (default: the study's last stage)")


def _runs(options: argparse.Namespace) -> int:
    from analysis import listing, runs

    study = runs.read_study(options.directory)
    shown = listing.document(study)
    _print(listing.to_json(study) if options.json else _as_text(shown))
    return 1 if shown.problems else 0


def _read_table(options: argparse.Namespace) -> "ErrorTable":
    from analysis import error_table, runs

    study = runs.read_study(options.study)
    if study.published:
        raise ValueError(
            f"{options.study}: AlgoPerf's logs have no {layout.STUDY} that says what is compared; "
            f"use: python -m analysis runs {options.study}"
        )
    return error_table.build(study, options.stage, options.metric)


def _table(options: argparse.Namespace) -> int:
    if options.out and not options.out.parent.is_dir():
        raise ValueError(f"{options.out}: {options.out.parent} is no directory; make it first")
    table = _read_table(options)
    suffix = options.out.suffix if options.out else ""
    rendered = _rendered(table, options.format or SUFFIXES.get(suffix, "text"), options.out)
    if options.out is None:
        _print(rendered)
        return 0
    layout.write_atomically(options.out, rendered)
    print(f"wrote {options.out}", file=sys.stderr)
    return 0


def _rendered(table: "ErrorTable", form: str, out: pathlib.Path | None) -> str:
    from analysis import present, render, tidy

    if form == "csv":
        for problem in table.problems:
            print(problem, file=sys.stderr)
        return tidy.to_csv(table)
    document = present.document(table)
    if form == "text":
        return render.text(document) if out else _as_text(document)
    return render.markdown(document) if form == "markdown" else render.latex(document)


def _as_text(document: "Document") -> str:
    import shutil

    from analysis import render

    return render.text(document, sys.stdout.isatty(), shutil.get_terminal_size().columns)


def _print(text: str) -> None:
    """A reader that has seen enough (`| head`) closes the pipe; that is no error of ours."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        import os

        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _plots(options: argparse.Namespace) -> int:
    from analysis import plots

    table = _read_table(options)
    for line in plots.write(table, options.out or options.study / "plots"):
        print(line)
    return 0
