"""What the reader hands on: a run, and the study that it belongs to."""

import pathlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.load.files.measurements import STEP, Columns


@dataclass(frozen=True, eq=False)
class Run:
    """One trial and what it measured; also one that was planned and has measured nothing.

    `evals` are the evaluations of eval_measurements.csv and `losses` reads measurements.csv anew:
    a column's name to an array [rows], by ascending `global_step`, empty where there is no file.
    `point` is the index of the hyperparameter point (AlgoPerf's published logs: the n of
    trial_<n>). `state` is one of `sweeps.records.layout.STATES`, `reason` what the trial said about
    it. `steps` is the planned budget, None where nothing on disk states it. `metric` is the name of
    the metric the workload's target is set in, `targets` what a file says of the targets
    (`metric`, a name; `validation` and `test`, values of that metric's columns), empty where none
    does; `ends_early` says that evaluations which were due are missing at the end of a trial that
    is `done`; `step_hint` is the workload's and `allowed_s` the seconds of training that it allows,
    None where no file says. `problems` and `notes` are complete sentences that name the trial.
    """

    workload: str
    variant: str
    stage: str
    point: int
    seed: int
    path: pathlib.Path
    name: str
    state: str
    reason: str | None = None
    steps: int | None = None
    step_hint: int | None = None
    allowed_s: float | None = None
    metric: str = "accuracy"
    targets: dict[str, Any] = field(default_factory=dict)
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    variant_hyperparameters: dict[str, Any] = field(default_factory=dict)
    evals: Columns = field(default_factory=dict, repr=False)
    losses: Callable[[], Columns] = field(default=dict, repr=False)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    ends_early: bool = False

    @property
    def last_step(self) -> int | None:
        """Returns the step of the last evaluation, None where there is none."""
        steps = self.evals.get(STEP, np.empty(0))
        return int(steps[-1]) if len(steps) else None

    def row(self, index: int) -> dict[str, float]:
        """Returns one evaluation, a column's name to its value; `global_step` is an int."""
        return {name: values[index].item() for name, values in self.evals.items()}

    @property
    def last_row(self) -> dict[str, float] | None:
        """Returns the last evaluation as `row` does, None where there is none."""
        return None if self.last_step is None else self.row(-1)


@dataclass(frozen=True, eq=False)
class StudyRuns:
    """A study's directory, read.

    `problems` holds one sentence for every trial that is missing, truncated, duplicated, failed,
    diverged or unfinished, and for every file that could not be read; `notes` what is worth
    knowing and wrong with nothing. `selection` is selection.json, None until a point was chosen;
    `references` maps a workload to its entry of reference.json. `planned` holds the stages whose
    trials.json exists. `paper_table` names the table of the paper (a key of `paper.TABLES`) that
    stands beside ours, empty for none; `paper_note` is a sentence on it to print below ours.
    `published` is True for AlgoPerf's own logs, which have none of these. `shares_seeds` says
    whether trials of one `seed` began with the same random numbers, so that they are pairs: ours
    do; a published log's `seed` is its study's number, and each trial drew its own. `beside` holds
    those of its problems that are of other studies in the directory that was given.
    """

    name: str
    config: dict[str, Any]
    runs: tuple[Run, ...]
    problems: tuple[str, ...]
    directory: pathlib.Path
    notes: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()
    points: tuple[dict[str, Any], ...] = ()
    selection: dict[str, Any] | None = None
    references: dict[str, Any] = field(default_factory=dict)
    paper_table: str = ""
    paper_note: str = ""
    published: bool = False
    shares_seeds: bool = True
    beside: tuple[str, ...] = ()

    @property
    def workload(self) -> str:
        """Returns the workload's name: the configured one, else the first run's."""
        first = self.runs[0].workload if self.runs else "unknown workload"
        return str(self.config.get("workload") or first)

    def stage(self, name: str) -> tuple[Run, ...]:
        """Returns the runs of one stage."""
        return tuple(run for run in self.runs if run.stage == name)
