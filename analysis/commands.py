"""The command line. Each command imports what it needs when it is asked."""

import argparse
import importlib
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sweeps import layout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from analysis.error_table import ErrorTable
    from analysis.grid import Document

DESCRIPTION = """\
Reads what a sweep left on disk, chooses by validation, and prints tables and plots.

  python -m analysis runs  experiments/mystudy      which trials there are, what is wrong with them
  python -m analysis table experiments/mystudy      error, WER or loss per variant, with intervals
  python -m analysis report experiments/mystudy      all of it as one HTML file, verdicts first
  python -m analysis plots experiments/mystudy      learning curves, hyperparameters, errors (PNG)
  python -m analysis time  experiments/mystudy      steps and seconds until the target is reached
  python -m analysis scaling experiments/*_lm*      power laws of the loss in the model's size

A study's directory is the one that holds study.json. The logs that AlgoPerf publishes
(study_<seed>/<workload>_jax/trial_<n>/eval_measurements.csv) are read, too. All but `runs` and
`scaling` take one directory further up as well, and go through its studies and workloads.
"""
EPILOG = """\
How numbers are chosen: a trial counts at the step where its validation metric is best (first on
ties); train and test are reported at that step and choose nothing. A search's point is the one
with the best median over seeds. The metric is that of the workload's target: accuracy (shown as
error = 1 - accuracy), word error rate, or loss with its perplexity. A table counts only trials
that are done; every other one is named.

Exit codes: 0 success; 1 `runs` found a problem (missing, truncated, damaged, duplicated, failed,
diverged or unfinished trials); 2 the directory holds no study, or the command was misspelt.
`table` and `plots` exit with 0 on a study with problems: they print what exists and name the rest.
"""
# Commands of modules of their own, which have add_arguments(parser) and run(options) -> exit code:
# name to (module, what it does).
MODULES: dict[str, tuple[str, str]] = {
    "report": ("analysis.report", "write everything as one HTML file"),
    "time": ("analysis.time_command", "steps and seconds until each variant reaches the target"),
    "spikes": ("analysis.spikes_command", "count the spikes of the logged training loss"),
    "scaling": ("analysis.scaling_command", "loss by model size, and the parameters saved"),
    "reconstruction": ("analysis.reconstruction", "the bf16 errors measured, beside the paper's"),
    "paper": ("analysis.paper_command", "print the paper's tables and what does not add up"),
}
FORMATS = ("text", "markdown", "latex", "csv", "html")
SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".html": "html"}


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
    names = ("runs", "table", "plots", *MODULES)
    commands = top.add_subparsers(required=True, metavar=f"{{{','.join(names)}}}")
    _add_runs(commands.add_parser("runs", help="list trials and what is wrong with them"))
    _add_table(commands.add_parser("table", help="print the table of errors, WER or loss"))
    _add_plots(commands.add_parser("plots", help="write the plots as PNG"))
    for name, (module, words) in MODULES.items():
        command = commands.add_parser(name, help=words, formatter_class=raw)
        implementation = importlib.import_module(module)
        implementation.add_arguments(command)
        command.set_defaults(command=implementation.run)
    return top


def _add_runs(command: argparse.ArgumentParser) -> None:
    command.description = "Lists every trial. Exits with 1 where anything is wrong, else 0."
    command.add_argument("directory", type=pathlib.Path, help="a study, or AlgoPerf's logs")
    command.add_argument("--json", action="store_true", help="print JSON instead of tables")
    command.set_defaults(command=_runs)


