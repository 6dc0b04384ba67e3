"""What is read of a study: its JSON records, its problems, its runs, and the study itself.

JSON files are written by programs and mended by hand. They are read by the types of their known
keys: a key of another type is named and left out, so that `"steps": "3000"` is found here, once,
and not by whoever counts steps later. Keys that nobody reads may hold anything.
"""

import functools
import json
import math
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import numpy as np

from sweeps.records import layout

STEP, TIME = "global_step", "accumulated_submission_time"
# A column's name to its array [rows].
Columns = Mapping[str, np.ndarray]
# A user's own files and directories: systems lay .snapshot, .ipynb_checkpoints, ._x, @eaDir beside.
VISIBLE = "[!.@]*"
FLAGS_FILE, META_FILE = "flags_0.json", "meta_data_0.json"
INIT2WINIT_FILE = "meta_data.json"
MAXTEXT_FILE = "maxtext.json"
# What each attempt of a trial records of itself: META_FILE is the first attempt's.
META_FILES = "meta_data_*.json"
# Keys of META_FILE: operations of one training step, and the number of parameters.
FLOPS, PARAMETERS = "model_flops_per_step", "parameters"
COMMIT = "git_commit_hash"
# What cannot be decoded, whatever library says so.
NOT_JSON = (msgspec.MsgspecError, ValueError, RecursionError)

# From 2^53 on a float64 does not hold every whole number.
LARGEST = 2**53
Whole = Annotated[int, msgspec.Meta(ge=0, lt=LARGEST)]
Positive = Annotated[int, msgspec.Meta(ge=1, lt=LARGEST)]
# What JSON can say, without nan and inf.
Value = None | bool | int | float | str | list[Any] | dict[str, Any]

# An object's keys, each with the type of its value, the keys of an object (null where it says
# nothing), or a list of the keys of its items.
Kinds = dict[str, Any]
# Keys that stand for all others: those with a `/`, as names of columns have, and any.
COLUMN, ANY = "*/*", "*"

HYPERPARAMETERS: Kinds = {"warmup_factor": float, ANY: Value}
# What an entry of trials.json cannot do without.
PLANNED: Kinds = {"path": str, "variant": str, "workload": str, "point": Whole, "seed": Whole}
# A trial, in trials.json and in its own trial.json.
TRIAL: Kinds = PLANNED | {
    "id": str,
    "steps": Positive | None,
    "step_hint": Positive | None,
    "eval_every": Positive | None,
    "git_commit": str | None,
    "data_digest": str | None,
    "targets": {
        "metric": str | None,
        "validation": float | None,
        "test": float | None,
        "train": float | None,
    },
    "hyperparameters": HYPERPARAMETERS,
    "variant_hyperparameters": {ANY: Value},
}
# What `sweeps run` planned when it was called; study.json and its config repeat the last one's.
PLAN: Kinds = {
    "date": str | None,
    "git_commit": str | None,
    "hypothesis": str | None,
    "seeds": Positive,
    "looks": list[Annotated[int, msgspec.Meta(ge=2, le=1000)]],
    "margin": str | float | None,
    "variants": list[str],
    "points": Positive,
    "baseline": str,
}
STUDY: Kinds = PLAN | {
    "name": str,
    "config": PLAN | {"name": str, "workload": str},
    "runs": [PLAN],
    # An item's place is a point's index: a list with another item is of no use.
    "points": list[dict[str, Value]] | None,
    "stages": list[str],
    "paper_table": str | None,
    "paper_note": str | None,
}
# study.json beside a results file; the names of PLAN with the same meaning.
RESULTS_PLAN: Kinds = {
    "name": str,
    "shares_seeds": bool,
    **{key: PLAN[key] for key in ("date", "hypothesis", "seeds", "looks", "margin")},
}
# A variant, in records of other trainers.
VARIANT: Kinds = {"attention": str | None, "attention_tau": float | None}
# A file's name to its keys.
KNOWN: dict[str, Kinds] = {
    layout.STUDY: STUDY | RESULTS_PLAN,
    layout.SELECTION: {
        "metric": str | None,
        "from_stage": str | None,
        "points": {ANY: Whole},
    },
    layout.REFERENCE: {
        ANY: {"note": str | None, "rows": [{"name": str, COLUMN: float | None}]},
    },
    layout.TRIAL: TRIAL,
    layout.HPARAMS: HYPERPARAMETERS | VARIANT,
    FLAGS_FILE: {
        "max_global_steps": Positive | None,
        "tuning_ruleset": str | None,
        **VARIANT,
        "variant_hyperparameters": {ANY: Value},
    },
    META_FILE: {
        "workload.target_metric_name": str | None,
        "workload.validation_target_value": float | None,
        "workload.test_target_value": float | None,
        "workload.step_hint": Positive | None,
        "workload.max_allowed_runtime_sec": float | None,
        "workload.attention": str | None,
        "workload.attention_tau": float | None,
        FLOPS: float,
        PARAMETERS: Positive,
        COMMIT: str | None,
    },
    INIT2WINIT_FILE: {
        "dataset": str,
        "model": str,
        "num_train_steps": Positive | None,
        **VARIANT,
    },
    MAXTEXT_FILE: {
        "workload": str,
        "metrics_file": str,
        "num_train_steps": Positive | None,
        "rng_seed": Whole,
        "hyperparameters": {ANY: Value},
        **VARIANT,
    },
}


