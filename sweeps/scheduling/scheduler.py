"""A study's trials as jobs of a launcher: submitted, looked at, followed up until none is left.

Jobs outlive a driver that is killed; another driver adopts them from `<study>/jobs`. The engine
says whether a job is queued, running or gone; the trials' files say how it ended. An evaluation of
a trained model (`sweeps.scheduling.downstream`) counts as a trial here.
"""

import contextlib
import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sweeps.launchers import table as launchers
from sweeps.launchers.protocol import Launcher
from sweeps.monitoring.progress import Progress
from sweeps.records import clock, disk, outages, status, submissions
from sweeps.scheduling.engines import Engines
from sweeps.scheduling.job_watch import JobWatch
from sweeps.scheduling.places import Places, batches_of
from sweeps.scheduling.submitter import Submitter
from sweeps.study.study import Study
from sweeps.study.trial import WorkItem

# Between two looks at jobs whose launcher has no poll_seconds.
_POLL_S = 0.5
# Trials that somebody else holds are looked at when their lease may have passed.
_WATCH_S, _WATCH_HERE_S = 30.0, 5.0
_SAY_AGAIN_S = 3600.0


class Interrupted(KeyboardInterrupt):
    """The driver was told to stop; nothing is lost, and who runs the study again goes on."""


class Scheduler:
    """Runs trials turn by turn; it stays from stage to stage.

    places: where each trial that is left is. submitter: gives trials to the engine. job_watch:
    looks at the jobs, and after trials whose jobs are gone. `stop_requested()` is asked at each
    turn. platform, changed: as `Submitter`.
    """

    def __init__(
        self,
        study: Study,
        progress: Progress,
        stop_requested: Callable[[], bool],
        launcher: Launcher,
        platform: str = "",
        changed: Mapping[str, Any] | None = None,
    ) -> None:
        self.study, self.progress, self.stop_requested = study, progress, stop_requested
        self.root, self.launcher = study.directory, launcher
        keys = study.settings[study.settings["launcher"]]
        self.poll_s = float(keys.get("poll_seconds", _POLL_S))
        self.engines = Engines(study.settings, self.root, launcher, self._say_once)
        self.outage = outages.Outage(progress.say, self.stop_if_told)
        self.places = Places(_WATCH_HERE_S if launcher.is_this_host else _WATCH_S)
        asked = study, progress, launcher, self.engines, self.places
        self.submitter = Submitter(*asked, self._say_once, platform, changed)
        self.job_watch = JobWatch(*asked, self.submitter)
        self._said: dict[str, float] = {}

    def run(self, trials: Sequence[WorkItem]) -> None:
        """Returns when every trial is finished. Raises Interrupted when told to stop.

        Raises ValueError if none can be run at all or a disk is full, OSError from before the
        first turn: it may be called again then.
        """
        for trial in trials:
            if self.job_watch.policy.begin(trial) not in status.COMPLETE:
                self.places.left[trial.path] = trial
        self.submitter.adopt()
        self.submitter.queue(self.places.left)
        while self.places.is_busy:
            try:
                self.stop_if_told()
                self.submitter.confirm()
                self.submitter.submit()
                self.job_watch.look()
                for trial in self.places.take_due():
                    self.job_watch.follow_up(trial)
                self.progress.tick()
                self.outage.note_success()
            except OSError as error:
                if self.launcher.is_this_host and disk.is_full(error):
                    raise ValueError(disk.named(error, self.root)) from error
                self.outage.note_error(error)
                self.places.watch_lost()
                self.submitter.hold_back()
            if self.places.is_busy:
                clock.clock.sleep(self.poll_s)

    def stop_if_told(self) -> None:
        """Raises Interrupted when told to stop, or if the study is cancelled."""
        is_cancelled = submissions.is_cancelled(self.root)
        if not (is_cancelled or self.stop_requested()):
            return
        if self.launcher.is_this_host:
            self.progress.say("stopping: jobs save the trials at hand")
        elif not is_cancelled:
            self.progress.say(
                f"leaving; {len(self.places.jobs)} jobs go on at the engine. `resume` takes them "
                "up again, `cancel` ends them"
            )
        if is_cancelled or self.launcher.is_this_host:
            self.engines.cancel(batches_of(self.places.jobs))
        raise Interrupted("interrupted; the same command goes on with what is left")

    def _say_once(self, text: str) -> None:
        """Says something that stays true for a while, once an hour."""
        now = clock.clock.monotonic()
        if now - self._said.get(text, -math.inf) > _SAY_AGAIN_S:
            self._said[text] = now
            self.progress.say(text)


def of_study(
    study: Study,
    progress: Progress,
    stop_requested: Callable[[], bool],
    changed: Mapping[str, Any] | None = None,
) -> Scheduler:
    """Returns the scheduler of a study, on the launcher of config.launcher."""
    launcher_class = launchers.launcher_class(study.settings["launcher"])
    platform = launcher_class.hardware(study.settings).kind
    launcher = launcher_class(study.settings, study.directory.resolve())
    if launcher.is_this_host:  # without an accelerator it may compute on whatever JAX finds
        platform = platform.replace("cpu", "")
    launcher.say = progress.say
    return Scheduler(study, progress, stop_requested, launcher, platform, changed)


# SIGHUP: the terminal or the connection is gone.
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def stopping_signals() -> Iterator[Callable[[], bool]]:
    """Yields whether a signal has told this process to save and end."""
    signals: list[int] = []
    earlier = [
        (number, signal.signal(number, lambda signum, frame: signals.append(signum)))
        for number in _STOPPING
    ]
    try:
        yield lambda: bool(signals)
    finally:
        for number, handler in earlier:
            signal.signal(number, handler)
