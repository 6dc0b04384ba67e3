"""The command line. Each command imports what it needs when it is asked."""

import argparse
import importlib
import sys
from collections.abc import Sequence

from analysis.documents import printing

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

Exit codes: 0 success; 1 `runs` found a problem (trials or files that are missing, truncated,
damaged, unreadable, duplicated, mismatched, failed, diverged, not finite or unfinished); 2 the
directory holds no study, or the command was misspelt.
`table` and `plots` exit with 0 on a study with problems: they print what exists and name the rest.
"""
# A command is a module with add_arguments(parser) and run(options) -> exit code: name to (module,
# what it does).
MODULES: dict[str, tuple[str, str]] = {
    "runs": ("analysis.reading.command", "list trials and what is wrong with them"),
    "table": ("analysis.tables.command", "print the table of errors, WER or loss"),
    "plots": ("analysis.plots.command", "write the plots as PNG"),
    "report": ("analysis.report.command", "write everything as one HTML file"),
    "time": ("analysis.times.command", "steps and seconds until each variant reaches the target"),
    "spikes": ("analysis.diagnostics.command", "count the spikes of the logged training loss"),
    "scaling": ("analysis.scaling.command", "loss by model size, and the parameters saved"),
    "reconstruction": (
        "analysis.paper.reconstruction",
        "the bf16 errors measured, beside the paper's",
    ),
    "paper": ("analysis.paper.command", "print the paper's tables and what does not add up"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    options = parser().parse_args(arguments)
    try:
        if hasattr(options, "format"):
            printing.check(options)
        return int(options.command(options))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _refused(f"{where}{error.strerror or error}")
    except ValueError as error:
        return _refused(str(error))


def _refused(why: str) -> int:
    print(f"python -m analysis: {' '.join(why.split())}", file=sys.stderr)
    return 2


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="python -m analysis", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw
    )
    commands = top.add_subparsers(required=True, metavar=f"{{{','.join(MODULES)}}}")
    for name, (module, words) in MODULES.items():
        command = commands.add_parser(name, help=words)
        implementation = importlib.import_module(module)
        implementation.add_arguments(command)
        if "\n" in (command.description or ""):
            command.formatter_class = raw
        command.set_defaults(command=implementation.run)
    return top
