"""Families of studies: those that differ in the size of their model alone, so that one law fits."""

import re
from collections.abc import Sequence

from analysis.compare.error_table import ErrorTable

# What moves the loss beside the size: keys of a study's configuration.
KEYS = ("optimizer", "compute_dtype", "param_dtype", "batch_size", "steps", "step_hint")
DATA, SPLIT = "data", "deciding split"
# c4_lm_234m and c4_lm_1b are sizes of c4_lm: the name up to here is the data and the objective.
SIZED = re.compile(r"(.+?_(?:lm|bert))(?:_.*)?")

Configuration = dict[str, str]


class MixedStudiesError(ValueError):
    """Studies of different experiments, or twice the same one, were given as sizes of one model."""


def configuration(table: ErrorTable) -> Configuration:
    """Returns what a study's loss depends on beside the size of its model and its points: the KEYS
    that its files state, the data where the workload's name tells it, and the deciding split."""
    study = table.study
    found = {key: study.config.get(key) for key in KEYS}
    for key in ("steps", "step_hint"):
        stated = {getattr(run, key) for run in study.stage(table.stage)} - {None}
        if not found[key] and stated:  # 0: the workload's own, which the trials state
            found[key] = ", ".join(f"{each:,}" for each in sorted(stated))
    sized = SIZED.fullmatch(table.workload)
    found |= {DATA: sized and sized.group(1), SPLIT: table.decisive}
    return {
        key: f"{value:,}" if isinstance(value, int) else str(value)
        for key, value in found.items()
        if value
    }


def check(tables: Sequence[ErrorTable]) -> None:
    """Raises MixedStudiesError, naming the keys, their values and the studies, where studies
    state different values of a key."""
    differing = []
    for key in (SPLIT, DATA, *KEYS):
        by_value: dict[str, list[str]] = {}
        for table in tables:
            if value := configuration(table).get(key):
                by_value.setdefault(value, []).append(table.study.name)
        if len(by_value) > 1:
            listed = "; ".join(f"{value}: {', '.join(names)}" for value, names in by_value.items())
            differing.append(f"{key} ({listed})")
    if differing:
        raise MixedStudiesError(
            "a power law needs studies that differ in the size of their model alone; these differ "
            f"in {'; '.join(differing)}: name the studies of one family"
        )


def unstated(tables: Sequence[ErrorTable]) -> list[str]:
    """Returns a sentence for every key that some studies state and others do not."""
    stated = [(table.study.name, configuration(table)) for table in tables]
    sentences = []
    for key in KEYS:
        silent = [name for name, found in stated if key not in found]
        if silent and len(silent) < len(stated):
            names = ", ".join(dict.fromkeys(silent))
            sentences.append(f"unknown: {names}: no {key} is stated; taken as that of the others")
    return sentences


def of(tables: Sequence[ErrorTable]) -> list[list[ErrorTable]]:
    """Returns the tables of losses whose workloads are sizes of a model, by what `configuration`
    says of them; only families of several workloads."""
    families: dict[tuple[tuple[str, str], ...], list[ErrorTable]] = {}
    for table in tables:
        found = configuration(table)
        if DATA in found and table.metric.name == "loss" and any(row.n for row in table.rows):
            families.setdefault(tuple(sorted(found.items())), []).append(table)
    return [each for each in families.values() if len({table.workload for table in each}) > 1]


def once(tables: Sequence[ErrorTable]) -> tuple[list[ErrorTable], list[str]]:
    """Returns the tables with each directory, stage and workload once, and a sentence for each
    that was given again, by whatever path."""
    found: dict[tuple[object, ...], ErrorTable] = {}
    problems = []
    for table in tables:
        key = (table.study.directory.resolve(), table.stage, table.workload)
        if key in found:
            problems.append(f"duplicated: {table.study.name}: given more than once, read once")
        found.setdefault(key, table)
    return [*found.values()], list(dict.fromkeys(problems))
