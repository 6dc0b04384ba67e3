"""Reads `eval_measurements.csv` and `measurements.csv`, whole, cut short or damaged.

Every complete row of numbers is used and every other line is named: a file that a dying process
left behind loses its last line and nothing else, and no row is ever made up.
"""

import math
import pathlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow
from pyarrow import csv

from analysis.load.records import LARGEST, STEP, Columns, Problem
from sweeps.records import layout

ATTEMPT = "preemption_count"
SPLITS = tuple(f"{split}/" for split in layout.SPLITS)
# Python alone also reads 1_0 and the digits of other scripts.
NUMBER = re.compile(
    r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf(inity)?)", re.IGNORECASE | re.ASCII
)
# Takes a problem's kind and text.
Report = Callable[[str, str], None]


@dataclass(frozen=True, eq=False)
class Measurements:
    """What a file held.

    `columns` maps a column's name to a float64 array [rows], by ascending step; `global_step` is
    int64; an empty cell is nan, and `empty` maps the columns that have one to a bool array [rows]:
    AlgoPerf's own files write nan as an empty cell, ours write `nan`. `problems` names what is
    damaged; `notes` what is worth knowing.
    """

    columns: Columns
    empty: Columns = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    notes: tuple[Problem, ...] = ()


def read(path: pathlib.Path, trial: str = "") -> Measurements | None:
    """Returns the complete rows of a trial's CSV file, each step once, None if there is no such
    file."""
    try:
        return parse(path.read_bytes(), trial, path.name)
    except layout.ABSENT:
        return None
    except OSError as error:
        return Measurements({}, problems=(Problem("unreadable", trial, path.name, str(error)),))


def parse(content: bytes, trial: str = "", file: str = "") -> Measurements:
    """Returns the complete rows of a CSV file's `content`, whatever bytes it is made of."""
    # Spreadsheets write a byte order mark, PowerShell UTF-16.
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    text, newline, rest = content.decode(encoding, "replace").rpartition("\n")
    header = text.partition("\n")[0]
    names = [name.strip() for name in header.split(",")]
    problems: list[Problem] = []

    def report(kind: str, text: str) -> None:
        problems.append(Problem(kind, trial, file, text))

    if STEP not in names:
        begin = (header or rest)[:60]
        report("unreadable" if newline else "truncated", f"no column {STEP} in header {begin!r}")
        return Measurements({}, problems=tuple(problems))
    # Its last number may have lost digits.
    if rest:
        report("truncated", f"its last line is cut and left out: {rest[:40]!r}")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        report("duplicated", f"columns {', '.join(twice)} are there twice; the last counts")
    steps, values, filled = _rows(names, f"{text}\n".encode(), report)
    cells = dict(zip(names, filled.T, strict=True))
    return Measurements(
        columns=dict(zip(names, values.T, strict=True)) | {STEP: steps},
        empty={name: ~column for name, column in cells.items() if not column.all()},
        problems=tuple(problems),
    )