class NotAStudyError(ValueError):
    """A path holds no study; the message says what was looked for, or what is wrong with it."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with a study's files or trials.

    `kind` is one of `missing`, `truncated`, `damaged`, `unreadable`, `duplicated`, `mismatch`,
    `failed`, `diverged`, `non-finite`, `unfinished`, `fabricated`, `out of order`, `unknown
    format`, `left out` (what lies beside the study and is not read), `elsewhere` (in trials that a
    page does not show), `note` (worth knowing, and wrong with nothing). `trial` is the trial's
    directory below the study's, empty for what belongs to none; `file` the file's name, empty for
    none; `text` says what is wrong, without naming either again.
    """

    kind: str
    trial: str
    file: str
    text: str

    def __str__(self) -> str:
        place = "/".join(part for part in (self.trial, self.file) if part)
        return ": ".join(part for part in (self.kind, place, self.text) if part)


@dataclass(frozen=True)
class Plan:
    """What one call of `sweeps run` planned, the first being the start of the study: its date
    (YYYY-MM-DD) and commit, the hypothesis, the seeds of each variant, the variants, the points of
    the search, and the baseline; `looks` and `margin` are the study's keys of these names. What is
    not recorded is empty, None or 0."""

    date: str | None = None
    git_commit: str | None = None
    hypothesis: str | None = None
    seeds: int = 0
    looks: tuple[int, ...] = ()
    margin: str | float = ""
    variants: tuple[str, ...] = ()
    points: int = 0
    baseline: str = ""


