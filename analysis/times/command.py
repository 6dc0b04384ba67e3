"""`python -m analysis time DIR`."""

import argparse
from typing import TYPE_CHECKING

from analysis.documents import numeric, printing
from analysis.results import study_arguments

if TYPE_CHECKING:
    from analysis.documents.grid import Document
    from analysis.files.records import Study

DESCRIPTION = """\
Prints when each variant first reaches the target: steps and training time per seed, their median,
how many seeds get there, and how many times faster than the baseline that is.

  python -m analysis time experiments/mystudy
  python -m analysis time experiments/mystudy --metric=error --target=0.25 --split=test
  python -m analysis time ALGOPERF_LOGS --points=fastest --baseline=SUBMISSION
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `time`."""
    parser.description = DESCRIPTION
    study_arguments.add(parser)
    parser.add_argument(
        "--target",
        type=numeric.not_negative,
        metavar="VALUE",
        help="default: what the trials state, else AlgoPerf's target of the workload",
    )
    parser.add_argument("--split", choices=("train", "validation", "test"), default="validation")
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


def run(options: argparse.Namespace) -> int:
    """Prints the times of every study in the directory and returns 0. Raises ValueError where
    the directory holds no study, where no target is known for the only one, or for a baseline
    that no study has."""
    from analysis.reading import studies
    from analysis.results import baselines

    found = studies.read_each(options.study)
    baselines.check(found, options.baseline)
    printing.emit([_document(study, options, len(found) == 1) for study in found], options)
    return 0


def _document(study: "Study", options: argparse.Namespace, is_only: bool) -> "Document":
    """One of several studies that has no target is named, so that the others are printed."""
    from analysis.documents import grid
    from analysis.reading import targets
    from analysis.results import error_table
    from analysis.times import layout, target_times

    table = error_table.build(study, options.stage)
    target, baseline = options.target, options.baseline
    try:
        times = target_times.build(
            table, target, options.split, options.metric, options.points, baseline
        )
    except targets.UnknownTargetError as error:
        if is_only:
            raise
        title = f"{study.name}: time to a target on {table.workload}"
        return grid.Document(title, (), (), (str(error), *table.problems))
    return layout.document(times, table)
