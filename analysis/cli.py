"""Reads what a sweep left on disk, chooses by validation, and prints tables and plots.

  python -m analysis runs  experiments/mystudy      which trials there are, what is wrong with them
  python -m analysis table experiments/mystudy      error, WER or loss per variant, with intervals
  python -m analysis summary experiments            variants by workloads, and over all of them
  python -m analysis report experiments/mystudy      all of it as one HTML file, verdicts first
  python -m analysis plots experiments/mystudy      learning curves, hyperparameters, errors (PNG)
  python -m analysis time  experiments/mystudy      steps and seconds until the target is reached
  python -m analysis downstream experiments/mystudy what the models can do, task by task
  python -m analysis scaling experiments/*_lm*      power laws of the loss in the model's size

A study's directory is the one that holds study.json. The logs that AlgoPerf publishes
(study_<seed>/<workload>_jax/trial_<n>/eval_measurements.csv) are read, too. All but `runs`
take one directory further up as well, and go through its studies and workloads.
"""

import argparse
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analysis.render import printing
from attention import files
from sweeps.records import layout
from workloads import arguments as numbers
from workloads.base.errors import message

if TYPE_CHECKING:
    from analysis.compare.error_table import ErrorTable
    from analysis.load.records import StudyRuns
    from analysis.render.pages import Page

FILE = "report.html"
EPILOG = """\
How numbers are chosen: a trial counts at the step where its validation metric is best (first on
ties); train and test are reported at that step and choose nothing. A search's point is the one
with the best median over seeds. The metric is that of the workload's target: accuracy (shown as
error = 1 - accuracy), word error rate, or loss with its perplexity. A table counts only trials
that are done; every other one is named.

Exit codes: 0 success; 1 `runs` found a problem (trials or files that are missing, truncated,
damaged, unreadable, duplicated, mismatched, failed, diverged, not finite or unfinished); 2 the
directory holds no study, or the command was misspelt.
`table` and `plots` exit with 0 on a study with problems: they print what exists and name the rest.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    options = parser().parse_args(arguments)
    # Figures need no display. A notebook passes its backend on, which may not be installed here.
    os.environ["MPLBACKEND"] = "agg"
    try:
        if hasattr(options, "format"):
            printing.check(options)
        return int(options.command(options))
    except (OSError, ValueError) as error:
        print(f"python -m analysis: {' '.join(message(error).split())}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="python -m analysis", description=__doc__, epilog=EPILOG, formatter_class=raw
    )
    commands = top.add_subparsers(required=True, metavar=f"{{{','.join(COMMANDS)}}}")
    for name, (add, run, words) in COMMANDS.items():
        command = commands.add_parser(name, help=words, description=inspect.getdoc(run))
        add(command)
        if "\n\n" in (command.description or ""):
            command.formatter_class = raw
        command.set_defaults(command=run)
    return top


def _add_study(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "study",
        type=files.typed_path,
        metavar="DIR",
        help="a study (it has study.json), AlgoPerf's logs, or a directory of studies",
    )
    parser.add_argument("--stage", help="tune, compare ... (default: the study's last stage)")


def _add_comparison(parser: argparse.ArgumentParser) -> None:
    """Adds what `_tables` takes."""
    _add_study(parser)
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help="the variant (of AlgoPerf's logs: the submission) that the others are compared with "
        "(default: the study's own, or standard)",
    )
    parser.add_argument(
        "--metric",
        help="error, accuracy, wer, loss, perplexity ... (default: the workload's target, "
        "accuracy shown as error)",
    )
    parser.add_argument(
        "--last",
        type=numbers.whole(),
        default=5,
        metavar="K",
        help="how many of a trial's last evaluations their mean and spread are over (default: 5)",
    )


def _built(
    found: "Sequence[StudyRuns]", options: argparse.Namespace, metric: str | None
) -> "Iterator[ErrorTable]":
    """Yields the studies' tables. Raises ValueError for a baseline that no study has."""
    from analysis.compare import build

    build.check_baseline(found, options.baseline)
    for study in found:
        yield build.error_table(study, options.stage, metric, options.baseline, options.last)


def _tables(options: argparse.Namespace) -> "Iterator[ErrorTable]":
    """Yields the table of each study and workload in the directory. Raises ValueError where there
    is none, or for a baseline that no study has."""
    from analysis.load import studies

    found = studies.read_each(options.study)
    # The table that lists what could not be read beside the studies may be the first of many. CSV
    # has all its problems on stderr already.
    if not (hasattr(options, "format") and printing.form_of(options) == "csv"):
        for problem in found[0].beside:
            print(problem, file=sys.stderr)
    yield from _built(found, options, options.metric)


