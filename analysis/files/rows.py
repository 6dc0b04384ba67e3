"""What either road through a CSV file arrives at: columns by ascending step, each step once."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

STEP, ATTEMPT = "global_step", "preemption_count"
# From here on a float64, as which cells are read, does not hold every whole number.
LARGEST = 2**53
# A column's name to its array [rows]; a file's columns may be loaded when they are asked for.
Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Table:
    """The rows that count, and what was done to get them in order.

    `columns` maps a column's name to a float64 array [rows], by ascending step; `global_step` is
    int64; an empty cell is nan. `empty` maps those columns that have an empty cell to a bool array
    [rows], True at them: AlgoPerf's own files write nan as an empty cell, ours write `nan`.
    `superseded` counts lines that gave way to later ones, `disorder` those that stand before a
    line which belongs before them. Of the lines of one attempt at one step that state a cell anew,
    `repeated` counts those that say the same, `contradicted` has the steps of those that do not.
    """

    columns: Columns
    empty: Columns
    superseded: int = 0
    disorder: int = 0
    repeated: int = 0
    contradicted: tuple[int, ...] = ()
