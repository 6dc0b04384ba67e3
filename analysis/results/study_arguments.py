"""The arguments that commands about studies share, and the tables that they mean."""

import argparse
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analysis.documents import numeric, printing

if TYPE_CHECKING:
    from analysis.files.records import Study
    from analysis.results.error_table import ErrorTable


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the directory and --stage."""
    parser.add_argument(
        "study",
        type=pathlib.Path,
        metavar="DIR",
        help="a study (it has study.json), AlgoPerf's logs, or a directory of studies",
    )
    parser.add_argument("--stage", help="tune, compare ... (default: the study's last stage)")


def add_comparison(parser: argparse.ArgumentParser) -> None:
    """Adds, to what `add` does, --baseline, --metric and --last."""
    add(parser)
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
        type=numeric.count,
        default=5,
        metavar="K",
        help="how many of a trial's last evaluations their mean and spread are over (default: 5)",
    )


def tables(options: argparse.Namespace) -> "Iterator[ErrorTable]":
    """Yields the table of each study and workload in the directory, with the options of
    `add_comparison`. Raises ValueError where there is none, or for a baseline that no study has.
    """
    from analysis.reading import studies
    from analysis.results import baselines, error_table

    found = studies.read_each(options.study)
    name_beside(found, options)
    baselines.check(found, options.baseline)
    for study in found:
        yield error_table.build(
            study, options.stage, options.metric, options.baseline, options.last
        )


def name_beside(found: "Sequence[Study]", options: argparse.Namespace) -> None:
    """Says on stderr what could not be read beside the studies: the table that lists it may be the
    first of many. CSV has all its problems there already."""
    if hasattr(options, "format") and printing.form_of(options) == "csv":
        return
    for problem in found[0].beside:
        print(problem, file=sys.stderr)
