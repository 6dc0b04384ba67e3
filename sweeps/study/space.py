"""Search spaces: AlgoPerf's `tuning_search_space.json`, both forms, checked at the door.

A dict maps each hyperparameter to {"min", "max", "scaling": "linear" | "log"} or to
{"feasible_points": [...]}; points come from a Halton sequence with one dimension per key, in the
file's order. A list gives its points as they are.
"""

import math
import os
import pathlib
from collections.abc import Iterable
from typing import Any

from attention.common import files
from sweeps.launchers.config_keys import shown
from sweeps.study import halton, hyperparameters

Point = dict[str, float]
SHIPPED = pathlib.Path(__file__).parents[1] / "spaces"
_RANGE, _POINTS = {"min", "max", "scaling"}, {"feasible_points"}
_NUMBERS = (
    f"finite numbers that a float32 holds: 0, or {hyperparameters.LEAST:.9g} to "
    f"{hyperparameters.MOST:.9g}"
)
_DIMENSION = (
    "{'min', 'max', 'scaling': 'linear' or 'log'} with min ≤ max, and min > 0 where it is 'log', "
    f"or {{'feasible_points': [...]}} with at least one; all {_NUMBERS}"
)


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
    if not isinstance(search_space, dict | list) or not search_space:
        raise ValueError(
            "a search space is a dict of ranges or a list of points, at least one; "
            f"it is {shown(search_space)}"
        )
    if isinstance(search_space, dict):
        for name, dimension in search_space.items():
            if not _is_dimension(dimension):
                raise ValueError(f"{name} is {shown(dimension)}; it must be {_DIMENSION}")
        return
    for number, point in enumerate(search_space):
        if not isinstance(point, dict) or not point or not _are_numbers(point.values()):
            raise ValueError(
                f"point {number} of the search space is {shown(point)}; it must be a dict of "
                f"{_NUMBERS}"
            )
        if set(point) != set(search_space[0]):
            raise ValueError(
                f"point {number} of the search space has {sorted(point)}, point 0 has "
                f"{sorted(search_space[0])}; all points need the same hyperparameters"
            )


def _is_dimension(dimension: Any) -> bool:
    if not isinstance(dimension, dict):
        return False
    if set(dimension) == _POINTS:
        choices = dimension["feasible_points"]
        return isinstance(choices, list) and bool(choices) and _are_numbers(choices)
    if set(dimension) != _RANGE or not _are_numbers((dimension["min"], dimension["max"])):
        return False
    has_scaling = dimension["scaling"] == "linear" or (
        dimension["scaling"] == "log" and dimension["min"] > 0
    )
    return has_scaling and dimension["min"] <= dimension["max"]


def _are_numbers(values: Iterable[Any]) -> bool:
    """Returns whether all are numbers that a float32 holds; a JSON file's NaN and Infinity are
    none, nor is true."""
    return all(
        type(value) in (int, float)
        and (value == 0 or hyperparameters.LEAST <= abs(value) <= hyperparameters.MOST)
        for value in values
    )


def load(name: str) -> dict[str, Any] | list[Point]:
    """Returns the space in a JSON file: a path, or the name of a shipped one ('paper_nadamw').

    Raises ValueError if there is no such file, or it holds no search space.
    """
    path = pathlib.Path(name)
    if path.suffix != ".json":
        path = SHIPPED / f"{name}.json"
    if not os.path.isfile(path):  # False, where Path.is_file raises for a loop or a long name
        shipped = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.json")))
        raise ValueError(f"no search space {shown(name)}: give a .json file or one of {shipped}")
    try:
        search_space = files.loads(path.read_bytes())
        check(search_space)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error
    return search_space
