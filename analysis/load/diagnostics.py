"""Reads `diagnostics.jsonl`: what a trial's attention layers did while it trained.

The first line names the format and the histogram's edges; every other one is a layer at a step
(sweeps/training/diagnostics.py writes them, attention/verification/layer_statistics.py defines each
number). Lines that are complete are used, others are named, and a step counts once all its layers
are there.
"""

import collections
import functools
import math
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Required, TypedDict

import msgspec
import numpy as np

from analysis.load.measurements import resumed_at
from analysis.load.records import NOT_JSON, Problem, Whole
from sweeps.records import layout

FILE, FORMAT = layout.DIAGNOSTICS, layout.DIAGNOSTICS_FORMAT
GRADIENTS = ("logit_grad_norm", "query_grad_norm", "key_grad_norm", "value_grad_norm")
QUANTITIES = (
    "share_below_1e-3",
    "share_below_1e-7",
    "entropy",
    "entropy_share",
    "jacobian_mean",
    "jacobian_max",
    *GRADIENTS,
    "value_range_min",
    "value_range_median",
    "value_range_max",
    "channels",
    "floored_channels",
)


class _Header(msgspec.Struct):
    format: Annotated[str, msgspec.Meta(pattern=f"^{FORMAT}$")]
    histogram_edges_log10: Annotated[list[float], msgspec.Meta(min_length=1)]
    examples: int | None = None


@functools.cache
def _decoder(bins: int) -> msgspec.json.Decoder:
    """Returns the decoder of a layer at a step, with a histogram of so many counts."""
    counts = Annotated[list[Whole], msgspec.Meta(min_length=bins, max_length=bins)]
    keys: dict[str, Any] = {
        "global_step": Required[Whole],
        "preemption_count": Required[Whole],
        "layer": Required[str],
        "index": Required[Whole],
        "histogram": counts | None,
        "nonfinite": list[str],
    }
    # Names of quantities are no names of Python's.
    keys |= dict.fromkeys(QUANTITIES, float | None)
    return msgspec.json.Decoder(TypedDict("_Layer", keys, total=False))  # type: ignore[operator]


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """A trial's file: `steps` int64 [S] ascending, `layers` the L paths by depth.

    `values` maps each of QUANTITIES to float64 [S, L], nan if a number does not exist or was
    not finite; `histogram` float64 [S, L, B] counts attention probabilities: bin 0 those below
    10^edges[0], bin k those in [10^edges[k-1], 10^edges[k]), the last one open above. `examples`
    says of how many they are. `problems` names what is damaged, left out or not finite, without the
    trial, which a file does not name.
    """

    steps: np.ndarray
    layers: tuple[str, ...]
    values: dict[str, np.ndarray]
    histogram: np.ndarray
    edges: np.ndarray
    examples: int | None
    problems: tuple[Problem, ...]


def parse(content: bytes) -> Diagnostics:
    """Returns what a file of this `content` holds, whatever bytes it is made of."""
    *lines, rest = content.split(b"\n")
    problems: list[Problem] = []

    def report(kind: str, text: str) -> None:
        problems.append(Problem(kind, "", FILE, text))

    if rest:
        report("truncated", f"line {len(lines) + 1}, the last, is cut and left out")
    rows = []
    edges, examples = np.empty(0), None
    try:
        header = msgspec.json.decode(lines[0] if lines else b"", type=_Header)
        if (np.diff(header.histogram_edges_log10) <= 0).any():
            raise ValueError("its histogram_edges_log10 do not ascend")
        edges, examples = np.array(header.histogram_edges_log10), header.examples
    except NOT_JSON as error:
        report("unreadable", str(error))
    # Without edges no line is a row.
    for number, line in enumerate(lines[1:] if edges.size else (), start=2):
        try:
            rows.append(_decoder(edges.size).decode(line))
        except NOT_JSON as error:
            report("damaged", f"line {number} is left out: {error}")
    layers, steps, table = _table(rows, report)
    shape = len(steps), len(layers)
    nothing = [math.nan] * edges.size
    return Diagnostics(
        steps=np.array(steps, np.int64),
        layers=layers,
        values={
            name: np.array([row.get(name) for row in table], float).reshape(shape)
            for name in QUANTITIES
        },
        histogram=np.array([row.get("histogram") or nothing for row in table], float).reshape(
            *shape, edges.size
        ),
        edges=edges,
        examples=examples,
        problems=tuple(problems),
    )


def _table(
    rows: Sequence[dict[str, Any]], report: Callable[[str, str], None]
) -> tuple[tuple[str, ...], list[int], list[dict[str, Any]]]:
    """Returns the layers by depth, the steps that have all of them, and the row of each step and
    layer: of a step that was trained twice the later attempt's. Reports what is not there."""
    steps, attempts = (
        np.array([row[name] for row in rows], np.int64)
        for name in ("global_step", "preemption_count")
    )
    lasting = steps < resumed_at(attempts, steps)
    kept = {
        (row["global_step"], row["layer"]): row
        for row, is_kept in zip(rows, lasting, strict=True)
        if is_kept
    }
    depth = {row["layer"]: row["index"] for row in kept.values()}
    layers = tuple(sorted(depth, key=lambda layer: (depth[layer], layer)))
    counts = collections.Counter(step for step, _ in sorted(kept))
    for step, count in counts.items():
        if count < len(layers):
            report("missing", f"step {step} is left out: it has {count} of {len(layers)} layers")
    nonfinite = [
        (name, f"step {row['global_step']} in {row['layer']}")
        for row in kept.values()
        for name in row.get("nonfinite", ())
    ]
    first = dict(reversed(nonfinite))
    for name, count in collections.Counter(name for name, _ in nonfinite).items():
        report("non-finite", f"{name} in {count} records, the first at {first[name]}")
    whole = [step for step, count in counts.items() if count == len(layers)]
    return layers, whole, [kept[step, layer] for step in whole for layer in layers]


# A report reads all trials of a study some 25 times. Fewer places than trials never hit. A trial of
# 12 layers and 100 steps takes 0.5 MB.
@functools.lru_cache(maxsize=1024)
def _read_once(path: pathlib.Path, stamp: tuple[int, int]) -> Diagnostics:
    """`stamp` tells a file that was written anew."""
    return parse(path.read_bytes())


def of_trial(directory: pathlib.Path) -> Diagnostics | None:
    """Returns a trial's diagnostics, None if it recorded none."""
    path = directory / FILE
    try:
        status = path.stat()
        return _read_once(path, (status.st_mtime_ns, status.st_size))
    except layout.ABSENT:
        return None
