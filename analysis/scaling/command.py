"""`python -m analysis scaling DIR [DIR ...]`."""

import argparse
import pathlib

from analysis.documents import numeric, printing

DESCRIPTION = """\
Prints loss by number of parameters over several studies, each one size of the model; a power law
for each variant; and how many fewer parameters a variant needs to reach a loss. The studies are one
family: of one data set, optimizer, precision, batch size and number of steps.

  python -m analysis scaling experiments/c4_lm_234m experiments/c4_lm experiments/c4_lm_435m
  python -m analysis scaling experiments --loss=2.347
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `scaling`."""
    parser.description = DESCRIPTION
    parser.add_argument(
        "studies", type=pathlib.Path, nargs="+", metavar="DIR", help="studies, as for `table`"
    )
    parser.add_argument(
        "--loss",
        type=numeric.above_zero,
        metavar="L",
        help="loss to reach (default: the baseline's fit at its largest size)",
    )
    parser.add_argument(
        "--parameters",
        type=_pair,
        action="append",
        default=[],
        metavar="WORKLOAD=N",
        help="for trials that do not record their number of parameters; may be repeated",
    )
    printing.add_arguments(parser)


def _pair(text: str) -> tuple[str, int]:
    name, _, count = text.rpartition("=")
    try:
        parameters = int(numeric.above_zero(count))
    except argparse.ArgumentTypeError:
        parameters = 0
    if not name or parameters < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give WORKLOAD=N, such as c4_lm=301e6")
    return name, parameters


def run(options: argparse.Namespace) -> int:
    """Prints the scaling of the studies and returns 0. Raises ValueError where a directory holds
    none, a study does not say how many parameters its model has, or they are of no one family."""
    from analysis.reading import studies, study_names
    from analysis.scaling import scaling

    read = [study for path in options.studies for study in studies.read_each(path)]
    found = study_names.distinguished(read)
    printing.emit([scaling.document(found, options.loss, dict(options.parameters))], options)
    return 0
