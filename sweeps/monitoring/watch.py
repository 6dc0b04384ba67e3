"""`python -m sweeps status --watch`: the status, as it changes."""

import contextlib
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from sweeps.monitoring import status
from sweeps.records import study_reader

_QUIET_S = 60.0
# Looking takes at most this part of the time: 100,000 trials on a slow disk are looked at rarely.
_SHARE = 0.1


def show(directory: pathlib.Path, every_s: float = 2.0) -> None:
    """Shows a study until it is complete; Ctrl-C ends it without a word.

    On a terminal a table that is renewed every `every_s` seconds; elsewhere a plain line when
    something has changed, and every 60 s. Raises ValueError where the directory holds no study.
    """
    reader = study_reader.StudyReader(directory)
    with contextlib.suppress(KeyboardInterrupt):
        if not sys.stdout.isatty():
            _lines(reader, every_s)
            return
        from rich.live import Live

        # The last table stays on the screen.
        with Live(auto_refresh=False, vertical_overflow="crop") as live:
            for found in looks(reader, every_s):
                live.update(table(found), refresh=True)


def _lines(reader: study_reader.StudyReader, every_s: float) -> None:
    before, spoke = "", 0.0
    for found in looks(reader, every_s):
        text = line(found)
        if text != before or time.monotonic() - spoke > _QUIET_S:
            left = "" if found.complete else f"; {status.time_left(found)}"
            print(f"[{time.strftime('%H:%M:%S')}] {text}{left}", flush=True)
            before, spoke = text, time.monotonic()


def looks(reader: study_reader.StudyReader, every_s: float) -> Iterator[study_reader.Survey]:
    """Yields surveys, at least `every_s` apart, the last one of a study that is complete."""
    last: study_reader.Survey | None = None
    while True:
        began = time.monotonic()
        found = reader.look()
        yield found
        # A trial that failed may be tried again in the next moment: it must look so twice.
        if found.complete and (not found.counts["failed"] or (last and last.complete)):
            return
        last = found
        took = time.monotonic() - began
        time.sleep(max(every_s, took / _SHARE - took))


def line(found: study_reader.Survey) -> str:
    """Returns the study's state in a line: trials per state and stage."""
    parts = []
    for stage in found.record["stages"]:
        rows = [row.counts for row in found.rows if row.stage == stage]
        counts = {name: sum(row[name] for row in rows) for name in study_reader.COLUMNS}
        parts.append(f"{stage} " + " ".join(f"{n} {name}" for name, n in counts.items() if n))
    return ", ".join(parts) + ("; complete" if found.complete else "")


def table(found: study_reader.Survey) -> Any:
    """Returns the status for a terminal, as rich shows it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    states = Table(title=f"study {found.record['name']}", title_justify="left")
    for name in ("stage", "variant"):
        states.add_column(name)
    for name in study_reader.COLUMNS:
        states.add_column(name, justify="right", style=_STYLES.get(name, ""))
    for row in found.rows:
        # A zero says nothing.
        numbers = [str(row.counts[name] or "") for name in study_reader.COLUMNS]
        states.add_row(row.stage, row.variant, *numbers)
    return Group(states, *(Text(text) for text in status.below(found)))


_STYLES = {"running": "bold", "done": "green", "diverged": "yellow", "failed": "red"}
