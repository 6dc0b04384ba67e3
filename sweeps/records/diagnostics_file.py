"""diagnostics.jsonl: what a trial recorded of its attention layers, one JSON object a line.

First line: {"format": "attnperf-diagnostics-1", "histogram_edges_log10": [...], "examples": n}.
Then a line for each recorded step and layer: {"global_step", "preemption_count", "layer": path,
"index": its place in the model from 0, ...}, the numbers those of
`attention.verification.diagnostics.summary`.

In an attempt's own file a recording is one row, so that it is whole or not there: {"kind":
"diagnostics", "global_step", "histogram_edges_log10", "examples", "layers": [{"layer", "index",
...}, ...]}.
"""

import json
import pathlib
from typing import Any

from sweeps.records import layout

KIND = "diagnostics"
_SHARED = ("histogram_edges_log10", "examples")


def publish(trial_directory: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    """Writes the file, atomically, from a trial's rows; nothing where none is of this kind."""
    recorded = [row for row in rows if row["kind"] == KIND]
    if not recorded:
        return
    head = {"format": layout.DIAGNOSTICS_FORMAT} | {name: recorded[-1][name] for name in _SHARED}
    lines = [head, *(line for row in recorded for line in _lines(row))]
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    layout.write_atomically(trial_directory / layout.DIAGNOSTICS, text)


def _lines(row: dict[str, Any]) -> list[dict[str, Any]]:
    place = {name: row[name] for name in ("global_step", "preemption_count")}
    return [place | layer for layer in row["layers"]]
