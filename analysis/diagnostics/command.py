"""`python -m analysis spikes DIR`."""

import argparse
import sys

from analysis.documents import printing
from analysis.results import study_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `spikes`."""
    parser.description = (
        "Counts the spikes of the logged training loss per variant; the rule stands below."
    )
    study_arguments.add(parser)
    printing.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the spikes of every study in the directory and returns 0. Raises ValueError where
    no trial logged its training loss."""
    from analysis.diagnostics import spikes
    from analysis.reading import studies
    from analysis.results import error_table

    read = studies.read_each(options.study)
    for problem in read[0].beside:
        print(problem, file=sys.stderr)
    tables = [error_table.build(study, options.stage) for study in read]
    documents = [found for table in tables if (found := spikes.document(table))]
    if not documents:
        raise ValueError(
            f"{options.study}: no trial at a chosen point has a column loss in measurements.csv"
        )
    printing.emit(documents, options)
    return 0
