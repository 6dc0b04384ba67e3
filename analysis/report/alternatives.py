"""What a study's figures show, in words: for readers who cannot see them, and for search."""

from analysis.documents import grid, variants
from analysis.plots import effects, hyperparameters
from analysis.reading.selection import VALIDATION
from analysis.results.error_table import ErrorTable, VariantResult
from analysis.times import layout as target_layout
from analysis.times import target_times


def of_curves(table: ErrorTable) -> str:
    """Returns what the learning curves end at."""
    ends = _numbers(table, VALIDATION)
    what = f"validation {table.metric.label} by training step"
    return f"Learning curves: {what}, median and range over seeds. At the chosen step: {ends}."


def of_effects(table: ErrorTable) -> str:
    """Returns every variant's difference from the baseline with its interval."""
    digits = table.metric.digits
    parts = []
    for row in table.rows:
        comparison = row.splits[table.decisive].comparison
        if comparison is None:
            continue
        numbers = (comparison.difference, comparison.low, comparison.high)
        middle, low, high = (grid.number(value, digits, signed=True).text for value in numbers)
        printed = effects.paper_difference(table, row)
        paper = "" if printed is None else f", paper {grid.number(printed, digits, True).text}"
        parts.append(f"{row.label} {middle} from {low} to {high}{paper}, {comparison.verdict}")
    base = variants.label(table.baseline)
    what = f"{table.decisive} {table.metric.label}"
    return f"Differences in {what} from {base}, mean and 95% interval: {'; '.join(parts)}."


def of_intervals(table: ErrorTable) -> str:
    """Returns every variant's median on the deciding split."""
    what = f"{table.decisive} {table.metric.label}"
    return f"Each seed's {what}, with mean and 95% interval; medians: " + (
        f"{_numbers(table, table.decisive)}."
    )


def of_hyperparameters(table: ErrorTable) -> str:
    """Returns which hyperparameters vary among how many points."""
    runs = hyperparameters.tuning_runs(table)
    names = ", ".join(hyperparameters.varying(runs))
    points = len({run.point for run in runs})
    return (
        f"Validation {table.metric.label} of {points} hyperparameter points against each of: "
        f"{names}. The point that validation chose is ringed."
    )


def of_target_times(table: ErrorTable) -> str:
    """Returns every variant's median steps and training time to the target, and how many of its
    seeds reach it. Raises as `target_times.build`: where nothing states a target."""
    times = target_times.build(table)
    rows = "; ".join(target_layout.in_words(times, row) for row in times.rows)
    return f"First {times.target.words} on {times.workload}, median over seeds: {rows}."


def _numbers(table: ErrorTable, split: str) -> str:
    return "; ".join(
        f"{row.label} {grid.number(_median(row, split), table.metric.digits).text}"
        for row in table.rows
        if row.splits[split].summary
    )


def _median(row: VariantResult, split: str) -> float | None:
    summary = row.splits[split].summary
    return summary.median if summary else None