def _rows(
    names: list[str], content: bytes, report: Report
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the lines below the header that are rows of numbers, each step once: steps int64
    [rows], numbers float64 [rows, columns], nan for empty cells, and which cells are filled.
    Reports the first line that is no row, and how many are not."""
    skipped: dict[int, str] = {}

    def skip(row: csv.InvalidRow) -> str:
        skipped[row.number] = f"{row.actual_columns} of {row.expected_columns} columns"
        return "skip"

    try:
        table = _table(content, len(names), pyarrow.float64(), skip)
    except pyarrow.ArrowInvalid:
        table = _table(content, len(names), pyarrow.string(), skip)
    damaged: dict[int, str] = {}
    # Column after column in memory: they are filled and handed out one by one.
    values = np.full((table.num_rows, len(names)), math.nan, order="F")
    filled = np.ones(values.shape, dtype=bool, order="F")
    for index, column in enumerate(table.columns):
        if column.null_count:
            filled[:, index] = column.is_valid().to_numpy()
        if column.type == pyarrow.float64():
            values[:, index] = column.to_numpy()
            continue
        for row in np.flatnonzero(filled[:, index]).tolist():
            cell = column[row].as_py().strip()
            filled[row, index] = bool(cell)
            if NUMBER.fullmatch(cell):
                values[row, index] = float(cell)
            elif cell:
                damaged[row] = f"{names[index]} is {cell[:40]!r}, not a number"
    numbers = dict(zip(names, values.T, strict=True))
    steps = numbers[STEP]
    counts = numbers.get(ATTEMPT, np.full(len(steps), math.nan))
    is_row = _are_whole(steps) & (_are_whole(counts) | np.isnan(counts))
    for row in np.flatnonzero(~is_row).tolist():
        text = f"{STEP} {steps[row]} and {ATTEMPT} {counts[row]} are not whole numbers"
        damaged.setdefault(row, text)
    if skipped or damaged:
        lines = np.setdiff1d(np.arange(table.num_rows + len(skipped)) + 2, [*skipped])
        reasons = skipped | {int(lines[row]): text for row, text in damaged.items()}
        first = min(reasons)
        report("damaged", f"lines left out: {len(reasons)}; line {first}: {reasons[first]}")
        kept = np.delete(np.arange(table.num_rows), [*damaged])
        values, filled, steps, counts = values[kept], filled[kept], steps[kept], counts[kept]
    steps = steps.astype(np.int64)
    attempts = _attempts(steps, counts)
    if (np.diff(steps) > 0).all() and (np.diff(attempts) >= 0).all():
        return steps, values, filled
    return _merged(steps, attempts, values, filled, report)


def _table(
    content: bytes, columns: int, cell: pyarrow.DataType, skip: Callable[[csv.InvalidRow], str]
) -> pyarrow.Table:
    """Raises ArrowInvalid if a cell cannot be of the type `cell`."""
    names = [str(index) for index in range(columns)]
    return csv.read_csv(
        pyarrow.py_buffer(content),
        csv.ReadOptions(
            column_names=names,
            skip_rows=1,
            # One thread: a file is far smaller than what pays for a second.
            use_threads=False,
        ),
        csv.ParseOptions(quote_char=False, ignore_empty_lines=False, invalid_row_handler=skip),
        csv.ConvertOptions(
            column_types=dict.fromkeys(names, cell), null_values=[""], strings_can_be_null=True
        ),
    )


def _are_whole(numbers: np.ndarray) -> np.ndarray:
    """Returns which float64 are whole numbers from 0 that are the only ones of their value."""
    return np.asarray((numbers >= 0) & (numbers < LARGEST) & (numbers == np.floor(numbers)))


def _attempts(steps: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns the attempt that wrote each row, int64, from the counts of preemptions, nan if a
    row has none. One that only logs the loss carries no count: it continues the row before, or,
    where the step goes back, begins the next attempt."""
    stated = ~np.isnan(counts)
    numbers = np.where(stated, counts, 0).astype(np.int64)
    begun = np.cumsum(np.diff(steps, prepend=steps[:1]) < 0)
    last = np.maximum.accumulate(np.where(stated, np.arange(len(steps)), -1))
    return np.where(last >= 0, numbers[last] - begun[last] + begun, begun)


def _merged(
    steps: np.ndarray, attempts: np.ndarray, values: np.ndarray, filled: np.ndarray, report: Report
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the rows that count, by ascending step, each step once.

    Attempt k is cut where a later attempt resumed: its rows from there on are of a branch that was
    abandoned. Rows of one attempt at one step are one row (a logged loss and an evaluation); where
    several hold a value, the last one's counts.
    """
    lasting = np.flatnonzero(steps < resumed_at(attempts, steps))
    order = lasting[np.argsort(steps[lasting], kind="stable")]
    steps, starts, which = np.unique(steps[order], return_index=True, return_inverse=True)
    values, filled = values[order], filled[order]
    # The last row of each step that fills a column, -1 for none.
    row = np.maximum.reduceat(np.where(filled, np.arange(len(order))[:, None], -1), starts)
    last = np.where(row >= 0, np.take_along_axis(values, row, 0), math.nan)
    differs = filled & (values != last[which]) & ~(np.isnan(values) & np.isnan(last[which]))
    if (contradictions := steps[which[differs.any(axis=1)]]).size:
        first, *others = contradictions
        more = f" and {len(others)} more appear" if others else " appears"
        report("duplicated", f"step {first}{more} twice with different values; the last one counts")
    return steps, last, row >= 0


def resumed_at(attempts: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Returns for each line, by its attempt and step, int64 [lines] each, the first step of any
    later attempt: from there on it is of a branch that was abandoned. No step reaches the largest
    int64, which stands where there is no later attempt."""
    never = np.iinfo(np.int64).max
    numbers, which = np.unique(attempts, return_inverse=True)
    first = np.full(len(numbers) + 1, never)
    np.minimum.at(first, which, steps)
    later = np.minimum.accumulate(first[::-1])[::-1]
    return later[which + 1]


def only_evaluations(read: Measurements, trial: str = "") -> Measurements:
    """Returns the rows that evaluate something, with notes on those that do not: a file may hold
    rows that only log the loss. An evaluation whose metrics are all nan, empty cells in AlgoPerf's
    logs, is still one: its numbers of examples are there. Of a split without examples AlgoPerf
    reports made-up figures (finewebedu_lm: a test perplexity of 1), which are left out, too."""
    nothing = tuple(f"{split}/" for split in splits_of_nothing(read.columns))
    texts = [f"{split}*: no examples, its figures are left out" for split in nothing]
    made_up = {name for name in read.columns if is_metric(name) and name.startswith(nothing)}
    columns = {name: cells for name, cells in read.columns.items() if name not in made_up}
    empty = {name: cells for name, cells in read.empty.items() if name not in made_up}
    results = [name for name in columns if name.startswith(SPLITS)]
    if results and all(name in empty for name in results):
        rows = np.flatnonzero(~np.all([empty[name] for name in results], axis=0))
        if count := len(columns[STEP]) - len(rows):
            texts.append(f"rows without an evaluation, left out: {count}")
        columns = {name: cells[rows] for name, cells in columns.items()}
        empty = {name: cells[rows] for name, cells in empty.items()}
    notes = tuple(Problem("note", trial, "", text) for text in texts)
    return Measurements(columns, empty, read.problems, notes)


def splits_of_nothing(columns: Columns) -> list[str]:
    """Returns the splits whose every count of examples is 0."""
    counts = {split: columns.get(f"{split}/num_examples", np.zeros(0)) for split in layout.SPLITS}
    stated = {split: count[~np.isnan(count)] for split, count in counts.items()}
    return [split for split, count in stated.items() if count.size and not count.any()]


def is_metric(name: str) -> bool:
    """Returns whether a column is a metric's: `validation/loss`, `test/wer`."""
    split, _, metric = name.partition("/")
    return split in layout.SPLITS and metric not in ("", "num_examples")


def non_finite(read: Measurements, empty_is_nan: bool) -> list[str]:
    """Returns where metrics are nan or inf, columns of the same evaluations together:
    `validation/loss, test/loss at step 300, in 3 of 10 evaluations`.

    `empty_is_nan`: AlgoPerf's logs are written by pandas, which writes nan as an empty cell; in
    ours an empty cell is a metric that was not measured. A column without any value is missing.
    """
    alike: dict[tuple[int, ...], list[str]] = {}
    for name in filter(is_metric, read.columns):
        values = read.columns[name]
        empty = read.empty.get(name, np.zeros(len(values), bool))
        wrong = ~np.isfinite(values) & (empty_is_nan | ~empty)
        if wrong.any() and not empty.all():
            alike.setdefault(tuple(read.columns[STEP][wrong]), []).append(name)
    return [
        f"{', '.join(sorted(names))} at step {steps[0]}, in {len(steps)} of "
        f"{len(read.columns[STEP])} evaluations"
        for steps, names in alike.items()
    ]


def missing_evaluations(read: Measurements, every: int | None, end: int | None) -> str:
    """Returns which evaluations are missing before the last one in the file, of those planned after
    each `every` steps up to step `end`; empty for none, and if no file says `every` and `end`."""
    steps = read.columns.get(STEP, np.zeros(0, np.int64))
    if not every or not end or not steps.size:
        return ""
    planned = np.arange(every, min(int(steps[-1]), end), every)
    absent_steps = np.setdiff1d(planned, steps)
    if not absent_steps.size:
        return ""
    more = f" and {absent_steps.size - 1} more" if absent_steps.size > 1 else ""
    return f"no evaluation at step {absent_steps[0]}{more}, of {planned.size + 1} planned"


def absent(read: Measurements, metric: str) -> list[str]:
    """Returns the columns that an evaluation should have and that are not there or hold nothing:
    the metric's on each split but validation, without which nothing can be chosen and which is
    named elsewhere, and the count of preemptions."""
    nothing = ("validation", *splits_of_nothing(read.columns))
    wanted = [f"{split}/{metric}" for split in layout.SPLITS if split not in nothing]
    held = {n for n in read.columns if n not in read.empty or not read.empty[n].all()}
    return [name for name in (*wanted, ATTEMPT) if name not in held]
