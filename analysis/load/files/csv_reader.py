"""Reads `eval_measurements.csv` and `measurements.csv`, whole, cut short or damaged.

Every line that is complete is used and every line that is not is named: a file that a dying
process left behind loses its last line and nothing else, and no row is ever made up.

A file goes three ways one after the other: `_text` brings its bytes to one spelling; `_cells` makes
numbers of them, by Arrow, which runs no Python code per row, or, where a line is no row of numbers,
line by line, some ten times slower, naming each such line; `_rows` puts the lines in order.
"""

import codecs
import math
import pathlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow
from pyarrow import csv

from analysis.load.files.measurements import ATTEMPT, LARGEST, STEP, Measurements, resumed_at

# What a problem of a file begins with.
KINDS = ("truncated", "damaged", "unknown format", "duplicated")

BOM = b"\xef\xbb\xbf"
BLANKS = (b" ", b"\t")
# A whole cell in quotes; one with a comma or a quote in it is no number and stays as it is.
QUOTED = re.compile(rb'(?m)(^|,)[ \t]*"([^",\r\n]*)"[ \t]*(?=,|$)')
AROUND = re.compile(rb"(?m)^[ \t]+|[ \t]+$|[ \t]*,[ \t]*")
# `\r` ends a line for Arrow wherever it stands; `nan(...)` is a number to it and not to Python.
NOT_FOR_ARROW = (b"\r", b"(")
# Bytes that Arrow takes at a time: a whole file, but for files beyond what its offsets hold.
LARGEST_BLOCK = 1 << 30


def read(path: pathlib.Path) -> Measurements:
    """Returns the complete rows of the CSV file `path`, in order, each step once.

    Raises FileNotFoundError where there is no such file.
    """
    return parse(path.read_bytes())


def read_each(paths: Sequence[pathlib.Path]) -> list[Measurements | OSError]:
    """Returns what `read` returns of each of these files, or what it raises. Files are parsed
    together where they have one header and no damaged line: most of what Arrow takes for a file of
    200 lines is the same for thousands."""
    contents: list[bytes | OSError] = []
    for path in paths:
        try:
            contents.append(path.read_bytes())
        except OSError as error:
            contents.append(error)
    texts = [None if isinstance(each, OSError) else _text(each) for each in contents]
    alike: dict[tuple[str, ...], list[int]] = {}
    for index, text in enumerate(texts):
        if text is not None and not text.problems and STEP in text.names:
            alike.setdefault(tuple(text.names), []).append(index)
    found: dict[int, Measurements] = {}
    for names, indices in alike.items():
        group = [text for index in indices if (text := texts[index]) is not None]
        found |= zip(indices, _together(list(names), group), strict=False)
    return [
        each if isinstance(each, OSError) else found.get(index) or parse(each)
        for index, each in enumerate(contents)
    ]


def _together(names: list[str], texts: "Sequence[_Text]") -> list[Measurements]:
    """Returns what files of one header hold, nothing where one of them has a line that is no row
    of numbers."""
    try:
        cells = _arrow_cells(names, b"".join(text.body for text in texts))
        ends = np.cumsum([text.body.count(b"\n") for text in texts])
        if ends[-1] != len(cells.values):
            return []
        starts = [0, *ends[:-1]]
        return [
            _rows(names, _Cells(cells.values[start:end], cells.filled[start:end]), text.notes)
            for text, start, end in zip(texts, starts, ends, strict=True)
        ]
    except _NotNumbersError:
        return []


def parse(content: bytes) -> Measurements:
    """Returns the complete rows of a CSV file's `content`, whatever bytes it is made of."""
    text = _text(content)
    if text.header is None:
        return Measurements({}, problems=text.problems)
    if STEP not in text.names:
        begins = f"no column {STEP} in its header, which begins {text.header[:60]!r}"
        return Measurements({}, problems=(f"unknown format: {begins}",))
    try:
        return _rows(text.names, _arrow_cells(text.names, text.body), text.notes, text.problems)
    except _NotNumbersError:
        pass
    names = list(dict.fromkeys(text.names))
    cells, damaged = _line_cells(text.names, text.body)
    twice = sorted({name for name in names if text.names.count(name) > 1})
    which = ", ".join(map(repr, twice))
    said = (f"duplicated in its header: {which}; the last that is filled counts",) * bool(twice)
    return _rows(names, cells, text.notes, (*damaged, *text.problems, *said))


@dataclass(frozen=True)
class _Text:
    """`names` of the header, none where there is no whole header; `body`, the complete lines below
    it; `notes` on how it was spelt; `problems`, what to say of a last line that does not end in a
    newline: it may have lost digits, so it is never used."""

    names: list[str]
    body: bytes
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    header: str | None = None


