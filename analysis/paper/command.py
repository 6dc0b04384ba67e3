"""`python -m analysis paper [KEY ...]`."""

import argparse

from analysis.documents import printing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `paper`."""
    from analysis.paper import tables

    parser.description = (
        "Prints the paper's tables, digits as printed, with what does not add up in each. Tables "
        f"that no study of ours gives are marked {tables.PAPER_ONLY!r}.\n\n"
        f"Keys: {', '.join(tables.PRINTED)}"
    )
    parser.add_argument("keys", nargs="*", metavar="KEY", help="default: every table")
    printing.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the tables and returns 0. Raises ValueError for a key that there is not."""
    from analysis.paper import tables

    printing.emit(tables.documents(options.keys), options)
    return 0
