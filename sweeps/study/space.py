"""Search spaces: AlgoPerf's `tuning_search_space.json`, both forms, checked at the door.

A dict maps each hyperparameter to {"min", "max", "scaling": "linear" | "log"} or to
{"feasible_points": [...]}; points come from a Halton sequence with one dimension per key, in the
file's order. A list gives its points as they are.
"""

import json
import math
import os
import pathlib
from typing import Any

from attention.table import unknown
from sweeps.launchers.config_keys import shown
from sweeps.study import halton

Point = dict[str, float]
SHIPPED = pathlib.Path(__file__).parents[1] / "spaces"
_RANGE, _POINTS = {"min", "max", "scaling"}, {"feasible_points"}


def points(search_space: dict[str, Any] | list[Point], n: int) -> list[Point]:
    """Returns the first n points of a search space.

    Points of a dict are AlgoPerf's Halton points in their natural order, so `points(s, 8)` is
    `points(s, 50)[:8]`. A list-form space gives its first min(n, len) points.
    """
    if isinstance(search_space, list):
        return [dict(point) for point in search_space[:n]]
    dimensions = search_space.items()
    return [
        {
            name: _value(dimension, coordinate)
            for (name, dimension), coordinate in zip(dimensions, coordinates, strict=True)
        }
        for coordinates in halton.sequence(len(dimensions), n)
    ]


def _value(dimension: dict[str, Any], coordinate: float) -> Any:
    if "feasible_points" in dimension:
        choices = dimension["feasible_points"]
        return choices[math.floor(coordinate * len(choices))]
    low, high = dimension["min"], dimension["max"]
    if dimension["scaling"] == "log":
        return low * math.exp(coordinate * math.log(high / low))
    return coordinate * (high - low) + low


def check(search_space: Any) -> None:
    """Raises ValueError, naming the hyperparameter, unless it has one of AlgoPerf's two forms."""
    if not isinstance(search_space, dict | list):
        kind = type(search_space).__name__
        raise ValueError(f"a search space is a dict of ranges or a list of points, not {kind}")
    if not search_space:
        raise ValueError("the search space is empty; give at least one hyperparameter or point")
    if isinstance(search_space, dict):
        for name, dimension in search_space.items():
            _check_dimension(name, dimension)
        return
    keys = set(search_space[0]) if isinstance(search_space[0], dict) else set()
    for number, point in enumerate(search_space):
        if not isinstance(point, dict) or not point:
            raise ValueError(f"point {number} of the search space is no dict of values: {point!r}")
        if set(point) != keys:
            raise ValueError(
                f"point {number} of the search space has {sorted(point)}, point 0 has "
                f"{sorted(keys)}; all points need the same hyperparameters"
            )
        for name, value in point.items():
            _check_number(f"{name} of point {number}", value)


def _check_dimension(name: str, dimension: Any) -> None:
    if not isinstance(dimension, dict) or set(dimension) not in (_RANGE, _POINTS):
        raise ValueError(
            f"{name}: {dimension!r} is neither {{'min', 'max', 'scaling'}} nor "
            "{'feasible_points'}"
        )
    if "feasible_points" in dimension:
        choices = dimension["feasible_points"]
        if not isinstance(choices, list) or not choices:
            raise ValueError(f"{name}: feasible_points is {choices!r}; give a list of 1 or more")
        for choice in choices:
            _check_number(f"a feasible point of {name}", choice)
        return
    low, high, scaling = dimension["min"], dimension["max"], dimension["scaling"]
    _check_number(f"min of {name}", low)
    _check_number(f"max of {name}", high)
    if scaling not in ("linear", "log"):
        raise ValueError(f"{name}: {unknown('scaling', scaling, ('linear', 'log'))}")
    if low > high:
        raise ValueError(f"{name}: min {low} is above max {high}; exchange them")
    if scaling == "log" and low <= 0:
        raise ValueError(
            f"{name}: log scaling needs min > 0, but it is {low}; raise min or use linear scaling"
        )


def _check_number(what: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not abs(value) < math.inf:
        raise ValueError(f"{what} is {value!r}; it must be a finite number")


def load(name: str) -> dict[str, Any] | list[Point]:
    """Returns the space in a JSON file: a path, or the name of a shipped one ('paper_nadamw').

    Raises ValueError where there is no such file, or it holds no search space.
    """
    path = pathlib.Path(name)
    if path.suffix != ".json":
        path = SHIPPED / f"{name}.json"
    if not os.path.isfile(path):  # False, where Path.is_file raises for a loop or a long name
        shipped = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.json")))
        raise ValueError(f"no search space {shown(name)}: give a .json file or one of {shipped}")
    try:
        search_space = json.loads(path.read_bytes())
        check(search_space)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error
    return search_space
