"""Reads the results of sweeps, chooses by validation, and prints tables, charts and a report.

  python -m analysis runs       experiments/mystudy   trials and their problems
  python -m analysis table      experiments/mystudy   error, WER or loss per variant
  python -m analysis summary    experiments           variants by workloads
  python -m analysis report     experiments/mystudy   everything as one HTML file
  python -m analysis plots      experiments/mystudy   charts as files
  python -m analysis time       experiments/mystudy   steps and seconds to the target
  python -m analysis downstream experiments/mystudy   scores on the tasks of suites
  python -m analysis scaling    experiments/*_lm*     power laws of the loss in model size

A study's directory holds study.json. A results file (.csv, .jsonl: docs/analysis.md, `Your own
results`) is read as a study, and AlgoPerf's published logs are, too
(study_<seed>/<workload>_jax/trial_<n>/eval_measurements.csv). Every command but `runs` also takes
a directory of studies.
"""

import argparse
import dataclasses
import inspect
import resource
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from analysis.options import CHOSEN, COMPARED, FILE, OPTIONS, PRINTED
from attention.common import extras, files
from attention.common.messages import message
from sweeps.records import layout

if TYPE_CHECKING:
    from analysis.compare.error_table import ErrorTable
    from analysis.render.pages import Page

Handler = Callable[[argparse.Namespace], "int | Sequence[Page]"]
# Address space for pictures, in GB. V8, inside vl_convert, reserves 64 GiB and aborts the process
# without it. 72 GB were enough.
PICTURES_GB = 80
EPILOG = """\
How numbers are chosen: a trial counts at the step where its validation metric is best (the first
on ties), a run of a results file at its last step unless `--best-step` is given. Train and test
are reported at that step and choose nothing. A search reports the point with the best median over
seeds. The metric is that of the workload's target: accuracy (shown as error = 1 - accuracy), word
error rate, or loss with its perplexity. Tables use completed trials, also those that the study no
longer plans; all others are listed. Verdicts are withheld until all planned trials have ended.

Exit codes: 0 success; 1 `runs` found a problem (a trial or file that is missing, truncated,
damaged, unreadable, duplicated, mismatched, failed, diverged, not finite or unfinished); 2 the
directory holds no study, or the command line is wrong. All commands but `runs` exit with 0 on a
study with problems: they use what exists and list the problems.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    options = parser().parse_args(arguments)
    try:
        with extras.explained("analysis"):
            if "format" in options:
                from analysis.render import printing

                printing.check(options)
            result: int | Sequence[Page] = options.run(options)
            if isinstance(result, int):
                return result
            printing.emit(result, options)
            return 0
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
    for name, (run, options, summary) in COMMANDS.items():
        command = commands.add_parser(
            name, help=summary, description=inspect.getdoc(run), formatter_class=raw
        )
        for option in options:
            command.add_argument(option, **OPTIONS[option])
        command.set_defaults(run=run)
    return top


def _runs(options: argparse.Namespace) -> int:
    """Lists every trial. Exits with 1 if anything is wrong, else 0."""
    from analysis.load import studies
    from analysis.render import printing
    from analysis.views import runs

    study = studies.read_study(options.study, whole=True)
    page = runs.page(study)
    printing.show(runs.to_json(study) if options.json else printing.to_text(page))
    return 1 if page.problems else 0


def _table(options: argparse.Namespace) -> "Sequence[Page]":
    """Prints error, WER or loss per variant: medians and verdicts against the baseline. CSV has one
    line per variant and split. Problems are listed below the tables (with csv: on stderr).
    """
    from analysis.views import table as view

    tables = _tables(options)
    asked = options.effect, options.details, options.target, options.items
    return [view.page(table, *asked) for table in tables]


def _summary(options: argparse.Namespace) -> "Sequence[Page]":
    """Prints variants by workloads: how much better or worse than the baseline, in per cent with
    interval and verdict; then each variant over all workloads, and the smallest differences that
    the seeds can detect. Where the baseline was trained for other numbers of steps, too, also how
    much compute each variant saves (`speedup`).

      python -m analysis summary experiments
      python -m analysis summary experiments/digits_vit_demo experiments/pydoc_lm_demo
    """
    from analysis.render import charts
    from analysis.views import ledger, speedup, summary

    if options.plot:
        _check_pictures()
        files.check_output(options.plot, "--plot")
    tables = _tables(options)
    overview = summary.of_tables(tables)
    if options.plot and (chart := summary.draw(overview)):
        charts.save(chart, options.plot, overview.variants)
        print(f"wrote {options.plot}", file=sys.stderr)
    return [
        summary.page(overview),
        *ledger.other_seeds(tables),
        *speedup.pages_of(tables),
    ]


def _plots(options: argparse.Namespace) -> int:
    """Writes charts as files: effects, learning curves, hyperparameters, downstream scores where
    trials have them, and what was recorded inside the attention layers.
    """
    _check_pictures()
    from analysis import report

    if options.out:
        files.check_output_directory(options.out, "--out")
    for line in report.write_plots(_tables(options), options.out, options.pictures):
        print(line)
    return 0


def _report(options: argparse.Namespace) -> int:
    """Writes one self-contained HTML file: verdicts, tables with intervals, charts of every trial,
    also of those that run or failed, links to their files, the settings in which two trials differ,
    provenance. It needs no network and can be printed. A browser draws the charts. Prints the
    verdicts of each study and workload in a line.

      python -m analysis report experiments/mystudy
      python -m analysis report experiments --out=report.html      every study below a directory
    """
    folder = options.study.parent if options.study.is_file() else options.study
    out = options.out or folder / FILE
    if options.out or folder.is_dir():
        files.check_output(out)
    tables = _tables(options)
    from analysis import report
    from analysis.views import sentences

    layout.write_atomically(out, report.page(tables, options.study, out.parent))
    for table in tables:
        print(f"{table.study.name}: {sentences.headline(table)}")
    print(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB)")
    return 0


def _time(options: argparse.Namespace) -> "Sequence[Page]":
    """Prints when each variant first reaches the target: steps and training time per seed, their
    median, how many seeds reach it, and the speed-up over the baseline.

      python -m analysis time experiments/mystudy
      python -m analysis time experiments/mystudy --metric=error --target=0.25 --split=test
      python -m analysis time ALGOPERF_LOGS --points=fastest --baseline=SUBMISSION
    """
    from analysis.load.metrics import UnknownTargetError
    from analysis.views import time

    asked = (options.target, options.split, options.metric, options.points, options.baseline)
    # --metric is of the target, not of the tables.
    tables = _tables(options, metric=None)
    pages = []
    for table in tables:
        try:
            pages.append(time.page_of(time.build(table, *asked)))
        except UnknownTargetError as error:
            if len(tables) == 1:
                raise
            # It is named, so that the others are printed.
            pages.append(time.without_target(table, error))
    return _with_caveats(pages, tables)


def _spikes(options: argparse.Namespace) -> "Sequence[Page]":
    """Counts the spikes of the logged training loss per variant; the notes state the rule."""
    from analysis.views import spikes

    tables = _tables(options)
    pages = [page for table in tables if (page := spikes.page(table))]
    if not pages:
        raise ValueError(
            f"{options.study}: no trial at a chosen point has a column loss in measurements.csv"
        )
    return _with_caveats(pages, tables)


def _downstream(options: argparse.Namespace) -> "Sequence[Page]":
    """Prints scores per variant on the tasks of each suite, their mean, and each task against the
    baseline (McNemar, Holm). Rows of chance and of the majority class stand beside them, and the
    paper's numbers in the paper's studies. CSV also has the spread over checkpoints and seeds.

      python -m sweeps evaluate experiments/mystudy --suite=pydoc --checkpoints=5
      python -m analysis downstream experiments/mystudy
      python -m analysis downstream experiments/mystudy --metric=acc_norm --out=tasks.tex
    """
    from analysis.views import downstream

    asked = (options.suite, options.metric, options.step)
    # --metric is of the tasks, not of the tables.
    tables = _tables(options, metric=None)
    pages = [page for table in tables if (page := downstream.page(table, *asked))]
    if not pages:
        raise ValueError(
            f"{options.study}: no completed trial has scores of a suite; run `python -m sweeps "
            f"evaluate {files.quoted(options.study)} --suite=NAME`"
        )
    return _with_caveats(pages, tables)


def _scaling(options: argparse.Namespace) -> "Sequence[Page]":
    """Prints loss by number of parameters over several studies, each one size of the model; a power
    law for each variant; and how many fewer parameters a variant needs to reach a loss. The
    studies are one family: one data set, optimizer, precision, batch size and number of steps.

    Where each size also has studies of the baseline at other numbers of steps, as `speedup` takes
    them, prints how the compute that a variant saves changes with size. --times is then a directory
    with one of `workloads bench` for each workload, by its name.

      python -m analysis scaling experiments/c4_lm_234m experiments/c4_lm experiments/c4_lm_435m
      python -m analysis scaling experiments --loss=2.347
      python -m analysis scaling experiments/pysource_lm_*
    """
    from analysis.compare import model_sizes
    from analysis.views import scaling

    tables = _tables(options, metric="loss")
    has_budgets = scaling.has_budgets(tables)
    if options.loss if has_budgets else options.times:
        raise ValueError("--loss is for one study a size, --times for three budgets a size or more")
    if has_budgets:
        page = scaling.trend_page(scaling.trend_of(tables, options.times))
        return _with_caveats([page], tables)
    return _with_caveats([scaling.page(model_sizes.of_tables(tables, options.loss))], tables)


def _speedup(options: argparse.Namespace) -> "Sequence[Page]":
    """Prints how much compute each variant saves: what the baseline needs for the variant's result,
    over what the variant took, with intervals. The studies are of one workload; each trains the
    baseline for another number of steps, best at 1/2, 1, 2 and 4 times the variants'.

      python -m sweeps run --config=pydoc_lm_evidence --config.name=pydoc_lm_1500 \\
          --config.variants=standard --config.steps=1500 --config.eval_every=500
      python -m analysis speedup experiments/pydoc_lm_evidence experiments/pydoc_lm_1500 \\
          experiments/pydoc_lm_6000 experiments/pydoc_lm_12000
    """
    from analysis.views import speedup

    tables = _tables(options)
    return _with_caveats([speedup.page(speedup.of_tables(tables, options.times))], tables)


def _ledger(options: argparse.Namespace) -> "Sequence[Page]":
    """Prints one line per study and variant: the study's hypothesis, the difference with its
    interval, verdict, what could have been detected, compute saved, commit and date. `--site` also
    writes one HTML file with each study's table, its command and a link to its results file.

      python -m analysis ledger experiments --out=ledger.md
      python -m analysis ledger docs/ledger --site=docs/ledger/index.html
    """
    if options.site:
        files.check_output(options.site, "--site")
    tables = _tables(options)
    from analysis.views import ledger

    if options.site:
        layout.write_atomically(options.site, ledger.site(tables, options.site.parent))
        print(f"wrote {options.site}", file=sys.stderr)
    return [ledger.page(tables), *ledger.other_seeds(tables)]


def _results(options: argparse.Namespace) -> int:
    """Writes a study as results.csv beside study.json: the trials of its last stage that have
    ended, at the steps that count, with costs and commits. The other commands read it as the study.
    Several studies are parts of one, with other seeds (first_seed, seeds) and all else equal; they
    are written as one study with the folder's name.

      python -m analysis results experiments/mystudy --out=docs/ledger/mystudy \\
          --command="python -m sweeps run --config=mystudy.py"
      python -m analysis results machine_a/mystudy machine_b/mystudy --out=docs/ledger/mystudy
    """
    from analysis.compare import error_table, experiment
    from analysis.views import results_file

    if options.out is None:
        raise ValueError("give --out=FOLDER, for results.csv and study.json")
    files.check_output_directory(options.out, "--out")
    table, *others = _tables(options)
    if others:
        study = experiment.joined([table, *others], options.out.resolve().name)
        table = error_table.build(study, table.stage, baseline=table.baseline)
    print(f"wrote {results_file.write(table, options.out, options.command)}")
    return 0


def _check(options: argparse.Namespace) -> int:
    """Prints what a ledger shows of results, recomputed: verdicts, seeds, plan, commits, command
    and source, and what is missing. Exits with 1 if anything must be mended, else with 0.

      python -m analysis check results.csv
      python -m analysis check docs/ledger/pydoc_lm_quick
    """
    from analysis.render import printing
    from analysis.views import check
    from analysis.views import table as view

    tables = _tables(options)
    checked = [check.page(table) for table in tables]
    recomputed = [dataclasses.replace(view.page(table), problems=()) for table in tables]
    printing.emit([*recomputed, *checked], options)
    return int(any(page.problems for page in checked))


def _scores(options: argparse.Namespace) -> "Sequence[Page]":
    """Prints AlgoPerf's scores of submissions from its logs: hours to the targets, the performance
    profile, and what three studies can tell apart.

      python -m analysis scores ALGOPERF_LOGS             a folder of submissions
      python -m analysis scores ALGOPERF_LOGS --workloads=8
    """
    from analysis.views import scores

    return [scores.page(_tables(options), options.workloads)]


def _with_caveats(pages: "list[Page]", tables: "list[ErrorTable]") -> "Sequence[Page]":
    """Returns the pages with the caveats of their tables below the last one."""
    from analysis.views import sentences

    notes = (*pages[-1].notes, *sentences.caveats_of(tables, of_verdicts=False))
    return [*pages[:-1], dataclasses.replace(pages[-1], notes=notes)]


def _tables(options: argparse.Namespace, **changes: Any) -> "list[ErrorTable]":
    """Returns the table of each study and workload in the directories; `changes` are of `options`.
    Raises ValueError if they hold none, or for a baseline that no study has."""
    from analysis.compare import error_table
    from analysis.load import selection, studies

    directories = options.studies if "studies" in options else [options.study]
    defaults: dict[str, Any] = {
        **dict.fromkeys(("stage", "metric", "baseline")),
        **{"last": 5, "preliminary": False, "margin": ""},
    }
    asked = defaults | {"best_step": False} | vars(options) | changes
    read = [study for directory in directories for study in studies.read_each(directory)]
    if asked["best_step"]:
        read = [*map(selection.by_best_step, read)]
    # Tables may be many: the problems of the directories themselves come first.
    for problem in (problem for study in read for problem in study.left_out):
        print(problem, file=sys.stderr)
    error_table.check_baseline(read, asked["baseline"])
    values = [asked[name] for name in defaults]
    return [error_table.build(study, *values) for study in studies.distinguished(read)]


def _check_pictures() -> None:
    """Raises ValueError if this process may not reserve the address space for pictures, and
    ModuleNotFoundError without the library that makes them."""
    import vl_convert  # noqa: F401

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= limit < PICTURES_GB * 1e9:  # -1 is unlimited
        raise ValueError(
            f"pictures need {PICTURES_GB} GB of address space, and `ulimit -v` allows "
            f"{limit / 1e9:.1f} GB: run `ulimit -v unlimited` first, or use `report`, "
            "whose charts the browser draws"
        )


# A command's name to its handler, options and line in the help. A handler returns pages to print or
# the exit code. It raises ValueError or OSError for a user's mistake. Its docstring is the help.
COMMANDS: dict[str, tuple[Handler, tuple[str, ...], str]] = {
    "runs": (_runs, ("study", "--json"), "list trials and their problems"),
    "table": (
        _table,
        (*COMPARED, *CHOSEN, "--effect", "--target", "--items", "--details", *PRINTED),
        "error, WER or loss per variant, with verdicts",
    ),
    "summary": (
        _summary,
        ("studies", "--baseline", *CHOSEN, "--plot", *PRINTED),
        "variants by workloads",
    ),
    "plots": (_plots, (*COMPARED, *CHOSEN, "--pictures", "--out"), "write charts as files"),
    "report": (_report, (*COMPARED, *CHOSEN, "--out"), "write everything as one HTML file"),
    "time": (
        _time,
        (*COMPARED[:4], "--target", "--split", "--points", *PRINTED),
        "steps and seconds until each variant reaches the target",
    ),
    "spikes": (_spikes, ("study", "--stage", *PRINTED), "spikes of the logged training loss"),
    "downstream": (
        _downstream,
        (*COMPARED, "--suite", "--step", *PRINTED),
        "scores on the tasks of suites, per variant",
    ),
    "scaling": (
        _scaling,
        ("studies", "--best-step", "--loss", "--times", *PRINTED),
        "loss, or compute saved, by model size",
    ),
    "speedup": (
        _speedup,
        ("studies", "--baseline", "--metric", "--best-step", "--times", *PRINTED),
        "how much compute each variant saves",
    ),
    "ledger": (
        _ledger,
        ("studies", "--baseline", *CHOSEN, "--site", *PRINTED),
        "every verdict of several studies",
    ),
    "results": (
        _results,
        ("studies", "--stage", "--baseline", "--command", "--out"),
        "write a study, or its parts, as a results file",
    ),
    "check": (
        _check,
        ("studies", "--baseline", *PRINTED),
        "what results lack before they can be added to a ledger",
    ),
    "scores": (
        _scores,
        ("studies", "--workloads", *PRINTED),
        "AlgoPerf's scores of submissions, and what three studies can tell",
    ),
}
