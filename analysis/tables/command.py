"""`python -m analysis table DIR`."""

import argparse

from analysis.documents import numeric, printing
from analysis.results import study_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `table`."""
    parser.description = (
        "Prints error, WER or loss per variant: medians and verdicts against the baseline, then "
        "the spread over seeds. Problems are listed below it (with csv: on stderr), and the exit "
        "code stays 0."
    )
    study_arguments.add_comparison(parser)
    parser.add_argument(
        "--effect",
        type=numeric.above_zero,
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


def run(options: argparse.Namespace) -> int:
    """Prints the table of each study and returns 0. Raises ValueError where the directory holds
    no study or an option means nothing there."""
    from analysis.tables import present, tidy

    tables = list(study_arguments.tables(options))
    if options.short:
        printing.emit(
            [present.short(table) for table in tables],
            options,
            csv=lambda: tidy.to_csv(*tables, columns=tidy.SHORT),
        )
        return 0
    printing.emit(
        [present.document(table, options.effect) for table in tables],
        options,
        csv=lambda: tidy.to_csv(*tables, effect=options.effect),
    )
    return 0