def _add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=files.typed_path, help="a study, or AlgoPerf's logs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def _runs(options: argparse.Namespace) -> int:
    """Lists every trial. Exits with 1 where anything is wrong, else 0."""
    from analysis.load import studies
    from analysis.views import catalog

    study = studies.read_study(options.directory, whole=True)
    runs = catalog.get("runs")
    shown = runs.page(study)
    printing.show(runs.to_json(study) if options.json else printing.on_screen(shown))
    return 1 if shown.problems else 0


def _add_table(parser: argparse.ArgumentParser) -> None:
    _add_comparison(parser)
    parser.add_argument(
        "--effect",
        type=numbers.positive(),
        metavar="SIZE",
        help="the difference these seeds are asked to see, in the unit of the metric (default: "
        "the paper's LASER - Standard, of the variants that it prints)",
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="only variant, n, median, difference, p and verdict on the deciding split",
    )
    printing.add_arguments(parser)


def _table(options: argparse.Namespace) -> int:
    """Prints error, WER or loss per variant: medians and verdicts against the baseline, then the
    spread over seeds. Problems are listed below it (with csv: on stderr), and the exit code
    stays 0.
    """
    from analysis.views import catalog
    from analysis.views.table import tidy_csv

    view, tables = catalog.get("table"), list(_tables(options))
    if options.short:
        pages = [view.short(table) for table in tables]
        printing.emit(pages, options, lambda: tidy_csv.to_csv(*tables, columns=tidy_csv.SHORT))
    else:
        pages = [view.page(table, options.effect) for table in tables]
        printing.emit(pages, options, lambda: tidy_csv.to_csv(*tables, effect=options.effect))
    return 0


def _add_summary(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "studies",
        type=files.typed_path,
        nargs="+",
        metavar="DIR",
        help="studies, AlgoPerf's logs, or directories of them",
    )
    parser.add_argument("--baseline", metavar="NAME", help="default: each study's own")
    parser.add_argument(
        "--plot", type=files.typed_path, metavar="FILE.png", help="draw the improvements, too"
    )
    printing.add_arguments(parser)


def _summary(options: argparse.Namespace) -> int:
    """Prints variants by workloads: how much better or worse than the baseline, in per cent with
    interval and verdict; then each variant over all workloads, and what the seeds can see.

      python -m analysis summary experiments
      python -m analysis summary experiments/digits_vit_demo experiments/pydoc_lm_demo
    """
    from analysis.compare import build, summary
    from analysis.load import studies
    from analysis.views import catalog

    if options.plot:
        files.check_output(options.plot, "--plot")
        if options.plot.suffix != ".png":
            raise ValueError(
                f"--plot={options.plot}: figures are PNG; give a name that ends in .png"
            )
    read = [study for directory in options.studies for study in studies.read_each(directory)]
    found = studies.distinguished(read)
    build.check_baseline(found, options.baseline)
    tables = [build.error_table(study, baseline=options.baseline) for study in found]
    view, shown = catalog.get("summary"), summary.of_tables(tables)
    printing.emit([view.page(shown)], options, lambda: view.to_csv(shown))
    if options.plot:
        from analysis.render import pictures, style

        style.distinguish(line.variant for line in shown.lines)
        pictures.save(view.draw(shown), options.plot)
        print(f"wrote {options.plot}", file=sys.stderr)
    return 0


def _add_plots(parser: argparse.ArgumentParser) -> None:
    _add_comparison(parser)
    parser.add_argument(
        "--out",
        type=files.typed_path,
        metavar="DIR",
        help="default: plots/ in the study's directory",
    )


def _plots(options: argparse.Namespace) -> int:
    """Writes learning_curves.png, hyperparameters.png, errors.png, effects.png,
    time_to_target.png, downstream.png where trials were asked suites, and a plot of each quantity
    that was recorded inside the attention layers.
    """
    from analysis.views import catalog

    if options.out:
        files.check_output_directory(options.out, "--out")
    for line in catalog.write_plots(list(_tables(options)), options.out):
        print(line)
    return 0


def _add_report(parser: argparse.ArgumentParser) -> None:
    _add_comparison(parser)
    parser.add_argument(
        "--out", type=files.typed_path, metavar="FILE", help=f"default: {FILE} in the directory"
    )


def _report(options: argparse.Namespace) -> int:
    """Writes one self-contained HTML file: verdicts, tables with intervals, differences from the
    baseline, learning curves, hyperparameters, time to target, what was recorded inside the
    attention layers, the paper's own tables, provenance. It opens from disk without a network
    and prints.

      python -m analysis report experiments/mystudy
      python -m analysis report experiments --out=report.html      every study below a directory
    """
    out = options.out or options.study / FILE
    if options.out or options.study.is_dir():
        files.check_output(out)
    tables = list(_tables(options))
    from analysis import report

    layout.write_atomically(out, report.page(tables, options.study))
    print(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB)")
    return 0


