"""Loss by model size over several studies: power laws, and the parameters that a variant saves."""

import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.compare import build, families
from analysis.compare.error_table import ErrorTable, VariantResult
from analysis.compare.families import MixedStudiesError
from analysis.load.files import json_records
from analysis.load.files.json_records import META_FILE
from analysis.load.records import StudyRuns
from analysis.statistics import power_law
from analysis.statistics.power_law import PowerLaw, Saving
from attention import table as variants
from sweeps.records import layout

PARAMETERS = "parameters"


class MissingParametersError(ValueError):
    """A study's files do not say how many parameters its model has."""


@dataclass(frozen=True)
class Size:
    """A variant at one size: `values` maps a seed to its loss, in the workload's unit. `study` is
    the study's name, `place` what tells it from others of that name, `shares_seeds` as there."""

    study: str
    place: pathlib.Path
    shares_seeds: bool
    workload: str
    variant: str
    parameters: int
    values: dict[int, float]
    paper: str | None

    @property
    def mean(self) -> float:
        """Returns the geometric mean over seeds: the logs are what is fitted."""
        return math.exp(float(np.mean(np.log([*self.values.values()]))))


@dataclass(frozen=True)
class Scaling:
    """Sizes in ascending order, a fit for each variant with two sizes or more, and what each saves
    against the baseline at `loss`, or, in `without`, why that cannot be said of it. `source` says
    where `loss` is from."""

    names: tuple[str, ...]
    baseline: str
    split: str
    loss: float | None
    source: str
    sizes: tuple[Size, ...]
    fits: dict[str, PowerLaw]
    savings: dict[str, Saving]
    without: dict[str, str]
    problems: tuple[str, ...]


def of_studies(
    studies: Sequence[StudyRuns], loss: float | None = None, given: Mapping[str, int] | None = None
) -> Scaling:
    """Returns the scaling of `studies`, each one size of model, in loss on their deciding split.

    As `of_tables`; MissingMetricError, too, where a study has no loss.
    """
    return of_tables([build.error_table(study, None, "loss") for study in studies], loss, given)


def of_tables(
    tables: Sequence[ErrorTable], loss: float | None = None, given: Mapping[str, int] | None = None
) -> Scaling:
    """Returns the scaling of tables of losses, one per size.

    `loss`, above 0, is the loss to reach: the baseline's fit at the largest size unless given.
    `given` maps a workload to its number of parameters where its trials do not record one. Raises
    MissingParametersError where neither says it, MixedStudiesError where tables are not of one
    family or hold one size twice. A study that was given twice is read once.
    """
    tables, problems = families.once(tables)
    families.check(tables)
    found = [size for table in tables for size in _sizes(table, given or {})]
    sizes = tuple(sorted(found, key=lambda each: (each.parameters, variants.order(each.variant))))
    _check_sizes(sizes)
    baseline, fits = tables[0].baseline, _fits(sizes)
    goal, source = _goal(fits.get(baseline), loss)
    without = _without(fits, baseline)
    return Scaling(
        names=tuple(dict.fromkeys(table.study.name for table in tables)),
        baseline=baseline,
        split=tables[0].decisive,
        loss=goal,
        source=source,
        sizes=sizes,
        fits=fits,
        savings=_savings(fits, baseline, goal, sizes, without),
        without=without,
        problems=(
            *problems,
            *families.unstated(tables),
            *(f"{table.study.name}: {problem}" for table in tables for problem in table.problems),
        ),
    )


def _sizes(table: ErrorTable, given: Mapping[str, int]) -> Iterable[Size]:
    for row in table.rows:
        result = table.of(row)
        if not result.values:
            continue
        yield Size(
            study=table.study.name,
            place=table.study.directory.resolve(),
            shares_seeds=table.study.shares_seeds,
            workload=table.workload,
            variant=row.variant,
            parameters=given.get(table.workload) or _parameters(table, row),
            values=dict(result.values),
            paper=result.paper.text if result.paper else None,
        )


def _parameters(table: ErrorTable, row: VariantResult) -> int:
    """Returns the number that the first of the row's trials to record it says."""
    for run in table.runs(row):
        record = layout.read_json_if_there(run.path / META_FILE)
        count = record.get(PARAMETERS) if isinstance(record, dict) else None
        if json_records.is_number(count) and count >= 1:
            return int(count)
    raise MissingParametersError(
        f"{table.study.name}: no trial of {row.variant} records {PARAMETERS!r} in {META_FILE} "
        f"(trials of an older version do not); give --parameters={table.workload}=N"
    )


def _check_sizes(sizes: Sequence[Size]) -> None:
    """Raises MixedStudiesError where two studies have one size of a variant: their seeds are not
    of one sample, and a law of both would count a size twice."""
    first: dict[tuple[str, int], Size] = {}
    for size in sizes:
        other = first.setdefault((size.variant, size.parameters), size)
        if other is not size:
            raise MixedStudiesError(
                f"{other.study} ({other.place}) and {size.study} ({size.place}) have the same "
                f"size, {size.parameters:,} parameters of {size.variant}: name one of them"
            )


def _fits(sizes: Sequence[Size]) -> dict[str, PowerLaw]:
    fits = {}
    for name in sorted({size.variant for size in sizes}, key=variants.order):
        own = [size for size in sizes if size.variant == name]
        if len({size.parameters for size in own}) < 2:
            continue
        fits[name] = power_law.fit(
            [size.parameters for size in own],
            [size.mean for size in own],
            [len(size.values) for size in own],
        )
    return fits


def _goal(fit: PowerLaw | None, loss: float | None) -> tuple[float | None, str]:
    if loss is not None:
        return loss, "given"
    if fit is None:
        return None, "none: the baseline has fewer than two sizes"
    return fit.loss(fit.largest), "the baseline's fit at its largest size"


def _without(fits: Mapping[str, PowerLaw], baseline: str) -> dict[str, str]:
    """Returns why nothing can be said of what a variant saves: its own law or the baseline's."""
    if baseline not in fits:
        return {}
    of_baseline = power_law.obstacle(fits[baseline])
    others = {name: fit for name, fit in fits.items() if name != baseline}
    if of_baseline:
        return dict.fromkeys(others, f"of {variants.label(baseline)}, {of_baseline}")
    found = {name: power_law.obstacle(fit) for name, fit in others.items()}
    return {name: why for name, why in found.items() if why}


def _savings(
    fits: Mapping[str, PowerLaw],
    baseline: str,
    loss: float | None,
    sizes: Sequence[Size],
    without: Mapping[str, str],
) -> dict[str, Saving]:
    if loss is None or baseline not in fits:
        return {}
    return {
        name: power_law.between(fits[baseline], fit, loss, _are_paired(sizes, baseline, name))
        for name, fit in fits.items()
        if name not in (baseline, *without)
    }


def _are_paired(sizes: Sequence[Size], first: str, second: str) -> bool:
    """Returns whether both variants ran in the same studies with the same seeds, shared ones."""
    of_each = [
        [(size.place, size.values.keys()) for size in sizes if size.variant == name]
        for name in (first, second)
    ]
    return of_each[0] == of_each[1] and all(size.shares_seeds for size in sizes)
