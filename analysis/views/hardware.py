"""What the devices of a host did (`python -m sweeps hardware`), beside what was predicted."""

import pathlib
from typing import Any

from analysis.load.files import json_records
from analysis.render import pages
from analysis.render.pages import Cell, Page, Row, Table

FORMAT = "attnperf-hardware-1"
BAD = ("WRONG", "DIFFERS", "FAILED")
_KEYS = ("part", "what", "verdict", "said", "figures")
_MEASURED = {
    "ms": "step_ms",
    "plan\nms": "plan_ms",
    "compiler\nGB": "memory_gb",
    "in use\nGB": "peak_gb",
    "plan\nGB": "plan_gb",
    "× standard": "over_standard",
}


def read(path: pathlib.Path) -> dict[str, Any]:
    """Returns the file's record. Raises ValueError where it is damaged or of another format."""
    record = json_records.of_format(path, FORMAT)
    for key, kind in {"devices": dict, "lines": list}.items():
        if not isinstance(record.get(key), kind):
            raise ValueError(f"{path}: it has no {key}")
    for number, line in enumerate(record["lines"]):
        missing = [key for key in _KEYS if not isinstance(line, dict) or key not in line]
        if missing:
            raise ValueError(f"{path}: line {number} lacks {', '.join(missing)}")
    return record


def page(record: dict[str, Any]) -> Page:
    """Returns a table of the train steps, and one of everything else."""
    here = record["devices"]
    steps = [line for line in record["lines"] if "step_ms" in line["figures"]]
    others = [line for line in record["lines"] if "step_ms" not in line["figures"]]
    tables = []
    if steps:
        words = ("Train step", "Verdict")
        columns = pages.columns("Train step", "Verdict", *_MEASURED, words=words)
        tables.append(Table("Train steps", columns, (tuple(map(_step, steps)),)))
    if others:
        headings = ("Part", "What", "Verdict", "Result")
        rows = tuple(
            tuple(Cell(str(line[key])) for key in ("part", "what", "verdict", "said"))
            for line in others
        )
        columns = pages.columns(*headings, words=headings)
        tables.append(Table("Everything else", columns, (rows,)))
    versions = ", ".join(f"{name} {number}" for name, number in here.get("versions", {}).items())
    return Page(
        title=f"{here.get('count')} × {here.get('kind')}",
        tables=tuple(tables),
        notes=(
            f"Measured with {versions}.",
            "plan: what `python -m sweeps plan` predicts, a model of what the accelerators' "
            "compilers say; compiler: the memory that the compiler gave the step here; in use: "
            "the most that was, by the device. DIFFERS: more than 15 % from plan.",
        ),
        problems=tuple(
            f"{line['verdict']}: {line['part']}: {line['what']}: {line['said']}"
            for line in record["lines"]
            if line["verdict"] in BAD
        ),
    )


def _step(line: dict[str, Any]) -> Row:
    figures = line["figures"]
    digits = {"step_ms": 1, "plan_ms": 1, "over_standard": 3}
    return (
        Cell(str(line["what"])),
        Cell(str(line["verdict"])),
        *(pages.number(figures.get(key), digits.get(key, 2)) for key in _MEASURED.values()),
    )