def _add_time(parser: argparse.ArgumentParser) -> None:
    _add_study(parser)
    parser.add_argument(
        "--target",
        type=numbers.not_negative(),
        metavar="VALUE",
        help="default: what the trials state, else AlgoPerf's target of the workload",
    )
    parser.add_argument("--split", choices=layout.SPLITS, default="validation")
    parser.add_argument("--metric", help="of --target: error, wer, loss ...")
    parser.add_argument(
        "--points",
        choices=("chosen", "fastest", "all"),
        default="chosen",
        help="hyperparameter points: the one chosen by validation (default); of each seed the "
        "trial that reaches the target first, as AlgoPerf scores; or all",
    )
    parser.add_argument("--baseline", metavar="VARIANT", help="default: the study's own")
    printing.add_arguments(parser)


def _time(options: argparse.Namespace) -> int:
    """Prints when each variant first reaches the target: steps and training time per seed, their
    median, how many seeds get there, and how many times faster than the baseline that is.

      python -m analysis time experiments/mystudy
      python -m analysis time experiments/mystudy --metric=error --target=0.25 --split=test
      python -m analysis time ALGOPERF_LOGS --points=fastest --baseline=SUBMISSION
    """
    from analysis.compare import build
    from analysis.load import studies

    found = studies.read_each(options.study)
    build.check_baseline(found, options.baseline)
    printing.emit([_time_page(study, options, len(found) == 1) for study in found], options)
    return 0


def _time_page(study: "StudyRuns", options: argparse.Namespace, is_only: bool) -> "Page":
    """One of several studies that has no target is named, so that the others are printed."""
    from analysis.compare import build, target_times
    from analysis.load.targets import UnknownTargetError
    from analysis.views import catalog

    view, table = catalog.get("time"), build.error_table(study, options.stage)
    asked = (options.target, options.split, options.metric, options.points, options.baseline)
    try:
        return view.page_of(target_times.build(table, *asked))
    except UnknownTargetError as error:
        if is_only:
            raise
        return view.without_target(table, error)


def _add_spikes(parser: argparse.ArgumentParser) -> None:
    _add_study(parser)
    printing.add_arguments(parser)


def _spikes(options: argparse.Namespace) -> int:
    """Counts the spikes of the logged training loss per variant; the rule stands below."""
    from analysis.compare import build
    from analysis.load import studies
    from analysis.views import catalog

    found = studies.read_each(options.study)
    for problem in found[0].beside:
        print(problem, file=sys.stderr)
    tables = (build.error_table(study, options.stage) for study in found)
    pages = [page for table in tables if (page := catalog.get("spikes").page(table))]
    if not pages:
        raise ValueError(
            f"{options.study}: no trial at a chosen point has a column loss in measurements.csv"
        )
    printing.emit(pages, options)
    return 0


def _add_downstream(parser: argparse.ArgumentParser) -> None:
    _add_study(parser)
    parser.add_argument("--suite", metavar="NAME", help="only this suite (default: every one)")
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="acc, acc_norm, acc_per_token, acc_mutual_info, exact_match ... (default: each task's "
        "primary metric, named beforehand)",
    )
    parser.add_argument(
        "--step", type=numbers.whole(), metavar="N", help="of the checkpoint (default: the last)"
    )
    parser.add_argument(
        "--last",
        type=numbers.whole(),
        default=5,
        metavar="K",
        help="how many of the last checkpoints ± is over (default: 5)",
    )
    parser.add_argument("--baseline", metavar="VARIANT", help="default: the study's own")
    printing.add_arguments(parser)


def _downstream(options: argparse.Namespace) -> int:
    """Prints what the models can do: variants by the tasks of each suite that they were asked, the
    mean over tasks, each task against the baseline (McNemar, Holm), ± over checkpoints and over
    seeds, rows of chance and of the majority class, and the paper's numbers where the study is
    the paper's.

      python -m sweeps evaluate experiments/mystudy --suite=pydoc --checkpoints=5
      python -m analysis downstream experiments/mystudy
      python -m analysis downstream experiments/mystudy --metric=acc_norm --out=tasks.tex
    """
    from analysis.load import studies
    from analysis.views import catalog

    found = studies.read_each(options.study)
    for problem in found[0].beside:
        print(problem, file=sys.stderr)
    tables = list(_built(found, options, None))
    view, asked = catalog.get("downstream"), (options.suite, options.metric, options.step)
    pages = [page for table in tables if (page := view.page(table, *asked))]
    if not pages:
        raise ValueError(
            f"{options.study}: no trial that is done was asked a suite; `python -m sweeps evaluate "
            f"{files.quoted(options.study)} --suite=NAME` asks one"
        )
    printing.emit(pages, options, lambda: view.to_csv(tables, *asked))
    return 0


