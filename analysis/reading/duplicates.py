"""Trials that are the same trial twice: a mean over seeds must not count one of them as two."""

import collections
import filecmp
import itertools
from collections.abc import Iterable, Sequence

from analysis.files import curve_files
from analysis.files.records import Run
from sweeps.records import layout

# A clock's reading: no two runs share every digit of it.
TIMES = layout.TIME_COLUMNS[1:]


def problems(runs: Sequence[Run]) -> list[str]:
    """Returns a sentence for each trial whose variant, point and seed an earlier one has, and for
    each whose evaluations are a copy of an earlier one's, times included."""
    return [*_same_seed(runs), *copies(runs)]


def _same_seed(runs: Sequence[Run]) -> Iterable[str]:
    first: dict[tuple, Run] = {}
    for run in runs:
        key = (run.stage, run.workload, run.variant, run.point, run.seed)
        if (earlier := first.setdefault(key, run)) is not run:
            what = f"{run.variant}, point {run.point}, seed {run.seed}"
            yield f"duplicated: {run.name}: {what} is {earlier.name}, too; the first counts"


def copies(runs: Sequence[Run]) -> Iterable[str]:
    """Yields a sentence for each trial whose eval_measurements.csv has the bytes of an earlier
    one's. Files without times are not judged: short ones may be alike by chance."""
    alike: dict[tuple, list[Run]] = collections.defaultdict(list)
    for run in runs:
        if (key := _ending(run)) is not None:
            alike[key].append(run)
    for group in alike.values():
        yield from _among(group)


def _ending(run: Run) -> tuple | None:
    last = curve_files.last_row(run.evals)
    if not last or not any(last.get(name, 0.0) > 0.0 for name in TIMES):
        return None
    return tuple(sorted((name, value) for name, value in last.items() if value == value))


def _among(group: list[Run]) -> Iterable[str]:
    known: list[Run] = []
    for run in group:
        same = next((other for other in known if _is_copy(run, other)), None)
        if same is None:
            known.append(run)
        else:
            place = same.name if same.name != run.name else str(same.path)
            yield (
                f"duplicated: {run.name}/{layout.EVAL_MEASUREMENTS}: byte for byte that of "
                f"{place}, times included; it is no result of its own"
            )


def _is_copy(one: Run, other: Run) -> bool:
    file = layout.EVAL_MEASUREMENTS
    try:
        return filecmp.cmp(one.path / file, other.path / file, shallow=False)
    except OSError:
        return False


def across(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Returns a sentence for each trial that is a copy of one in an earlier group."""
    inside = {text for runs in groups for text in copies(runs)}
    return [text for text in copies([*itertools.chain(*groups)]) if text not in inside]