@dataclass(frozen=True, eq=False)
class Run:
    """One trial and what it measured; also one that was planned and has measured nothing.

    `evals` are the evaluations of eval_measurements.csv and `losses` reads measurements.csv anew:
    a column's name to an array [rows], by ascending `global_step`, empty if there is no file.
    `point` is the index of the hyperparameter point (AlgoPerf's published logs: the n of
    trial_<n>). `state` is one of `sweeps.records.layout.STATES`, `reason` what the trial said about
    it. `steps` is the planned budget, None if nothing on disk states it. `metric` is the name of
    the metric the workload's target is set in, `targets` what a file says of the targets
    (`metric`, a name; `validation` and `test`, values of that metric's columns), empty if none
    does; `ends_early` says that evaluations which were due are missing at the end of a trial that
    is `done`; `step_hint` is the workload's, `eval_every` the steps between planned evaluations and
    `allowed_s` the seconds of training that the workload allows, None if no file says.
    `problems` is what is wrong with the trial, `notes` what is worth knowing. `is_planned` is False
    for a trial that has ended and that the study no longer plans. `planned_by` is the commit that
    planned it, `data_digest` identifies the data, `id` is equal for trials that compute the same;
    each is empty if it is not recorded. `counts_last`: its last step counts, not its best one.
    `recorded` is its record where no META_FILE holds it.
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
    eval_every: int | None = None
    allowed_s: float | None = None
    metric: str = "accuracy"
    targets: dict[str, Any] = field(default_factory=dict)
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    variant_hyperparameters: dict[str, Any] = field(default_factory=dict)
    evals: Columns = field(default_factory=dict, repr=False)
    losses: Callable[[], Columns] = field(default=dict, repr=False)
    problems: tuple[Problem, ...] = ()
    notes: tuple[Problem, ...] = ()
    ends_early: bool = False
    is_planned: bool = True
    planned_by: str = ""
    data_digest: str = ""
    id: str = ""
    counts_last: bool = False
    recorded: dict[str, Any] | None = None

    @property
    def last_step(self) -> int | None:
        """Returns the step of the last evaluation, None if there is none."""
        steps = self.evals.get(STEP, np.empty(0))
        return int(steps[-1]) if len(steps) else None

    @property
    def trained_seconds(self) -> float:
        """Returns the training time until the last evaluation that records it, 0 for none."""
        times = self.evals.get(TIME, np.zeros(0))
        return float(times[np.isfinite(times)].max(initial=0.0))

    @property
    def trained_flops(self) -> float:
        """Returns the operations of the training by the model's own formula, nan if they are not
        recorded."""
        return (self.meta.get(FLOPS) or math.nan) * (self.last_step or 0)

    def row(self, index: int) -> dict[str, float]:
        """Returns one evaluation, a column's name to its value; `global_step` is an int."""
        return {name: values[index].item() for name, values in self.evals.items()}

    @property
    def is_finished(self) -> bool:
        """Returns whether its numbers count: it is done, and its file goes on to the end."""
        return self.state == "done" and not self.ends_early

    @property
    def has_ended(self) -> bool:
        """Returns whether nothing of it is missing: its numbers count, or it is lost."""
        return self.is_finished or self.state in layout.LOST

    @functools.cached_property
    def metas(self) -> tuple[dict[str, Any], ...]:
        """Returns META_FILES of the attempts that wrote one, in order, without damaged files."""
        if self.recorded is not None:
            return (self.recorded,)
        # meta_data_10.json follows meta_data_9.json.
        paths = sorted(self.path.glob(META_FILES), key=lambda path: (len(path.name), path.name))
        return tuple(meta for path in paths if (meta := read_json(path, self.name, [])))

    @property
    def meta(self) -> dict[str, Any]:
        """Returns what the first attempt that wrote META_FILE says, empty if none did."""
        return next(iter(self.metas), {})

    @property
    def commits(self) -> tuple[str, ...]:
        """Returns the commits of the attempts that trained it, in order; where none recorded one,
        the commit that planned it, if that is recorded."""
        trained = [commit for meta in self.metas if (commit := meta.get(COMMIT))]
        planned = [self.planned_by] if self.planned_by else []
        return tuple(dict.fromkeys(trained or planned))


