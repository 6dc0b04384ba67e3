"""The diagnostics of a table's trials: who recorded any, and numbers that seeds share."""

from collections.abc import Iterable, Sequence

import numpy as np

from analysis.compare.error_table import ErrorTable
from analysis.load.files import diagnostics
from analysis.load.files.diagnostics import FILE, Diagnostics
from attention import table as variants

# Variant to seed to what a trial recorded.
Found = dict[str, dict[int, Diagnostics]]


def of_table(table: ErrorTable) -> Found:
    """Returns the diagnostics of the trials that the table counts: those of its stage and point
    that are done, with at least one whole step."""
    found: Found = {}
    for row in table.rows:
        for run in table.runs(row, ("done",)):
            recorded = diagnostics.of_trial(run.path)
            if recorded is not None and recorded.steps.size:
                found.setdefault(row.variant, {})[run.seed] = recorded
    return found


def problems(table: ErrorTable) -> list[str]:
    """Returns what is wrong with the files of the table's stage, trial by trial."""
    runs = table.study.stage(table.stage)
    files = {run.name: diagnostics.of_trial(run.path) for run in runs}
    said = [
        f"{name}/{FILE}: {problem}" for name, file in files.items() if file
        for problem in file.problems
    ]  # fmt: skip
    done = [run.name for run in runs if run.state == "done" and files[run.name] is None]
    absent = [f"missing: {name}: no {FILE}" for name in done]
    return said + absent * any(file is not None for file in files.values())


def shared_steps(every: Iterable[Diagnostics]) -> list[int]:
    """Returns the steps that all have, in order."""
    return sorted(set.intersection(*(set(one.steps.tolist()) for one in every)))


def last_step(every: Iterable[Diagnostics]) -> int | None:
    """Returns the last step that all have, None where they share none."""
    return max(shared_steps(every), default=None)


def stacked(every: Sequence[Diagnostics], quantity: str, steps: Sequence[int]) -> np.ndarray:
    """Returns a quantity [seeds, steps, layers] at steps that all have, of as many layers as each
    has."""
    depth = min(len(one.layers) for one in every)
    return np.stack([one.values[quantity][np.isin(one.steps, steps), :depth] for one in every])


def families(found: Iterable[str]) -> dict[str, list[str]]:
    """Returns variants by their modifiers' label, in the order given."""
    grouped: dict[str, list[str]] = {}
    for name in found:
        grouped.setdefault(variants.modifier_label(name) or "no modifier", []).append(name)
    return grouped
