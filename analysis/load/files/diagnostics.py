"""Reads `diagnostics.jsonl`: what a trial's attention layers did while it trained.

The first line names the format and the histogram's edges; every other one is a layer at a step
(sweeps/training/diagnostics.py writes them, attention/verification/diagnostics.py says what each
number is). Lines that are complete are used, those that are not are named, and a step counts once
all its layers are there.
"""

import functools
import json
import math
import pathlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from analysis.load.files.json_records import is_number
from analysis.load.files.measurements import resumed_at
from sweeps.records import layout

FILE, FORMAT = layout.DIAGNOSTICS, layout.DIAGNOSTICS_FORMAT
SHARES = ("share_below_1e-3", "share_below_1e-7")
GRADIENTS = ("logit_grad_norm", "query_grad_norm", "key_grad_norm", "value_grad_norm")
RANGES = ("value_range_min", "value_range_median", "value_range_max")
QUANTITIES = (
    *SHARES,
    "entropy",
    "entropy_share",
    "jacobian_mean",
    "jacobian_max",
    *GRADIENTS,
    *RANGES,
    "channels",
    "floored_channels",
)


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """A trial's file: `steps` int64 [S] ascending, `layers` the L paths by depth.

    `values` maps each of QUANTITIES to float64 [S, L], nan where a number does not exist or was
    not finite; `histogram` float64 [S, L, B] counts attention probabilities: bin 0 those below
    10^edges[0], bin k those in [10^edges[k-1], 10^edges[k]), the last one open above. `examples`
    says of how many they are. `problems` names what is damaged, left out or not finite.
    """

    steps: np.ndarray
    layers: tuple[str, ...]
    values: dict[str, np.ndarray]
    histogram: np.ndarray
    edges: np.ndarray
    examples: int | None
    problems: tuple[str, ...]


@dataclass(frozen=True)
class _Line:
    step: int
    attempt: int
    layer: str
    index: int
    numbers: dict[str, float]
    histogram: list[float] | None
    nonfinite: tuple[str, ...]


def parse(content: bytes) -> Diagnostics:
    """Returns what a file of this `content` holds, whatever bytes it is made of."""
    *lines, rest = content.decode("utf-8", errors="replace").split("\n")
    problems = []
    if rest:
        problems.append(f"truncated in its last line ({len(lines) + 1}), which is left out")
    try:
        edges, examples = _header(lines[0] if lines else "")
    except ValueError as error:
        return _assembled([], np.empty(0), None, (f"unreadable: {error}", *problems))
    rows = []
    for number, text in enumerate(lines[1:], start=2):
        try:
            rows.append(_line(text, len(edges)))
        except ValueError as error:
            problems.append(f"damaged in line {number}, which is left out: {error}")
    return _assembled(rows, edges, examples, tuple(problems))


