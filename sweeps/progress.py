"""Progress: a live table on a terminal, one plain line per change of state elsewhere."""

import pathlib
import sys
import time
from typing import Any

from sweeps import layout, status
from sweeps.trial import Trial

_QUIET_S = 60.0


class Progress:
    """Shows how a study goes. `rich` on a terminal; logs get lines that make sense a day later."""

    def __init__(self) -> None:
        self._live: Any = None
        self._started = time.monotonic()
        self._spoke = time.monotonic()
        self._stage, self._total, self._finished = "", 0, 0
        self._running: dict[str, tuple[Trial, str]] = {}
        self._steps_left: dict[str, int] = {}
        self._rates: list[float] = []
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
            print(line, flush=True)

    def stage(self, name: str, trials: list[Trial], directory: pathlib.Path) -> None:
        """A stage begins."""
        self._stage, self._total = name, len(trials)
        states = [status.read(directory / trial.path)["state"] for trial in trials]
        self._finished = sum(state in layout.FINISHED for state in states)
        self._steps_left = {
            trial.path: trial.steps
            for trial, state in zip(trials, states, strict=True)
            if state not in layout.FINISHED
        }
        self.say(f"stage {name}: {self._total} trials, {self._finished} already finished")

    def selected(self, selection: dict[str, Any]) -> None:
        """The next stage's points were chosen."""
        chosen = {point for point in selection["points"].values()}
        listing = ", ".join(map(str, sorted(chosen)))
        self.say(f"selected by {selection['metric']}: point {listing}")

    def started(self, trial: Trial, slot: int) -> None:
        """A worker got a trial."""
        self._running[trial.path] = trial, "starting"
        self._at_once = max(self._at_once, len(self._running))
        if self._live is None:
            self.say(f"{trial.path} started on worker {slot}")
        self._update()

    def compiled(self, trial: Trial, event: dict[str, Any]) -> None:
        """A trial begins to train; its train step is compiled."""
        self.compilations += event["compilations"]
        self._running[trial.path] = trial, f"step {event['step']}/{trial.steps}"
        self._update()

    def evaluated(self, trial: Trial, event: dict[str, Any]) -> None:
        """A trial was evaluated."""
        metric = trial.targets["metric"]
        step, value = event["global_step"], event[f"validation/{metric}"]
        self._running[trial.path] = (
            trial,
            f"step {step}/{trial.steps}, validation {metric} {value:.4f}",
        )
        self._steps_left[trial.path] = trial.steps - step
        if event["accumulated_submission_time"] > 0:
            self._rates = [*self._rates[-31:], event["total_duration"] / step]
        self._update()

    def ended(
        self, trial: Trial, outcome: str, error: str | None, tail: list[str] | None = None
    ) -> None:
        """A trial ended, or left this driver's hands."""
        where = self._running.pop(trial.path, (trial, ""))[1]
        if outcome.split()[0] in (*layout.FINISHED, "already") and "again" not in outcome:
            self._finished += 1
            self._steps_left.pop(trial.path, None)
        detail = f": {error}" if error else f" ({where})" if where else ""
        self.say(f"{trial.path} {outcome}{detail} [{self._finished}/{self._total}]{self._eta()}")
        for line in tail or []:
            self.say(f"    {line}")

    def tick(self) -> None:
        """Nothing happened for a moment; says so once a minute where nobody watches."""
        if self._live is None and time.monotonic() - self._spoke > _QUIET_S:
            running = "; ".join(f"{path}: {text}" for path, (_, text) in self._running.items())
            self.say(f"stage {self._stage} {self._finished}/{self._total}{self._eta()}. {running}")
        self._update()

    def _eta(self) -> str:
        """Returns the time left by the measured time per step, '' before it is known."""
        if not self._rates or not self._steps_left:
            return ""
        rate = sorted(self._rates)[len(self._rates) // 2]
        seconds = rate * sum(self._steps_left.values()) / max(1, self._at_once)
        return f", about {_duration(seconds)} left in this stage"

    def _update(self) -> None:
        if self._live is not None:
            self._live.update(self._render())

    def _render(self) -> Any:
        from rich.table import Table

        title = f"stage {self._stage}: {self._finished}/{self._total} trials{self._eta()}"
        table = Table(title=title, title_justify="left", show_header=False, box=None)
        for path, (_, text) in self._running.items():
            table.add_row(path, text)
        return table


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