def _text(content: bytes) -> _Text:
    """Returns a file's lines in the one spelling: they end in `\n`; no byte order mark, no quotes
    and no blanks around names and cells."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        content = content.decode("utf-16", "replace").encode()
    end = content.rfind(b"\n")
    if end < 0:
        empty = "truncated: the file is empty"
        return _Text([], b"", ("truncated in its header, no rows" if content else empty,))
    lines, notes = _spelt(content[: end + 1])
    first, _, body = lines.partition(b"\n")
    header = first.decode("utf-8", errors="replace")
    problems: tuple[str, ...] = ()
    if rest := content[end + 1 :].decode("utf-8", errors="replace"):
        number = content.count(b"\n") + 1
        cut = f"truncated in its last line ({number}), which is left out: {rest[:40]!r}"
        problems = (cut,)
    return _Text(header.split(","), body, problems, notes, header)


def _spelt(text: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Returns the lines in the one spelling, and what was changed but for the lines' ends."""
    notes = []
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    if text.startswith(BOM):
        text, notes = text[len(BOM) :], ["a byte order mark before the header was left out"]
    if b'"' in text:
        text, count = QUOTED.subn(rb"\1\2", text)
        notes += ["cells in quotes were read without them"] * bool(count)
    if any(blank in text for blank in BLANKS):
        text, before = AROUND.sub(lambda found: b"," * (b"," in found[0]), text), text
        notes += ["blanks around cells were left out"] * (text != before)
    return text, tuple(notes)


class _NotNumbersError(ValueError):
    """A line of the file is no row of numbers: `_line_cells` says which."""


@dataclass(frozen=True, eq=False)
class _Cells:
    """Lines as they stand in the file: numbers [lines, columns], nan for empty cells, and where a
    cell is filled."""

    values: np.ndarray
    filled: np.ndarray


def _arrow_cells(names: list[str], body: bytes) -> _Cells:
    """Raises _NotNumbersError where any line is not one of numbers, one for each name."""
    shape = (0, len(names))
    if not body:
        return _Cells(np.empty(shape), np.empty(shape, dtype=bool))
    if len(set(names)) < len(names) or any(mark in body for mark in NOT_FOR_ARROW):
        raise _NotNumbersError("a header or a character that Arrow reads otherwise")
    try:
        table = csv.read_csv(
            pyarrow.py_buffer(body),
            # One thread: a file is far smaller than what pays for a second.
            csv.ReadOptions(
                column_names=names,
                use_threads=False,
                block_size=min(len(body) + 1, LARGEST_BLOCK),
            ),
            csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
            csv.ConvertOptions(
                column_types=dict.fromkeys(names, pyarrow.float64()),
                null_values=[""],
                check_utf8=False,
            ),
        )
    except pyarrow.ArrowInvalid as error:
        raise _NotNumbersError(str(error)) from error
    # Column after column in memory: they are filled, checked and handed out one by one.
    values = np.empty((table.num_rows, len(names)), order="F")
    filled = np.ones(values.shape, dtype=bool, order="F")
    for index, column in enumerate(table.columns):
        values[:, index] = column.to_numpy()
        if column.null_count:
            filled[:, index] = column.is_valid().to_numpy()
    cells = _Cells(values, filled)
    _check_counts(names, cells)
    return cells


def _check_counts(names: list[str], cells: _Cells) -> None:
    step = names.index(STEP)
    if not cells.filled[:, step].all():
        raise _NotNumbersError(f"a line without {STEP}")
    for index in [step, *([names.index(ATTEMPT)] if ATTEMPT in names else [])]:
        numbers = cells.values[cells.filled[:, index], index]
        if not ((numbers >= 0) & (numbers < LARGEST) & (numbers == np.floor(numbers))).all():
            raise _NotNumbersError("a count that is not a whole number from 0")


def _line_cells(names: list[str], body: bytes) -> tuple[_Cells, list[str]]:
    """Returns the lines that are rows of numbers, each name's column once, and a sentence for every
    line that is left out."""
    rows, damaged = [], []
    lines = body.decode("utf-8", errors="replace").split("\n")[:-1]
    # Numbers are never quoted, and the csv module raises at a stray carriage return.
    for number, line in enumerate(lines, start=2):
        try:
            rows.append(_numbers(names, line.rstrip("\r").split(",")))
        except ValueError as error:
            damaged.append(f"damaged in line {number}, which is left out: {error}")
    columns = list(dict.fromkeys(names))
    values = np.array([[row.get(name, math.nan) for name in columns] for row in rows], float)
    filled = np.array([[name in row for name in columns] for row in rows], bool)
    shape = (len(rows), len(columns))
    return _Cells(values.reshape(shape), filled.reshape(shape)), damaged


def _numbers(names: list[str], cells: list[str]) -> dict[str, float]:
    """Returns a line's filled cells. Raises ValueError where it is not one of this file's rows."""
    if len(cells) != len(names):
        raise ValueError(f"{len(cells)} of {len(names)} columns")
    row = {name: _number(name, cell) for name, cell in zip(names, cells, strict=True) if cell}
    if STEP not in row:
        raise ValueError(f"no {STEP}")
    for name in (STEP, ATTEMPT):
        value = row.get(name, 0.0)
        if not math.isfinite(value) or value != int(value) or not 0 <= value < LARGEST:
            raise ValueError(f"{name} is {value}, not a whole number from 0 and below 2^53")
    return row