def _object(text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except ValueError:
        raise ValueError(f"not JSON: {text[:40]!r}") from None
    if not isinstance(record, dict):
        raise ValueError(f"not a JSON object: {text[:40]!r}")
    return record


def _header(text: str) -> tuple[np.ndarray, int | None]:
    if not text:
        raise ValueError("it has no first line")
    record = _object(text)
    if record.get("format") != FORMAT:
        raise ValueError(f"its format is {record.get('format')!r}; {FORMAT!r} is known")
    edges = record.get("histogram_edges_log10")
    if not isinstance(edges, list) or not edges or not all(map(is_number, edges)):
        raise ValueError("its first line has no histogram_edges_log10")
    if (np.diff(edges) <= 0).any():
        raise ValueError("its histogram_edges_log10 do not ascend")
    examples = record.get("examples")
    return np.array(edges, float), examples if isinstance(examples, int) else None


def _is_count(given: Any) -> TypeGuard[int]:
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 2**63


def _count(record: dict[str, Any], name: str) -> int:
    given = record.get(name)
    if not _is_count(given):
        raise ValueError(f"{name} is {given!r}, not a whole number from 0")
    return int(given)


def _line(text: str, bins: int) -> _Line:
    """Raises ValueError where the line is not a layer at a step."""
    record = _object(text)
    step, attempt, index = (
        _count(record, name) for name in ("global_step", "preemption_count", "index")
    )
    if not isinstance(record.get("layer"), str):
        raise ValueError(f"layer is {record.get('layer')!r}, not a path")
    numbers = {name: record[name] for name in QUANTITIES if record.get(name) is not None}
    for name, given in numbers.items():
        if not is_number(given):
            raise ValueError(f"{name} is {given!r}, not a finite number")
    counts = record.get("histogram")
    if counts is not None and not (
        isinstance(counts, list) and len(counts) == bins and all(map(_is_count, counts))
    ):
        raise ValueError(f"histogram is not {bins} counts, one for each of the edges")
    named = record.get("nonfinite") or ()
    nonfinite = tuple(map(str, named)) if isinstance(named, list | tuple) else (str(named),)
    return _Line(step, attempt, record["layer"], index, numbers, counts, nonfinite)


def _assembled(
    rows: list[_Line], edges: np.ndarray, examples: int | None, problems: tuple[str, ...]
) -> Diagnostics:
    """Puts lines into arrays: of a step that was trained twice the later attempt's count."""
    attempts, at = (np.array([getattr(row, of) for row in rows], int) for of in ("attempt", "step"))
    ends = resumed_at(attempts, at)
    kept = {(r.step, r.layer): r for r, end in zip(rows, ends, strict=True) if r.step < end}
    depth = {row.layer: row.index for row in kept.values()}
    layers = tuple(sorted(depth, key=lambda layer: (depth[layer], layer)))
    every = sorted({step for step, _ in kept})
    steps = [step for step in every if all((step, layer) in kept for layer in layers)]
    partial = [step for step in every if step not in set(steps)]
    there = {step: sum((step, layer) in kept for layer in layers) for step in partial}
    incomplete = (
        f"incomplete at step {step}, which is left out: {count} of {len(layers)} layers"
        for step, count in there.items()
    )
    said = (*problems, *incomplete, *_nonfinite(kept.values()))
    shape = len(steps), len(layers)
    values = {name: np.full(shape, math.nan) for name in QUANTITIES}
    histogram = np.full((*shape, len(edges)), math.nan)
    for i, step in enumerate(steps):
        for j, layer in enumerate(layers):
            row = kept[step, layer]
            for name, number in row.numbers.items():
                values[name][i, j] = number
            if row.histogram is not None:
                histogram[i, j] = row.histogram
    at = np.array(steps, np.int64)
    return Diagnostics(at, layers, values, histogram, edges, examples, said)


def _nonfinite(rows: Iterable[_Line]) -> Iterable[str]:
    """Names each quantity that was not finite once, with how often and where first."""
    found: dict[str, list[_Line]] = {}
    for row in sorted(rows, key=lambda row: (row.step, row.index)):
        for name in row.nonfinite:
            found.setdefault(name, []).append(row)
    for name, where in found.items():
        begin = f"first at step {where[0].step} in {where[0].layer}"
        yield f"nonfinite: {name} in {len(where)} records, {begin}"


# A report reads all trials of a study some 25 times. Fewer places than trials never hit. A trial of
# 12 layers and 100 steps takes 0.5 MB.
@functools.lru_cache(maxsize=1024)
def _read_once(path: pathlib.Path, modified: int, size: int) -> Diagnostics:
    del modified, size  # they tell a file that was written anew
    return parse(path.read_bytes())


def of_trial(directory: pathlib.Path) -> Diagnostics | None:
    """Returns a trial's diagnostics, None where it recorded none."""
    path = directory / FILE
    try:
        found = path.stat()
        return _read_once(path, found.st_mtime_ns, found.st_size)
    except (FileNotFoundError, NotADirectoryError):
        return None
