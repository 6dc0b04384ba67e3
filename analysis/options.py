"""The options of the command line, each once."""

import argparse
import pathlib
from typing import Any

from attention.common import arguments as numbers
from attention.common import files
from sweeps.records import layout

FILE = "report.html"
PICTURES = ("png", "svg", "pdf")


def _chart_path(text: str) -> pathlib.Path:
    path = files.typed_path(text)
    if path.suffix.removeprefix(".") not in PICTURES:
        raise argparse.ArgumentTypeError(f"{text!r}; give a name in .png, .svg or .pdf")
    return path


# An option's name to the keywords of argparse.
OPTIONS: dict[str, dict[str, Any]] = {
    "study": dict(
        type=files.typed_path,
        metavar="DIR",
        help="a study (it has study.json), a results file (.csv, .jsonl), AlgoPerf's logs, or a "
        "directory of studies",
    ),
    "studies": dict(
        type=files.typed_path,
        nargs="+",
        metavar="DIR",
        help="studies, results files, AlgoPerf's logs, or directories of them",
    ),
    "--stage": dict(help="tune, compare ... (default: the study's last stage)"),
    "--baseline": dict(
        metavar="NAME",
        help="the variant (of AlgoPerf's logs: the submission) that the others are compared with "
        "(default: the study's own, or standard)",
    ),
    "--metric": dict(
        metavar="NAME",
        help="error, accuracy, wer, loss, perplexity ... (default: the workload's target, accuracy "
        "shown as error); of tasks acc, acc_norm, exact_match ... (default: each task's own)",
    ),
    "--last": dict(
        type=numbers.whole(),
        default=5,
        metavar="K",
        help="how many of a trial's last evaluations or checkpoints their spread is over "
        "(default: 5)",
    ),
    "--best-step": dict(
        action="store_true",
        help="of results files: count each run's step with the best validation value, as studies "
        "do, not its last step",
    ),
    "--preliminary": dict(
        action="store_true",
        help="show the withheld verdicts of an unfinished study as they are so far; looking after "
        "each seed gives a false one in 19 %% of studies",
    ),
    "--margin": dict(
        default="",
        metavar="SIZE",
        help="difference that is practically none, in the metric's unit or, 0.5%%, of the "
        "baseline's mean: variants shown to be nearer are called equal (default: the study's own)",
    ),
    "--effect": dict(
        type=numbers.positive(),
        metavar="SIZE",
        help="effect size for the power analysis, in the unit of the metric (default: each "
        "variant's own difference from the baseline in the paper)",
    ),
    "--items": dict(
        action="store_true",
        help="also each difference with an interval over seeds and items (images, utterances, "
        "sequences), from the answers that trials kept",
    ),
    "--details": dict(
        action="store_true",
        help="also the spread over seeds, comparisons on every split, runs that failed to train, "
        "the power analysis and the last evaluations",
    ),
    "--target": dict(
        type=numbers.not_negative(),
        metavar="VALUE",
        help="a value of the metric; `table` tests whether the means over seeds reach it (default: "
        "no test), `time` says when (default: the trials' own target, else AlgoPerf's)",
    ),
    "--split": dict(choices=layout.SPLITS, default="validation", help="of --target"),
    "--points": dict(
        choices=("chosen", "fastest", "all"),
        default="chosen",
        help="hyperparameter points: the one chosen by validation (default); of each seed the "
        "trial that reaches the target first, as AlgoPerf scores; or all",
    ),
    "--suite": dict(metavar="NAME", help="only this suite (default: all)"),
    "--step": dict(type=numbers.whole(), metavar="N", help="of the checkpoint (default: the last)"),
    "--times": dict(
        type=files.typed_path,
        metavar="DIR",
        help="step times of `python -m workloads bench --times=DIR`; the speed-up in time then has "
        "their interval, too (default: the seconds that trials recorded)",
    ),
    "--loss": dict(
        type=numbers.positive(),
        metavar="L",
        help="loss to reach (default: the baseline's fit at its largest size)",
    ),
    "--workloads": dict(
        type=numbers.whole(),
        metavar="N",
        help="base workloads that the profile is a share of (default: those of the logs)",
    ),
    "--command": dict(metavar="TEXT", help="the command that repeats the study"),
    "--plot": dict(
        type=_chart_path,
        metavar="FILE",
        help="write a chart of the improvements, too (.png .svg .pdf)",
    ),
    "--pictures": dict(choices=PICTURES, default="png", help="format of the files (default: png)"),
    "--site": dict(
        type=files.typed_path,
        metavar="FILE",
        help="write an HTML page that sorts and filters, too",
    ),
    "--json": dict(action="store_true", help="print JSON instead of tables"),
    "--format": dict(
        choices=("text", "markdown", "latex", "csv", "html"),
        help="default: by the suffix of --out (.txt .md .tex .csv .html), else text",
    ),
    "--out": dict(
        type=files.typed_path,
        metavar="PATH",
        help=f"write to this file instead (`report`: default {FILE} in the study's directory; "
        "`plots`: a directory, default plots/ in the study's)",
    ),
}
PRINTED = ("--format", "--out")
COMPARED = ("study", "--stage", "--baseline", "--metric", "--last")
CHOSEN = ("--best-step", "--preliminary", "--margin")
