"""The error table as CSV: one line per variant or reference row and split, at full precision."""

import csv
import io
import math
from collections.abc import Iterator
from typing import Any

from analysis.error_table import ErrorTable, VariantResult
from analysis.references import Reference
from analysis.statistics import Comparison, Summary
from sweeps import layout

COLUMNS = (
    "study",
    "workload",
    "stage",
    "kind",
    "variant",
    "label",
    "group",
    "point",
    "split",
    "metric",
    "n",
    "median",
    "mean",
    "sd",
    "interval_low",
    "interval_high",
    "interval_method",
    "pairs",
    "difference",
    "difference_low",
    "difference_high",
    "test",
    "p",
    "p_holm",
    "verdict",
    "paper",
    "seeds",
    "values",
)


def to_csv(*tables: ErrorTable) -> str:
    """Returns the tables as one CSV text; what is undefined is an empty cell.

    `kind` is `variant` or `reference`; `seeds` and `values` list every seed and its number,
    separated by spaces.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for line in (line for table in tables for line in _lines(table)):
        writer.writerow({name: _blank_if_undefined(value) for name, value in line.items()})
    return out.getvalue()


def _blank_if_undefined(value: Any) -> Any:
    undefined = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if undefined else value


def _lines(table: ErrorTable) -> Iterator[dict[str, Any]]:
    shared = {
        "study": table.study.name,
        "workload": table.workload,
        "stage": table.stage,
        "metric": table.metric.name,
    }
    for row in table.rows:
        for split in layout.SPLITS:
            yield shared | _variant_line(table, row, split)
    for reference in table.references:
        for split in layout.SPLITS:
            yield shared | _reference_line(reference, split)


def _variant_line(table: ErrorTable, row: VariantResult, split: str) -> dict[str, Any]:
    result = row.splits[split]
    return {
        "kind": "variant",
        "variant": row.variant,
        "label": row.label,
        "group": row.group,
        "point": row.point,
        "split": split,
        "n": len(result.values),
        "paper": result.paper.value if result.paper else None,
        "seeds": " ".join(str(seed) for seed in result.values),
        "values": " ".join(repr(value) for value in result.values.values()),
        "verdict": "baseline" if row.variant == table.baseline else None,
        **_summary(result.summary),
        **_comparison(result.comparison),
    }


def _summary(summary: Summary | None) -> dict[str, Any]:
    if summary is None:
        return {}
    return {
        "median": summary.median,
        "mean": summary.mean,
        "sd": summary.sd,
        "interval_low": summary.low,
        "interval_high": summary.high,
        "interval_method": summary.method,
    }


def _comparison(comparison: Comparison | None) -> dict[str, Any]:
    if comparison is None:
        return {}
    return {
        "pairs": comparison.pairs,
        "difference": comparison.difference,
        "difference_low": comparison.low,
        "difference_high": comparison.high,
        "test": comparison.test,
        "p": comparison.p,
        "p_holm": comparison.p_holm,
        "verdict": comparison.verdict,
    }


def _reference_line(reference: Reference, split: str) -> dict[str, Any]:
    return {
        "kind": "reference",
        "label": reference.name,
        "split": split,
        "median": reference.values[split],
    }
