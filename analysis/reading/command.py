"""`python -m analysis runs DIR`."""

import argparse
import pathlib


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `runs`."""
    parser.description = "Lists every trial. Exits with 1 where anything is wrong, else 0."
    parser.add_argument("directory", type=pathlib.Path, help="a study, or AlgoPerf's logs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(options: argparse.Namespace) -> int:
    """Prints the trials; returns 1 where anything is wrong with them, else 0. Raises ValueError
    where the directory holds no study."""
    from analysis.documents import printing
    from analysis.reading import listing, runs

    study = runs.read_study(options.directory, whole=True)
    shown = listing.document(study)
    printing.show(listing.to_json(study) if options.json else printing.on_screen(shown))
    return 1 if shown.problems else 0
