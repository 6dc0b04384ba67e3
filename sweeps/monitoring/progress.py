"""Progress: a live table on a terminal, one plain line per change of state elsewhere.

An event costs the same in a study of 100 trials and of 100,000.
"""

import collections
import contextlib
import dataclasses
import itertools
import pathlib
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sweeps.records import layout, status
from sweeps.study.trial import Task

_QUIET_S = 60.0
# Running trials that are listed; a cluster may have a thousand.
_ROWS = 20
# Measured times per step that the estimate is the median of.
_RATES = 32


@dataclasses.dataclass(frozen=True)
class Later:
    """What the plan says of what comes after a stage, by the stage's name, in seconds, and of a
    step's time in this study: the machine's pace is what it measures there."""

    seconds: Mapping[str, float]
    step_seconds: float


class Progress:
    """Shows how a study goes. `rich` on a terminal; logs get lines that make sense a day later.

    later: of the stages and studies that follow, for the time left in all; None: not said.
    """

    def __init__(self, later: Later | None = None) -> None:
        self._later = later
        self._live: Any = None
        self._started = time.monotonic()
        self._spoke = time.monotonic()
        self._stage, self._total = "", 0
        self._running: dict[str, str] = {}  # what each trial does, by path
        # Of every unfinished trial, and their sum: an event changes one term of it.
        self._steps_left: dict[str, int] = {}
        self._sum_left = 0
        self._rates: collections.deque[float] = collections.deque(maxlen=_RATES)
        # Of updates alone: before the first evaluation nothing better is known.
        self._step_rates: collections.deque[float] = collections.deque(maxlen=_RATES)
        self._at_once = 0
        self.compilations = 0

    def __enter__(self) -> "Progress":
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(self._render(), refresh_per_second=4)
            self._live.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._live is not None:
            self._live.update(self._render())
            self._live.__exit__(*exception)
            self._live = None

    def say(self, text: str) -> None:
        """Prints a line with the time since the start."""
        self._spoke = time.monotonic()
        minutes, seconds = divmod(int(self._spoke - self._started), 60)
        line = f"[{minutes:02d}:{seconds:02d}] {text}"
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            with contextlib.suppress(OSError):  # a run outlives its reader
                print(line, flush=True)

    def stage(self, name: str, trials: Sequence[Task], directory: pathlib.Path) -> None:
        """A stage begins."""
        self._stage, self._total = name, len(trials)
        self._steps_left = {}
        for trial in trials:
            found = status.read(directory / trial.path)
            # One that failed before is tried again.
            if found["state"] not in ("done", "diverged"):
                self._steps_left[trial.path] = trial.steps - found["global_step"]
        self._sum_left = sum(self._steps_left.values())
        self.say(f"stage {name}: {self._total} trials, {self._finished} already finished")

    def selected(self, selection: dict[str, Any]) -> None:
        """The next stage's points were chosen."""
        listing = ", ".join(map(str, sorted(set(selection["points"].values()))))
        lost = len(selection["lost"])
        worst = f"; {lost} lost trials counted as the worst" if lost else ""
        self.say(f"selected by {selection['metric']}: point {listing}{worst}")

    def started(self, trial: Task, where: int | str) -> None:
        """A trial began: on the worker of a slot, or where the text says ("slurm job 12_3")."""
        self._running[trial.path] = "starting"
        # At the end of a stage nothing starts any more: what ran side by side until then counts.
        self._at_once = len(self._running)
        if self._live is None:
            worker = f"worker {where}" if isinstance(where, int) else where
            self.say(f"{trial.path} started on {worker}")
        self._update()

    def compiled(self, trial: Task, event: dict[str, Any]) -> None:
        """A trial begins to train; its train step is compiled."""
        self.compilations += event["compilations"]
        self._running[trial.path] = f"{trial.unit} {event['step']}/{trial.steps}"
        self._update()

    def evaluated(self, trial: Any, event: dict[str, Any]) -> None:
        """A trial was evaluated: event holds `global_step`, its metrics and times."""
        metric = trial.targets["metric"]
        step, value = event["global_step"], event[f"validation/{metric}"]
        text = f"{trial.unit} {step}/{trial.steps}, validation {metric} {value:.4f}"
        if event["accumulated_submission_time"] > 0:
            self._rates.append(event["total_duration"] / step)
        self._moved(trial, step, text)

    def logged(self, trial: Task, event: dict[str, Any]) -> None:
        """A trial's live figures: event holds a train row of `sweeps.training.live`."""
        step = event["global_step"] + 1
        self._step_rates.append(event["step_seconds"])
        self._moved(trial, step, f"{trial.unit} {step}/{trial.steps}, {figures(event, trial.unit)}")

    @property
    def _finished(self) -> int:
        return self._total - len(self._steps_left)

    def looked(self, trial: Task, found: dict[str, Any]) -> None:
        """A trial's status was read: found holds `global_step` and, once known, `step_seconds`."""
        step = found["global_step"]
        before = self._steps_left.get(trial.path, trial.steps)
        # Seen again at the same step, it would outweigh trials that move.
        if found.get("step_seconds") and trial.steps - step < before:
            self._rates.append(found["step_seconds"])
        text = f"{trial.unit} {step}/{trial.steps}" if step else "starting"
        if shown := figures(found.get("figures")):
            text += f", {shown}"
        self._moved(trial, step, text)

    def _moved(self, trial: Task, step: int, text: str) -> None:
        self._running[trial.path] = text
        if trial.path in self._steps_left:
            self._sum_left += trial.steps - step - self._steps_left[trial.path]
            self._steps_left[trial.path] = trial.steps - step
        self._update()

    def ended(
        self, trial: Task, outcome: str, error: str | None, tail: list[str] | None = None
    ) -> None:
        """A trial ended, or left this driver's hands."""
        where = self._running.pop(trial.path, "")
        if outcome.split()[0] in (*layout.FINISHED, "already") and "again" not in outcome:
            self._sum_left -= self._steps_left.pop(trial.path, 0)
        detail = f": {error}" if error else f" ({where})" if where else ""
        self.say(f"{trial.path} {outcome}{detail} [{self._finished}/{self._total}]{self._eta()}")
        for line in tail or []:
            self.say(f"    {line}")

    def tick(self) -> None:
        """Nothing happened for a moment; says so once a minute where nobody watches."""
        if self._live is None and time.monotonic() - self._spoke > _QUIET_S:
            running = "; ".join(f"{path}: {text}" for path, text in self._rows())
            self.say(f"stage {self._stage} {self._finished}/{self._total}{self._eta()}. {running}")
        self._update()

    def _eta(self) -> str:
        """Returns the time left by the measured time per step, '' before it is known."""
        rates = self._rates or self._step_rates
        if not rates or not self._steps_left:
            return ""
        at_once = max(1, min(self._at_once, len(self._steps_left)))
        rate = statistics.median(rates)
        seconds = rate * self._sum_left / at_once
        text = f", about {duration(seconds)} left in this stage"
        later = self._later and self._later.seconds.get(self._stage, 0)
        if self._later is None or not later:
            return text
        return f"{text}, {duration(seconds + later * rate / self._later.step_seconds)} in all"

    def _rows(self) -> list[tuple[str, str]]:
        """Returns what the first running trials do, by path, and how many more there are."""
        rows = list(itertools.islice(self._running.items(), _ROWS))
        if len(self._running) > _ROWS:
            rows.append((f"and {len(self._running) - _ROWS} more", ""))
        return rows

    def _update(self) -> None:
        if self._live is not None:
            self._live.update(self._render())

    def _render(self) -> Any:
        from rich.table import Table

        title = f"stage {self._stage}: {self._finished}/{self._total} trials{self._eta()}"
        table = Table(title=title, title_justify="left", show_header=False, box=None)
        for path, text in self._rows():
            table.add_row(path, text)
        return table


def figures(found: Any, unit: str = "step") -> str:
    """Returns the live figures of a trial in words, '' where there are none.

    found: of an event or of status.json, which may be damaged or of a later version. unit: what the
    times are of.
    """
    if not isinstance(found, dict):
        return ""
    numbers = {name: value for name, value in found.items() if isinstance(value, int | float)}
    parts = [f"loss {numbers['loss']:.4f}"] if "loss" in numbers else []
    if (seconds := numbers.get("step_seconds")) is not None:
        shown = f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"
        parts.append(f"{shown} a {unit}")
    parts += [
        f"{value:,.0f} {name.removesuffix('_per_second')}/s"
        for name, value in numbers.items()
        if name.endswith("_per_second")
    ]
    if (share := numbers.get("model_flop_utilisation")) is not None:
        parts.append(f"{100 * share:.1f} % of the peak FLOP/s")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Returns a time as people say it: '80 s', '12 min', '3.2 h', '5.0 days'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} days"