def _number(name: str, cell: str) -> float:
    try:
        # Python alone reads 1_0 as 10: a damaged cell is no number.
        return float(cell if "_" not in cell and cell.isascii() else "damaged")
    except ValueError:
        raise ValueError(f"{name} is {cell[:40]!r}, not a number") from None


def _rows(
    names: list[str], cells: _Cells, notes: tuple[str, ...], problems: tuple[str, ...] = ()
) -> Measurements:
    """Returns the rows that count, by ascending step, each step once.

    Attempt k is cut where a later attempt resumed: its lines from there on are of a branch that
    was abandoned. Lines of one attempt at one step are one row (a logged loss and an evaluation);
    where several hold a value, the last one's counts.
    """
    values, filled = cells.values, cells.filled
    steps = values[:, names.index(STEP)].astype(np.int64)
    attempts = _attempts(names, cells, steps)
    if (steps[1:] > steps[:-1]).all() and (attempts[1:] >= attempts[:-1]).all():
        return Measurements(*_columns(names, steps, values, filled), problems, notes)
    lasting = steps < resumed_at(attempts, steps)
    order = np.flatnonzero(lasting)[np.argsort(steps[lasting], kind="stable")]
    superseded, kept = len(steps) - len(order), steps[order]
    values, filled, repeats, contradicts = _merged(kept, values[order], filled[order], names)
    back = (attempts[1:] == attempts[:-1]) & (steps[1:] < steps[:-1])
    disorder = int((back | (attempts[1:] < attempts[:-1])).sum())
    repeated = int((repeats & ~contradicts).sum())
    said = (
        (repeated, f"{_count(repeated, 'line')} repeated as before"),
        (superseded, f"{_count(superseded, 'row')} superseded by later ones"),
        (disorder, f"{_count(disorder, 'line')} out of order, put in order of attempts and steps"),
    )
    return Measurements(
        *_columns(names, np.unique(kept), values, filled),
        (*problems, *_contradictions(kept[contradicts])),
        (*notes, *(note for count, note in said if count)),
    )


def _columns(
    names: list[str], steps: np.ndarray, values: np.ndarray, filled: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    # A copy where the rows are a piece of several files', which would otherwise stay in memory.
    columns = dict(zip(names, np.ascontiguousarray(values.T), strict=True)) | {STEP: steps}
    some = np.flatnonzero(~filled.all(axis=0))
    return columns, {names[index]: ~filled[:, index] for index in some}


def _attempts(names: list[str], cells: _Cells, steps: np.ndarray) -> np.ndarray:
    """Returns the attempt that wrote each line. One that only logs the loss carries no count: it
    continues the line before, or, where the step goes back, begins the next attempt."""
    counts, stated = np.zeros(len(steps), np.int64), np.zeros(len(steps), bool)
    if ATTEMPT in names:
        stated = cells.filled[:, names.index(ATTEMPT)]
        counts[stated] = cells.values[stated, names.index(ATTEMPT)]
    if stated.all():
        return counts
    back = np.zeros(len(steps), dtype=np.int64)
    back[1:] = steps[1:] < steps[:-1]
    begun = np.cumsum(back)
    last = np.maximum.accumulate(np.where(stated, np.arange(len(steps)), -1))
    return begun + np.where(last >= 0, counts[last] - begun[last], 0)


def _merged(
    steps: np.ndarray, values: np.ndarray, filled: np.ndarray, names: list[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns one row per step, where its cells are filled, which lines repeat a cell, and which of
    them with another value. `steps` ascend."""
    starts = np.flatnonzero(np.diff(steps, prepend=-1))
    none = np.zeros(len(steps), dtype=bool)
    if len(starts) == len(steps):
        return values, filled, none, none
    lines = np.arange(len(steps))[:, None]
    latest = np.maximum.accumulate(np.where(filled, lines, -1), axis=0)
    first = np.repeat(starts, np.diff(starts, append=len(steps)))
    before = np.vstack([np.full(len(names), -1), latest[:-1]])
    repeats = filled & (before >= first[:, None])
    # A loss and an evaluation at one step both say where they belong.
    repeats[:, [name in (STEP, ATTEMPT) for name in names]] = False
    chosen = latest[np.append(starts[1:], len(steps)) - 1]
    present = chosen >= starts[:, None]
    merged = np.where(present, np.take_along_axis(values, np.maximum(chosen, 0), 0), np.nan)
    if not repeats.any():
        return merged, present, none, none
    earlier = np.take_along_axis(values, np.maximum(before, 0), 0)
    differs = (values != earlier) & ~(np.isnan(values) & np.isnan(earlier))
    contradicts: np.ndarray = np.any(repeats & differs, axis=1)
    return merged, present, np.any(repeats, axis=1), contradicts


def _contradictions(steps: np.ndarray) -> tuple[str, ...]:
    """Lines of one attempt at one step that disagree: which one is true cannot be told."""
    if not steps.size:
        return ()
    which = f"at step {steps[0]}" if steps.size == 1 else f"the first at step {steps[0]}"
    return (
        f"duplicated: {_count(steps.size, 'line')} with other values than one of the same step and "
        f"attempt, {which}; the last counts",
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
