"""Reads the table of runs that Weights & Biases exports as CSV, as cells of a results file.

A line is a run: its `Name`, `State`, settings and last metrics. The variant is the run's name
without the seed. The seed is the setting `seed`, else the end of the name, as in `glu_seed3` or
`glu-s3`. `Runtime` is not read: it is not that of training alone. Charts are not read: W&B draws
samples of a curve, and means of groups.
"""

import re
from collections.abc import Iterator
from typing import Any

from analysis.load import metrics

# The column that tells an export by.
NAME = "Name"
SEED = re.compile(r"[-_ ](?:seed|s)[-_= ]?(\d+)$")
# The split and the metric in `val_loss`, `test/accuracy` and `eval/paloma/c4_en/bpb`.
METRIC = re.compile(
    r"(?:\S*[/_.])?(val|valid|validation|eval|test)[/_.]"
    rf"(?:\S*[/_.])?({'|'.join(metrics.KNOWN)}|bpb)"
)
# States of a run that gave no last number.
LOST = ("crashed", "failed", "killed")


def rows(cells: dict[str, Any], workload: str) -> Iterator[dict[str, Any]]:
    """Yields cells of a results file for each metric of a run. Raises ValueError if there is none
    of the validation or test, if the run has not ended, and if it has no seed."""
    matches = {name: match for name in cells if (match := METRIC.fullmatch(name))}
    run, state = cells[NAME], cells.get("State", "finished")
    if not run or not matches:
        raise ValueError("W&B's table of runs has Name and a metric such as val/loss or eval_loss")
    if state not in ("finished", *LOST):
        raise ValueError(f"run {run!r} is {state!r}: wait for its end, or leave the line out")
    ending = SEED.search(run)
    seed = cells.get("seed") or (ending and ending[1])
    if not seed:
        raise ValueError(
            f"run {run!r} has no seed: no column seed, no name such as glu_seed3; write a results "
            "file of workload, variant, seed, metric and value"
        )
    variant = run[: ending.start()] if ending and ending[1] == seed else run
    for name, match in matches.items():
        yield {
            "workload": workload,
            "variant": variant,
            "seed": seed,
            "metric": match[2],
            "split": "test" if match[1] == "test" else "validation",
            "value": "" if state in LOST else cells[name],
            # Cells beyond the header, which are refused.
            **{column: x for column, x in cells.items() if isinstance(x, list)},
        }
