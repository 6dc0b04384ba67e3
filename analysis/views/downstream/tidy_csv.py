"""Scores on the tasks of suites as CSV: a line per variant or reference row and task, as fractions
at full precision."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from analysis.compare.downstream import MEAN, SuiteTable
from analysis.compare.error_table import ErrorTable
from analysis.compare.suite_scores import Score
from analysis.render import printing
from attention import table as variants

COLUMNS = (
    *("study", "workload", "stage", "suite", "step", "kind", "variant", "label", "task"),
    *("metric", "n", "seeds", "score", "low", "high", "difference", "difference_low"),
    *("difference_high", "seeds_compared", "seeds_baseline", "right_alone", "baseline_alone"),
    *("p", "p_holm"),
    *("seeds_low", "seeds_high", "seeds_p", "seeds_p_holm"),
    *("checkpoints", "checkpoint_seeds", "checkpoint_mean", "sd_checkpoints", "sd_seeds"),
    *("undecodable", "metrics", "paper"),
)
# Of a suite's table, its study's, a variant and a task (None: the mean over tasks).
Printed = Callable[[SuiteTable, ErrorTable, str, str | None], float | None]


def to_csv(found: Iterable[tuple[ErrorTable, Sequence[SuiteTable]]], printed: Printed) -> str:
    """Returns the suites of studies as one CSV text; what is undefined is an empty cell.

    `kind` is `variant` or `reference`, `task` is MEAN for the mean over tasks. `low` to
    `difference_high` and the p-values of a difference are over questions, `seeds_low` to
    `seeds_p_holm` over seeds. `metrics` are all that results state, as name=value. `paper` is the
    fraction that `printed` gives, where the study is the paper's.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, "", lineterminator="\n")
    writer.writeheader()
    for table, suites in found:
        for suite in suites:
            for line in _lines(table, suite, printed):
                writer.writerow({name: _cell(value) for name, value in line.items()})
    return out.getvalue()


def _cell(value: Any) -> Any:
    undefined = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if undefined else printing.cell_text(value)


def _lines(table: ErrorTable, suite: SuiteTable, printed: Printed) -> Iterator[dict[str, Any]]:
    shared = {
        "study": table.study.name,
        "workload": table.workload,
        "stage": table.stage,
        "suite": suite.suite,
        "step": suite.step,
    }
    for name, of_tasks in suite.scores.items():
        scores = dict(of_tasks) | ({MEAN: suite.means[name]} if name in suite.means else {})
        for task, score in scores.items():
            yield shared | {
                "kind": "variant",
                "variant": name,
                "label": variants.label(name),
                "task": task,
                "metric": suite.metrics.get(task),
                "paper": printed(suite, table, name, None if task == MEAN else task),
                **_score(score),
            }
    for name, values in suite.references.items():
        for task, value in {**values, MEAN: suite.reference(values)}.items():
            yield shared | {"kind": "reference", "label": name, "task": task, "score": value}


def _score(score: Score) -> dict[str, Any]:
    each, seeds, spread = score.difference, score.by_seeds, score.spread
    line: dict[str, Any] = {
        "n": score.n,
        "seeds": score.seeds,
        "score": score.value,
        "low": score.low,
        "high": score.high,
        "checkpoints": spread.checkpoints,
        "checkpoint_seeds": spread.seeds,
        "checkpoint_mean": spread.mean,
        "sd_checkpoints": spread.over_checkpoints,
        "sd_seeds": spread.over_seeds,
        "undecodable": score.undecodable,
        "metrics": " ".join(f"{name}={value!r}" for name, value in score.metrics.items()),
    }
    if each is not None:
        line |= {
            "difference": each.value,
            "difference_low": each.low,
            "difference_high": each.high,
            "seeds_compared": each.seeds,
            "seeds_baseline": each.seeds_baseline,
            "right_alone": each.better,
            "baseline_alone": each.worse,
            "p": each.p,
            "p_holm": each.p_holm,
        }
    if seeds is not None:
        line |= {
            "seeds_low": seeds.low,
            "seeds_high": seeds.high,
            "seeds_p": seeds.p,
            "seeds_p_holm": seeds.p_holm,
        }
    return line