def _add_scaling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "studies", type=files.typed_path, nargs="+", metavar="DIR", help="studies, as for `table`"
    )
    parser.add_argument(
        "--loss",
        type=numbers.positive(),
        metavar="L",
        help="loss to reach (default: the baseline's fit at its largest size)",
    )
    parser.add_argument(
        "--parameters",
        type=_workload_and_count,
        action="append",
        default=[],
        metavar="WORKLOAD=N",
        help="for trials that do not record their number of parameters; may be repeated",
    )
    printing.add_arguments(parser)


def _workload_and_count(text: str) -> tuple[str, int]:
    name, _, count = text.rpartition("=")
    try:
        parameters = int(numbers.positive(least=1, most=1e15)(count))
    except argparse.ArgumentTypeError:
        parameters = 0
    if not name or not parameters:
        raise argparse.ArgumentTypeError(f"{text!r}: give WORKLOAD=N, such as c4_lm=301e6")
    return name, parameters


def _scaling(options: argparse.Namespace) -> int:
    """Prints loss by number of parameters over several studies, each one size of the model; a power
    law for each variant; and how many fewer parameters a variant needs to reach a loss. The
    studies are one family: of one data set, optimizer, precision, batch size and number of
    steps.

      python -m analysis scaling experiments/c4_lm_234m experiments/c4_lm experiments/c4_lm_435m
      python -m analysis scaling experiments --loss=2.347
    """
    from analysis.compare import scaling
    from analysis.load import studies
    from analysis.views import catalog

    read = [study for path in options.studies for study in studies.read_each(path)]
    found = scaling.of_studies(studies.distinguished(read), options.loss, dict(options.parameters))
    printing.emit([catalog.get("scaling").page(found)], options)
    return 0


def _add_reconstruction(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=files.typed_path, metavar="FILE.json")
    parser.add_argument("--layers", action="store_true", help="a table for each layer, too")
    printing.add_arguments(parser)


def _reconstruction(options: argparse.Namespace) -> int:
    """Prints relative errors of cached q, k, v per method and dtype, mean and sd over tensors,
    beside the paper's.

      python -m attention reconstruct qkv.npz --out=reconstruction.json
      python -m analysis reconstruction reconstruction.json
    """
    from analysis.views import catalog

    view = catalog.get("reconstruction")
    record = view.read(options.file)
    printing.emit([view.page(record, options.layers)], options)
    return 0


def _add_hardware(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=files.typed_path, metavar="FILE.json")
    printing.add_arguments(parser)


def _hardware(options: argparse.Namespace) -> int:
    """Prints what a host's devices did, beside what was predicted of them.

    python -m sweeps hardware --out=hardware.json
    python -m analysis hardware hardware.json
    """
    from analysis.views import catalog

    view = catalog.get("hardware")
    printing.emit([view.page(view.read(options.file))], options)
    return 0


def _add_paper(parser: argparse.ArgumentParser) -> None:
    from analysis.views import catalog

    view = catalog.get("paper")
    parser.description = (
        "Prints the paper's tables, digits as printed, with what does not add up in each. Tables "
        f"that no study of ours gives are marked {view.PAPER_ONLY!r}.\n\n"
        f"Keys: {', '.join(view.PRINTED)}"
    )
    parser.add_argument("keys", nargs="*", metavar="KEY", help="default: every table")
    printing.add_arguments(parser)


def _paper(options: argparse.Namespace) -> int:
    from analysis.views import catalog

    printing.emit(catalog.get("paper").pages(options.keys), options)
    return 0


# A command's name to what adds its arguments, what runs it and returns the exit code, raising
# ValueError or OSError for what a user can put right (its docstring is the command's help), and
# what it does in words.
COMMANDS = {
    "runs": (_add_runs, _runs, "list trials and what is wrong with them"),
    "table": (_add_table, _table, "print the table of errors, WER or loss"),
    "summary": (_add_summary, _summary, "variants by workloads, and over all of them"),
    "plots": (_add_plots, _plots, "write the plots as PNG"),
    "report": (_add_report, _report, "write everything as one HTML file"),
    "time": (_add_time, _time, "steps and seconds until each variant reaches the target"),
    "spikes": (_add_spikes, _spikes, "count the spikes of the logged training loss"),
    "downstream": (_add_downstream, _downstream, "scores on the tasks of suites, per variant"),
    "scaling": (_add_scaling, _scaling, "loss by model size, and the parameters saved"),
    "reconstruction": (
        _add_reconstruction,
        _reconstruction,
        "the bf16 errors measured, beside the paper's",
    ),
    "hardware": (_add_hardware, _hardware, "what devices did, beside what was predicted"),
    "paper": (_add_paper, _paper, "print the paper's tables and what does not add up"),
}