@dataclass(frozen=True, eq=False)
class StudyRuns:
    """A study's directory, read.

    `config` is study.json's. `study_problems` and `study_notes` belong to no run. `stages` are
    those of the study, `planned` those whose trials.json exists. `selection` is selection.json,
    None until a point was chosen; `references` maps a workload to its entry of reference.json.
    `paper_table` names the table of the paper (a key of `paper.TABLES`) that stands beside ours,
    empty for none; `paper_note` is printed below ours. `plans` are what the calls of `run`
    planned, in order. `published` is True for AlgoPerf's own
    logs, which have none of these. `shares_seeds` says whether trials of one `seed` began with the
    same random numbers, so that they are pairs: ours do; each trial of a published log drew its
    own. `directions` says whether lower is better, of metrics of which that is not known by name.
    """

    name: str
    config: dict[str, Any]
    runs: tuple[Run, ...]
    study_problems: tuple[Problem, ...]
    directory: pathlib.Path
    study_notes: tuple[Problem, ...] = ()
    stages: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()
    selection: dict[str, Any] | None = None
    references: dict[str, Any] = field(default_factory=dict)
    paper_table: str = ""
    paper_note: str = ""
    plans: tuple[Plan, ...] = ()
    published: bool = False
    shares_seeds: bool = True
    directions: Mapping[str, bool] = field(default_factory=dict)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Returns the study's problems, then those of its runs."""
        return (*self.study_problems, *(problem for run in self.runs for problem in run.problems))

    @property
    def left_out(self) -> tuple[Problem, ...]:
        """Returns the problems that name what lies beside the study and is not read."""
        return tuple(problem for problem in self.study_problems if problem.kind == "left out")

    @property
    def notes(self) -> tuple[Problem, ...]:
        """Returns the notes of the runs, then the study's own."""
        return (*(note for run in self.runs for note in run.notes), *self.study_notes)

    @property
    def workload(self) -> str:
        """Returns the workload's name: the configured one, else the first run's."""
        first = self.runs[0].workload if self.runs else "unknown workload"
        return str(self.config.get("workload") or first)

    def stage(self, name: str) -> tuple[Run, ...]:
        """Returns the runs of one stage."""
        return tuple(run for run in self.runs if run.stage == name)

    @property
    def variants(self) -> tuple[str, ...]:
        """Returns the variants that the study plans now, none for logs."""
        return self.plans[-1].variants if self.plans else ()

    def planned_seeds(self, stage: str, variant: str) -> list[int]:
        """Returns the seeds of a variant by each plan that has it, in order, those of its last look
        included; none in other stages than the last, which compares, and before it has begun."""
        has_begun = stage == self.stages[-1] and stage in self.planned
        plans = [plan for plan in self.plans if has_begun and variant in plan.variants]
        return [max(plan.seeds, *plan.looks, 0) for plan in plans]


def read_json(path: pathlib.Path, trial: str, problems: list[Problem]) -> dict[str, Any] | None:
    """Returns the JSON object in `path` as `usable` leaves it, None if there is no such file,
    or none that is a JSON object: the latter is named in `problems`. `trial` is the name of the
    trial that the file belongs to, empty for none."""
    try:
        record = layout.record(path)
    except layout.ABSENT:
        return None
    except (ValueError, OSError) as error:
        text = str(error).removeprefix(str(path)).lstrip(": ")
        problems.append(Problem("unreadable", trial, path.name, text))
        return None
    known = META_FILE if path.match(META_FILES) else path.name
    return usable(record, KNOWN.get(known, {}), trial, path.name, problems)


def usable(
    record: dict[str, Any],
    kinds: Kinds,
    trial: str,
    file: str,
    problems: list[Problem],
    place: str = "",
) -> dict[str, Any]:
    """Returns `record`, of a trial's `file`, without the keys that hold something else than `kinds`
    says; `problems` names each: its key behind `place`, its value and what was expected."""
    kept: dict[str, Any] = {}
    for name, value in record.items():
        kind = kinds.get(name) or ("/" in name and kinds.get(COLUMN)) or kinds.get(ANY, Any)
        key = f"{place}{name}"
        if isinstance(kind, dict) and isinstance(value, dict):
            kept[name] = usable(value, kind, trial, file, problems, f"{key}.")
        elif isinstance(kind, list) and isinstance(value, list):
            items = {f"[{number}]": item for number, item in enumerate(value)}
            rows = usable(items, {ANY: kind[0]}, trial, file, problems, key)
            kept[name] = [*rows.values()]
        elif damage := _damage(value, kind):
            text = f"{key} is {value!r:.40}: {damage}; it is left out"
            problems.append(Problem("unreadable", trial, file, text))
        else:
            kept[name] = value
    return kept


def flattened(record: dict[str, Any]) -> dict[str, Any]:
    """Returns the record without objects in it: `{"a": {"b": 1}}` as `{"a.b": 1}`."""
    flat: dict[str, Any] = {}
    for name, value in record.items():
        inner = flattened(value) if isinstance(value, dict) else {}
        flat |= {f"{name}.{key}": of_key for key, of_key in inner.items()} or {name: value}
    return flat


def _damage(value: Any, kind: Any) -> str:
    """Returns what is wrong with a value, empty for nothing."""
    if isinstance(kind, dict | list):
        kind = type(kind) | None
    try:
        msgspec.convert(value, kind)
        if kind is not Any and isinstance(value, float | list | dict):
            json.dumps(value, allow_nan=False)
    except NOT_JSON as error:
        return str(error)
    return ""
