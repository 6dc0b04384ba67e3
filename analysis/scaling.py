"""Loss by model size over several studies: power laws, and the parameters that a variant saves."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis import error_table, power_law, variants
from analysis.error_table import ErrorTable, VariantResult
from analysis.grid import Document
from analysis.power_law import PowerLaw, Saving
from analysis.records import Run, Study
from analysis.scaling_plot import draw
from sweeps import layout

__all__ = ["MissingParametersError", "Scaling", "Size", "build", "document", "draw", "of_tables"]

META, PARAMETERS = "meta_data_0.json", "parameters"


class MissingParametersError(ValueError):
    """A study's files do not say how many parameters its model has."""


@dataclass(frozen=True)
class Size:
    """A variant at one size: `values` maps a seed to its loss, in the workload's unit."""

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
    against the baseline at `loss`. `source` says where `loss` is from."""

    names: tuple[str, ...]
    baseline: str
    split: str
    loss: float | None
    source: str
    sizes: tuple[Size, ...]
    fits: dict[str, PowerLaw]
    savings: dict[str, Saving]
    problems: tuple[str, ...]


def build(
    studies: Sequence[Study], loss: float | None = None, given: Mapping[str, int] | None = None
) -> Scaling:
    """Returns the scaling of `studies`, each one size of model, in loss on their deciding split.

    As `of_tables`; MissingMetricError, too, where a study has no loss.
    """
    return of_tables([error_table.build(study, None, "loss") for study in studies], loss, given)


def of_tables(
    tables: Sequence[ErrorTable], loss: float | None = None, given: Mapping[str, int] | None = None
) -> Scaling:
    """Returns the scaling of tables of losses, one per size.

    `loss` is the loss to reach: the baseline's fit at the largest size unless given. `given` maps a
    workload to its number of parameters where its trials do not record one. Raises
    MissingParametersError where neither says it, ValueError without a table or where tables differ
    in their split.
    """
    splits = {table.decisive for table in tables}
    if len(splits) != 1:
        raise ValueError(
            f"scaling needs studies of one deciding split; these have {', '.join(sorted(splits))}"
            if splits else "scaling needs at least one study"
        )  # fmt: skip
    found = [size for table in tables for size in _sizes(table, given or {})]
    sizes = tuple(sorted(found, key=lambda each: (each.parameters, variants.order(each.variant))))
    baseline, fits = tables[0].baseline, _fits(sizes)
    goal, source = _goal(fits.get(baseline), loss)
    return Scaling(
        names=tuple(dict.fromkeys(table.study.name for table in tables)),
        baseline=baseline,
        split=splits.pop(),
        loss=goal,
        source=source,
        sizes=sizes,
        fits=fits,
        savings=_savings(fits, baseline, goal),
        problems=tuple(f"{t.study.name}: {problem}" for t in tables for problem in t.problems),
    )


def _sizes(table: ErrorTable, given: Mapping[str, int]) -> Iterable[Size]:
    for row in table.rows:
        result = row.splits[table.decisive]
        if not result.values:
            continue
        yield Size(
            workload=table.workload,
            variant=row.variant,
            parameters=given.get(table.workload) or _parameters(table, row),
            values=dict(result.values),
            paper=result.paper.text if result.paper else None,
        )


def _parameters(table: ErrorTable, row: VariantResult) -> int:
    """Returns the number that the first of the row's trials to record it says."""
    runs = [
        run
        for run in table.study.stage(table.stage)
        if (run.variant, run.point) == (row.variant, row.point)
    ]
    counts = (_recorded(run) for run in runs)
    found = next((count for count in counts if count), None)
    if found is None:
        raise MissingParametersError(
            f"{table.study.name}: no trial of {row.variant} records {PARAMETERS!r} in {META} "
            f"(trials of an older version do not); give --parameters={table.workload}=N"
        )
    return found


def _recorded(run: Run) -> int | None:
    record = layout.read_json_if_there(run.path / META)
    count = record.get(PARAMETERS) if isinstance(record, dict) else None
    return int(count) if count else None


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


def _savings(fits: Mapping[str, PowerLaw], baseline: str, loss: float | None) -> dict[str, Saving]:
    if loss is None or baseline not in fits or not fits[baseline].b:
        return {}
    others = {name: fit for name, fit in fits.items() if name != baseline and fit.b}
    return {name: power_law.saving(fits[baseline], fit, loss) for name, fit in others.items()}


def document(
    studies: Sequence[Study], loss: float | None = None, given: Mapping[str, int] | None = None
) -> Document:
    """Returns the losses by size, the fits and the savings, with notes. As `build`."""
    from analysis import scaling_layout

    return scaling_layout.document(build(studies, loss, given))
