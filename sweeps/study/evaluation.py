"""An evaluation: a trained trial's checkpoint and the suite that is to say what its model can do.

Schedulers hand it out as they hand out a trial that is to be trained: it has a directory with a
record, a status and attempts of its own, `TRIAL/downstream/<step>/<suite>`.
"""

import dataclasses
import pathlib
from typing import Any

from sweeps.records import layout, lease, status
from sweeps.study import trial as trials
from sweeps.study.trial import Trial


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One checkpoint of a trial, after `step` updates, by one suite of so many tasks.

    trial: with the mesh that it is evaluated on. settings: keys of the study, with their values,
    that are not those of its study.json: where the data lie, who runs it.
    """

    trial: Trial
    checkpoint: int
    suite: str
    tasks: int
    settings: dict[str, Any]

    @property
    def id(self) -> str:
        """The trial's."""
        return self.trial.id

    @property
    def path(self) -> str:
        """Directory relative to the study's."""
        return f"{self.trial.path}/{layout.downstream_path(self.checkpoint, self.suite)}"

    @property
    def steps(self) -> int:
        """What its status counts: tasks."""
        return self.tasks

    @property
    def unit(self) -> str:
        """What `steps` counts."""
        return "task"

    @property
    def targets(self) -> dict[str, Any]:
        """The trial's."""
        return self.trial.targets

    @property
    def program(self) -> tuple[Any, ...]:
        """Evaluations with equal programs share what is compiled."""
        return ("evaluation", self.suite, *self.trial.program)

    def to_json(self) -> dict[str, Any]:
        """Returns the record as written to evaluation.json."""
        return {
            "trial": self.trial.id,
            "checkpoint": self.checkpoint,
            "suite": self.suite,
            "tasks": self.tasks,
            "settings": self.settings,
        }


# What a scheduler hands out.
Work = Trial | Evaluation


def of(
    trial: Trial, checkpoint: int, suite: str, tasks: int, settings: dict[str, Any]
) -> Evaluation:
    """Returns an evaluation of a trial, on the mesh that the settings say, else on its own."""
    if mesh := settings.get("mesh"):
        on_mesh = mesh["data"], mesh["fsdp"], mesh["tensor"]
        trial = dataclasses.replace(trial, mesh=on_mesh)
    return Evaluation(trial, checkpoint, suite, tasks, settings)


def read_work(directory: pathlib.Path) -> Work:
    """Returns the trial, or the evaluation of one, that is recorded in a directory.

    Raises ValueError as `trial.from_record` does, and where an evaluation is of another trial.
    """
    path = directory / layout.EVALUATION
    if not path.exists():
        return trials.read(directory)
    record, trial = layout.read_json(path), trials.read(directory.parents[2])
    try:
        names = [field.name for field in dataclasses.fields(Evaluation) if field.name != "trial"]
        found = of(trial, **{name: record[name] for name in names})
        if record["trial"] != trial.id:
            raise ValueError(f"it is of trial {record['trial']}, and {trial.id} lies here now")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is no record of an evaluation ({type(error).__name__}: {error}); remove "
            f"{directory} and evaluate again"
        ) from error
    return found


def materialise(study: pathlib.Path, found: Evaluation) -> bool:
    """Writes an evaluation's record; returns whether it is still to be done.

    It is done where its results are there, whoever wrote them; one whose results were removed is
    begun again. One that a live worker has stays as it is.
    """
    directory = study / found.path
    if (directory / layout.RESULTS).exists():
        return False
    if lease.latest(directory) and lease.is_alive(lease.last(directory)):
        return True
    if status.read(directory)["state"] in status.COMPLETE:
        (directory / layout.STATUS).unlink(missing_ok=True)  # by another driver
    if layout.read_record(directory / layout.EVALUATION) != found.to_json():
        directory.mkdir(parents=True, exist_ok=True)
        layout.write_json(directory / layout.EVALUATION, found.to_json())
    return True
