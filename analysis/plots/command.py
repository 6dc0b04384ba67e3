"""`python -m analysis plots DIR`."""

import argparse
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.results import study_arguments

if TYPE_CHECKING:
    from analysis.results.error_table import ErrorTable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `plots`."""
    parser.description = (
        "Writes learning_curves.png, hyperparameters.png, errors.png, effects.png and "
        "time_to_target.png, and a plot of each quantity that was recorded inside the attention "
        "layers."
    )
    study_arguments.add_comparison(parser)
    parser.add_argument(
        "--out", type=pathlib.Path, metavar="DIR", help="default: plots/ in the study's directory"
    )


def run(options: argparse.Namespace) -> int:
    """Writes the plots of each study and returns 0. Raises ValueError where there is none."""
    from analysis.plots import plots

    if options.out and options.out.exists() and not options.out.is_dir():
        raise ValueError(f"--out={options.out}: that is a file; name a directory for the plots")
    tables = list(study_arguments.tables(options))
    for table in tables:
        for line in plots.write(table, _directory(table, tables, options.out)):
            print(line)
    return 0


def _directory(
    table: "ErrorTable", tables: "Sequence[ErrorTable]", out: pathlib.Path | None
) -> pathlib.Path:
    """Returns a directory that no other of the tables writes into."""
    studies = {other.study.directory for other in tables}
    shared = [other for other in tables if other.study.directory == table.study.directory]
    directory = out or table.study.directory / "plots"
    if out and len(studies) > 1:
        directory /= table.study.directory.name
    return directory / table.workload if len(shared) > 1 else directory
