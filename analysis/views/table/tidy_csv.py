"""The error table as CSV: one line per variant or reference row and split, at full precision."""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analysis.compare import failed_runs, sensitivity
from analysis.compare.error_table import ErrorTable, VariantResult
from analysis.render import printing
from analysis.views.table import last_checkpoints
from sweeps.records import layout

# Columns that are an attribute of a row's summary, comparison, sensitivity and last checkpoints.
SUMMARY = {
    "median": "median",
    "mean": "mean",
    "sd": "sd",
    "interval_low": "low",
    "interval_high": "high",
    "interval_method": "method",
    "bca_low": "bca_low",
    "bca_high": "bca_high",
    "bca_method": "bca_method",
}
COMPARISON = {
    "pairs": "pairs",
    "n_baseline": "n_baseline",
    "difference": "difference",
    "difference_low": "low",
    "difference_high": "high",
    "difference_sd": "sd",
    "effect_size": "effect",
    "effect_kind": "effect_kind",
    "test": "test",
    "smallest_p": "smallest_p",
    "p": "p",
    "p_holm": "p_holm",
    "verdict": "verdict",
}
SENSITIVITY = {"detectable": "detectable", "expected_effect": "effect", "seeds_needed": "seeds"}
FAILURES = {"failed": "count", "failed_of": "n", "failed_low": "low", "failed_high": "high"}
FAILURES_AGAINST = {"failed_p": "p", "failed_p_holm": "p_holm", "failed_verdict": "verdict"}
CHECKPOINTS = {
    "last_n": "n",
    "last_mean": "mean",
    "last_sd_checkpoints": "over_checkpoints",
    "last_sd_seeds": "over_seeds",
}
COLUMNS = (
    *("study", "workload", "stage", "kind", "variant", "label", "group", "point", "split"),
    *("metric", "n", *SUMMARY, *COMPARISON, *SENSITIVITY, *CHECKPOINTS),
    *(*FAILURES, *FAILURES_AGAINST),
    *("planned", "lost", "unfinished", "last_step", "withheld", "paper", "seeds", "values"),
)
# Of `table --short`, a line per variant on the deciding split.
SHORT = (
    *("study", "workload", "variant", "split", "metric", "n"),
    *("median", "mean", "difference", "pairs", "n_baseline", "p_holm", "verdict"),
)


def to_csv(
    *tables: ErrorTable, effect: float | None = None, columns: Sequence[str] = COLUMNS
) -> str:
    """Returns the tables as one CSV text; what is undefined is an empty cell, texts are as
    `printing.cell_text` has them. `effect` is as for `power.page`.

    `kind` is `variant` or `reference`; `seeds` and `values` list every seed and its number,
    separated by spaces; `planned`, `lost`, `unfinished` and `last_step` are of the trials of the
    variant's point, on any split, and so are `failed` runs, those that failed to train, of
    `failed_of`; `withheld` is why a verdict is not given. `detectable` is inf
    where no difference can be found at these n, `seeds_needed` where it is more than
    `statistics.power.MOST_SEEDS`. Of other `columns` than all, the lines of variants on the
    deciding split.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, "", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for table in tables:
        for line in _lines(table, effect):
            if columns == COLUMNS or (line["kind"], line["split"]) == ("variant", table.decisive):
                writer.writerow({name: _cell(value) for name, value in line.items()})
    return out.getvalue()


def _cell(value: Any) -> Any:
    undefined = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if undefined else printing.cell_text(value)


def _lines(table: ErrorTable, effect: float | None) -> Iterator[dict[str, Any]]:
    shared = {
        "study": table.study.name,
        "workload": table.workload,
        "stage": table.stage,
        "metric": table.metric.name,
    }
    told = {
        split: sensitivity.of_table(table, split, sensitivity.expected(table, split, effect))
        for split in layout.SPLITS
    }
    failures = failed_runs.of_table(table).by_variant
    for row in table.rows:
        failed = failures.get(row.variant)
        for split in layout.SPLITS:
            result = row.splits[split]
            yield (
                shared
                | _variant_line(table, row, split)
                | _attributes(result.summary, SUMMARY)
                | _attributes(result.comparison, COMPARISON | {"withheld": "withheld"})
                | _attributes(told[split].get(row.variant), SENSITIVITY)
                | _attributes(last_checkpoints.of_split(result, table.last), CHECKPOINTS)
                | _attributes(failed and failed.rate, FAILURES)
                | _attributes(failed and failed.against, FAILURES_AGAINST)
            )
    for reference in table.references:
        for split in layout.SPLITS:
            line = {"kind": "reference", "label": reference.name, "split": split}
            yield shared | line | {"median": reference.values[split]}


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
        "planned": row.planned,
        "lost": " ".join(f"{state}={count}" for state, count in row.lost.items()),
        "unfinished": row.unfinished,
        "last_step": row.last_step,
        "paper": result.paper.value if result.paper else None,
        "seeds": " ".join(str(seed) for seed in result.values),
        "values": " ".join(repr(value) for value in result.values.values()),
        "verdict": "baseline" if row.variant == table.baseline else None,
    }


def _attributes(found: Any, columns: Mapping[str, str]) -> dict[str, Any]:
    """Returns the columns of an object's attributes, none without the object."""
    if found is None:
        return {}
    return {column: getattr(found, attribute) for column, attribute in columns.items()}