def _add_table(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Prints error, WER or loss per variant: medians and verdicts against the baseline, then "
        "the spread over seeds. Problems are listed below it (with csv: on stderr), and the exit "
        "code stays 0."
    )
    _add_study(command)
    command.add_argument(
        "--format",
        choices=FORMATS,
        help="default: by the suffix of --out (.md .tex .csv .html), else text",
    )
    command.add_argument("--out", type=pathlib.Path, metavar="FILE", help="write to FILE instead")
    command.add_argument(
        "--metric",
        help="error, accuracy, wer, loss, perplexity ... (default: the workload's target, "
        "accuracy shown as error)",
    )
    command.add_argument(
        "--effect",
        type=float,
        help="the difference these seeds are asked to see, in the unit of the metric (default: "
        "the paper's LASER - Standard)",
    )
    command.add_argument(
        "--last",
        type=int,
        default=5,
        metavar="K",
        help="how many of a trial's last evaluations their mean and spread are over (default: 5)",
    )
    command.set_defaults(command=_table)


def _add_plots(command: argparse.ArgumentParser) -> None:
    command.description = "Writes learning_curves.png, hyperparameters.png and errors.png."
    _add_study(command)
    command.add_argument(
        "--out", type=pathlib.Path, metavar="DIR", help="default: plots/ in the study's directory"
    )
    command.add_argument("--metric", help="as for `table`")
    command.set_defaults(command=_plots, last=5)


def _add_study(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "study",
        type=pathlib.Path,
        metavar="DIR",
        help="a study (it has study.json), AlgoPerf's logs, or a directory of studies",
    )
    command.add_argument("--stage", help="tune, compare ... (default: the study's last stage)")
    command.add_argument(
        "--baseline",
        metavar="NAME",
        help="the variant (of AlgoPerf's logs: the submission) that the others are compared with "
        "(default: the study's own, or standard)",
    )


def _runs(options: argparse.Namespace) -> int:
    from analysis import listing, runs

    study = runs.read_study(options.directory, whole=True)
    shown = listing.document(study)
    _print(listing.to_json(study) if options.json else _as_text(shown))
    return 1 if shown.problems else 0


def _read_tables(options: argparse.Namespace) -> "Iterator[ErrorTable]":
    from analysis import baselines, error_table, studies

    found = studies.read_each(options.study)
    baselines.check(found, options.baseline)
    for study in found:
        yield error_table.build(
            study, options.stage, options.metric, options.baseline, options.last
        )


def _table(options: argparse.Namespace) -> int:
    if options.out and not options.out.parent.is_dir():
        raise ValueError(f"{options.out}: {options.out.parent} is no directory; make it first")
    tables = list(_read_tables(options))
    suffix = options.out.suffix if options.out else ""
    form = options.format or SUFFIXES.get(suffix, "text")
    rendered = _rendered(tables, form, options.out, options.effect)
    if options.out is None:
        _print(rendered)
        return 0
    layout.write_atomically(options.out, rendered)
    print(f"wrote {options.out}", file=sys.stderr)
    return 0


def _rendered(
    tables: "list[ErrorTable]", form: str, out: pathlib.Path | None, effect: float | None
) -> str:
    from analysis import present, render, tidy

    if form == "csv":
        for problem in (problem for table in tables for problem in table.problems):
            print(problem, file=sys.stderr)
        return tidy.to_csv(*tables, effect=effect)
    if form == "html":
        from analysis import render_html

        return render_html.tables([present.document(table) for table in tables])
    printers = {"markdown": render.markdown, "latex": render.latex, "text": render.text}
    printer = _as_text if form == "text" and out is None else printers[form]
    return "\n".join(printer(present.document(table, effect)) for table in tables)


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

    tables = list(_read_tables(options))
    for table in tables:
        for line in plots.write(table, _plots_directory(table, tables, options.out)):
            print(line)
    return 0


def _plots_directory(
    table: "ErrorTable", tables: "list[ErrorTable]", out: pathlib.Path | None
) -> pathlib.Path:
    """Returns a directory that no other of the tables writes into."""
    studies = {other.study.directory for other in tables}
    shared = [other for other in tables if other.study.directory == table.study.directory]
    directory = out or table.study.directory / "plots"
    if out and len(studies) > 1:
        directory /= table.study.directory.name
    return directory / table.workload if len(shared) > 1 else directory
