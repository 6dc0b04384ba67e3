"""The error table as CSV: one line per variant or reference row and split, at full precision."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from typing import Any

from analysis.documents import printing
from analysis.results import expected_effect, power
from analysis.results.error_table import ErrorTable, VariantResult
from analysis.results.power import Sensitivity
from analysis.results.references import Reference
from analysis.statistics.statistics import Comparison, Summary
from analysis.tables import last_checkpoints
from analysis.tables.last_checkpoints import LastCheckpoints
from sweeps.records import layout

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
    "bca_low",
    "bca_high",
    "bca_method",
    "pairs",
    "n_baseline",
    "difference",
    "difference_low",
    "difference_high",
    "difference_sd",
    "effect_size",
    "test",
    "smallest_p",
    "p",
    "p_holm",
    "verdict",
    "detectable",
    "expected_effect",
    "seeds_needed",
    "last_n",
    "last_mean",
    "last_sd_checkpoints",
    "last_sd_seeds",
    "planned",
    "lost",
    "unfinished",
    "last_step",
    "withheld",
    "paper",
    "seeds",
    "values",
)


# Of `table --short`, a line per variant on the deciding split.
SHORT = (
    *("study", "workload", "variant", "split", "metric", "n"),
    *("median", "difference", "p_holm", "verdict"),
)


def to_csv(
    *tables: ErrorTable, effect: float | None = None, columns: Sequence[str] = COLUMNS
) -> str:
    """Returns the tables as one CSV text; what is undefined is an empty cell, texts are as
    `printing.cell_text` has them. `effect` is as for `power.document`.

    `kind` is `variant` or `reference`; `seeds` and `values` list every seed and its number,
    separated by spaces; `planned`, `lost`, `unfinished` and `last_step` are of the trials of the
    variant's point, on any split; `withheld` is why a verdict is not given. `detectable` is inf
    where no difference can be found at these n, `seeds_needed` where it is more than
    `power.MOST_SEEDS`. Of other `columns` than all, the lines of variants on the deciding split.
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
    expected = {each: expected_effect.of_table(table, each, effect) for each in layout.SPLITS}
    told = {each: power.of_table(table, each, expected[each]) for each in layout.SPLITS}
    for row in table.rows:
        for split in layout.SPLITS:
            yield (
                shared
                | _variant_line(table, row, split)
                | _sensitivity(told[split].get(row.variant))
                | _checkpoints(last_checkpoints.of_split(row.splits[split], table.last))
            )
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
        "planned": row.planned,
        "lost": " ".join(f"{state}={count}" for state, count in row.lost.items()),
        "unfinished": row.unfinished,
        "last_step": row.last_step,
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
        "bca_low": summary.bca_low,
        "bca_high": summary.bca_high,
        "bca_method": summary.bca_method,
    }


def _comparison(comparison: Comparison | None) -> dict[str, Any]:
    if comparison is None:
        return {}
    return {
        "pairs": comparison.pairs,
        "n_baseline": comparison.n_baseline,
        "difference": comparison.difference,
        "difference_low": comparison.low,
        "difference_high": comparison.high,
        "difference_sd": comparison.sd,
        "effect_size": comparison.effect,
        "test": comparison.test,
        "smallest_p": comparison.smallest_p,
        "p": comparison.p,
        "p_holm": comparison.p_holm,
        "verdict": comparison.verdict,
        "withheld": comparison.withheld,
    }


def _sensitivity(told: Sensitivity | None) -> dict[str, Any]:
    if told is None:
        return {}
    return {
        "detectable": told.detectable,
        "expected_effect": told.effect,
        "seeds_needed": told.seeds,
    }


def _checkpoints(checkpoints: LastCheckpoints | None) -> dict[str, Any]:
    if checkpoints is None:
        return {}
    return {
        "last_n": checkpoints.n,
        "last_mean": checkpoints.mean,
        "last_sd_checkpoints": checkpoints.over_checkpoints,
        "last_sd_seeds": checkpoints.over_seeds,
    }


def _reference_line(reference: Reference, split: str) -> dict[str, Any]:
    return {
        "kind": "reference",
        "label": reference.name,
        "split": split,
        "median": reference.values[split],
    }
