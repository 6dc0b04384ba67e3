"""What a study's trials would run on: its launcher's jobs, how many at a time, devices."""

import contextlib
import dataclasses

from sweeps.launchers import table as launchers
from sweeps.launchers.protocol import EngineError
from sweeps.study.study import Study


@dataclasses.dataclass(frozen=True)
class Resources:
    """What trials would run on.

    devices: per trial, of `platform`. trials_per_job: 1 for local, whose worker processes are its
    jobs. jobs: that may be under way at a time, None where that is unknown and `problem` says why.
    side_by_side: trials that one job runs at a time.
    """

    launcher: str
    platform: str
    devices: int
    trials_per_job: int
    jobs: int | None
    side_by_side: int
    problem: str = ""

    @property
    def at_once(self) -> int | None:
        """How many trials run at a time, None where that is unknown."""
        return None if self.jobs is None else self.jobs * self.side_by_side

    def jobs_for(self, trials: int) -> int:
        """Returns how many jobs that many trials are."""
        return -(-trials // self.trials_per_job)

    def wall_steps(self, trials: int, steps: int) -> int | None:
        """Returns how many steps, one after the other, `trials` of `steps` each take at least."""
        return None if self.at_once is None else -(-trials // self.at_once) * steps

    def describe(self) -> str:
        """Returns the resources in words."""
        device = f"{self.devices} {self.platform} device{'s' * (self.devices != 1)} per trial"
        if self.jobs is None:
            return f"launcher {self.launcher}: {device}; jobs at a time unknown: {self.problem}"
        if self.launcher == "local":
            workers = f"{self.jobs} worker{'s' * (self.jobs != 1)}"
            return f"launcher local: {workers}, a trial each at a time, {device}"
        return (
            f"launcher {self.launcher}: at most {self.jobs:,} jobs at a time, each of up to "
            f"{self.trials_per_job} trials, {self.side_by_side} at a time, {device}"
        )


def of(study: Study) -> Resources:
    """Returns the resources that a study's settings describe; an engine may be asked.

    Raises ValueError for settings that the launcher refuses.
    """
    settings = study.settings
    name = settings["launcher"]
    module, own = launchers.module(name), settings[name]
    module.check(settings)
    jobs, problem = None, ""
    try:
        with contextlib.closing(module.launcher(settings, study.directory)) as engine:
            jobs = int(engine.capacity())
    except (EngineError, ValueError, OSError) as error:  # planned on a host without the engine
        if name == "local":
            raise
        problem = str(error)
    trials_per_job = int(own.get("trials_per_job", 1))
    side_by_side = min(int(own.get("workers", 0)) or 1, trials_per_job)
    where = (name, module.platform(settings), module.devices(settings))
    return Resources(*where, trials_per_job, jobs, side_by_side, problem)
