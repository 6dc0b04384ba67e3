"""Metrics by name: which column holds one, whether lower is better, how a table shows it; and
targets, the values of them that runs have to reach: the runs' own, else AlgoPerf's.

`reference/algoperf_targets.csv` holds AlgoPerf's targets by version, as its source code states
them (what differs between versions, and where its published logs state other ones:
`analysis/reference/README.md`).
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from analysis.load import paper
from analysis.load.measurements import is_metric
from analysis.load.records import Columns, Problem, Run, StudyRuns
from sweeps.records import layout

# AlgoPerf's metrics of which more is better; of every other metric (wer, loss, ...) less is.
HIGHER_IS_BETTER = ("accuracy", "bleu", "mean_average_precision", "ssim")
# The target's metric of AlgoPerf's workloads, by the first word of the name: held-out variants
# (`wmt_glu_tanh`) have their base's. Translation and molecules have an accuracy, too.
OF_WORKLOAD = {
    "criteo1tb": "loss",
    "fastmri": "ssim",
    "finewebedu": "ppl",
    "imagenet": "accuracy",
    "librispeech": "wer",
    "ogbg": "mean_average_precision",
    "wmt": "bleu",
}
# The target's metric of any other workload: the first of these that is a column.
TARGET_METRICS = ("wer", "bleu", "mean_average_precision", "ssim", "ppl", "accuracy", "loss")

# What an accuracy or a loss is the mean over, by a word of the workload's name.
COUNTED = {"vit": "image", "lm": "token", "bert": "masked position"}
# The source of a target that the trials themselves state, and AlgoPerf's.
OWN, TARGETS = "stated in the trials' own files", "algoperf_targets.csv"
Values = TypeVar("Values", float, np.ndarray)


@dataclass(frozen=True)
class Metric:
    """A number that a table shows: column `<split>/<source>` itself, 1 minus it for `error`,
    e to its power for `perplexity`. `label` is its name within a sentence, `text` what it is,
    `digits` how many decimals a table prints."""

    name: str
    source: str
    label: str
    text: str
    digits: int = 4
    # Which way is better, where the name does not say it.
    is_lower: bool | None = None

    @property
    def title(self) -> str:
        """Returns the name at the head of a table: `Error`, `WER`, `Loss`."""
        return self.label[0].upper() + self.label[1:]

    @property
    def lower_is_better(self) -> bool:
        """Returns which way is better for the number that is shown."""
        return self.name not in HIGHER_IS_BETTER if self.is_lower is None else self.is_lower

    @property
    def mode(self) -> Literal["min", "max"]:
        """Returns which way is better for the column: `sweeps` states it the same way."""
        is_lower = self.source not in HIGHER_IS_BETTER if self.is_lower is None else self.is_lower
        return "min" if is_lower else "max"

    @property
    def is_bounded(self) -> bool:
        """Returns whether 1 is the worst there can be, as of errors; before training a loss, a
        perplexity or a WER may be anything."""
        return self.source == "accuracy"

    def unit(self, workload: str) -> str:
        """Returns `nats per token` for the loss of a workload that counts tokens, empty for other
        metrics, and where the workload's name does not say what is counted."""
        counted = next((COUNTED[word] for word in workload.split("_") if word in COUNTED), "")
        return f"nats per {counted}" if self.name == "loss" and counted else ""

    def axis(self, workload: str) -> str:
        """Returns the title of a chart's axis: `loss (nats per token)`."""
        unit = self.unit(workload)
        return f"{self.label} ({unit})" if unit else self.label

    def definition(self, workload: str) -> str:
        """Returns what the number is on a workload, for the foot of a table."""
        unit = self.unit(workload)
        if unit:
            return f"{self.label} in {unit}"
        return self.text.format(
            where=" over masked positions" if "bert" in workload.split("_") else ""
        )

    def column(self, split: str) -> str:
        """Returns the column's name, e.g. `validation/accuracy`. `split` is train, validation
        or test."""
        return f"{split}/{self.source}"

    def shown(self, values: Values) -> Values:
        """Returns the number to show for a column's value, or the array of them for an array;
        inf for a perplexity beyond the floats' range."""
        if self.name == "error":
            return 1 - values
        if self.name == "perplexity":
            with np.errstate(over="ignore"):
                powers = np.exp(values)
            return powers if isinstance(values, np.ndarray) else float(powers)
        return values

    def reference(self, row: Mapping[str, Any], split: str) -> float | None:
        """Returns a reference row's number on a split, None if it has none: reference.json
        gives the number shown (`test/error`) or the column (`test/accuracy`)."""
        if row.get(f"{split}/{self.name}") is not None:
            return float(row[f"{split}/{self.name}"])
        source = row.get(self.column(split))
        return None if source is None else self.shown(float(source))

    def missing(self, run: Run, split: str) -> str:
        """Returns a sentence on a run without the column: the file, and the columns that it has."""
        names = ", ".join(sorted(filter(is_metric, run.evals))) or "none"
        where = run.name if run.recorded else f"{run.name}/{layout.EVAL_MEASUREMENTS}"
        return f"{where}: no column {self.column(split)}; it has {names}"


KNOWN = {
    metric.name: metric
    for metric in (
        Metric("error", "accuracy", "error", "error = 1 - accuracy{where}, as a fraction"),
        Metric("accuracy", "accuracy", "accuracy", "accuracy{where}, as a fraction"),
        Metric("loss", "loss", "loss", "loss, as the workload defines it"),
        # 3 decimals of a perplexity of 13 tell losses 0.0001 apart, as 4 decimals of the loss do.
        Metric("perplexity", "loss", "perplexity", "perplexity = exp(loss), the loss in nats", 3),
        Metric("ppl", "ppl", "perplexity", "perplexity per token, as AlgoPerf reports it", 3),
        Metric(
            "wer",
            "wer",
            "WER",
            "WER over the corpus, as a fraction: word errors / words spoken",
        ),
        Metric("ctc_loss", "ctc_loss", "CTC loss", "CTC loss"),
        Metric("bleu", "bleu", "BLEU", "BLEU over the corpus, 0 to 100; more is better"),
        Metric("ssim", "ssim", "SSIM", "SSIM (structural similarity), at most 1; more is better"),
        Metric(
            "mean_average_precision",
            "mean_average_precision",
            "mean average precision",
            "mean average precision over tasks, as a fraction; more is better",
        ),
    )
}


def get(name: str) -> Metric:
    """Returns the metric called `name`: `error` (1 - accuracy), `perplexity` (exp(loss)), or a
    column's name with or without its split (`validation/wer`, `wer`, `loss`, `accuracy`)."""
    name = name.rsplit("/", 1)[-1]
    return KNOWN.get(name) or Metric(name, name, name, name)


def of_study(study: StudyRuns, name: str) -> Metric:
    """Returns the metric called `name`, as `get`, with the direction that the study states."""
    metric = get(name)
    return dataclasses.replace(metric, is_lower=study.directions.get(metric.source))


def shown_for(target: Metric) -> Metric:
    """Returns what a table shows where the workload's target is set in `target`: the paper's
    tables give errors, so accuracy is shown as error."""
    return get("error") if target.source == "accuracy" else target


def target_metric(columns: Columns, stated: str | None = None, workload: str = "") -> str:
    """Returns the metric a workload's target is set in: as stated, else that of AlgoPerf's
    workload where there is a column of it, else the first of TARGET_METRICS that is a column;
    accuracy where nothing tells."""
    known = OF_WORKLOAD.get(workload.split("_")[0])
    if known and columns and f"validation/{known}" not in columns:
        known = None
    present = (name for name in TARGET_METRICS if f"validation/{name}" in columns)
    return stated or known or next(present, "accuracy")


class UnknownTargetError(ValueError):
    """Nothing states a target; the message says what was looked for and what to do."""


@dataclass(frozen=True)
class Target:
    """A number to reach: at most `value` of `metric` on `split` where less is better, at least
    `value` where more is. `source` says in words where it is from."""

    metric: Metric
    split: str
    value: float
    source: str

    @property
    def words(self) -> str:
        """Returns the target as a reader writes it: `validation WER <= 0.085884`."""
        sign = "≤" if self.metric.lower_is_better else "≥"
        return f"{self.split} {self.metric.label} {sign} {self.value:g}"

    def is_reached(self, values: np.ndarray | float) -> np.ndarray:
        """Returns whether `values` [...], as they are shown, reach it; what is not finite does
        not."""
        better = np.less_equal if self.metric.lower_is_better else np.greater_equal
        return np.isfinite(values) & better(values, self.value)


@dataclass(frozen=True)
class AlgoperfTarget:
    """A line of AlgoPerf's table: values in the metric's own column (accuracy, not error), nan
    if there is no target, `step_hint` in steps, `max_allowed_runtime_sec` in seconds."""

    workload: str
    version: str
    metric: str
    validation: float
    test: float
    step_hint: int
    max_allowed_runtime_sec: int


@functools.cache
def algoperf_targets() -> tuple[AlgoperfTarget, ...]:
    """Returns AlgoPerf's targets: every workload and published variant, by version, oldest
    first."""
    return tuple(
        AlgoperfTarget(
            workload=row["workload"],
            version=row["version"],
            metric=row["metric"],
            validation=float(row["validation"]),
            test=float(row["test"] or "nan"),
            step_hint=int(row["step_hint"]),
            max_allowed_runtime_sec=int(row["max_allowed_runtime_sec"]),
        )
        for row in paper.lines(TARGETS)
    )


def nearest_target(
    workload: str, steps: int | None, seconds: float | None = None
) -> AlgoperfTarget | None:
    """Returns AlgoPerf's target of `workload` in the version whose step hint is nearest (in
    ratio) to `steps`, the newer one on ties and without steps; None for other workloads.

    A version that allows fewer `seconds` than a run trained cannot be the run's, where another
    can: the 2024 logs ended ViT by time, 21.5 h of the 21.5 h allowed then, at 171,472 steps.
    """
    name = workload.rpartition(":")[2]  # `algoperf:imagenet_vit` in our studies
    known = [target for target in algoperf_targets() if target.workload == name]
    long_enough = [t for t in known if t.max_allowed_runtime_sec >= (seconds or 0.0)] or known
    if not known or not steps:
        return long_enough[-1] if known else None
    return min(reversed(long_enough), key=lambda target: abs(math.log(target.step_hint / steps)))


def target_of_run(
    run: Run, split: str, steps: int | None = None, seconds: float | None = None
) -> Target:
    """Returns what `run` has to reach on `split` (validation or test).

    First what its own files state, then AlgoPerf's table in the version nearest to `steps` and
    `seconds` of training, the run's own unless given. Raises UnknownTargetError if neither
    knows the workload.
    """
    stated = run.targets
    if stated.get(split) is not None and stated.get("metric"):
        return Target(get(str(stated["metric"])), split, float(stated[split]), OWN)
    steps = steps or _steps(run)
    known = nearest_target(run.workload, steps, seconds or run.trained_seconds)
    value = getattr(known, split, math.nan)
    if known is None or math.isnan(value):
        raise UnknownTargetError(
            f"no {split} target is known for {run.workload}: neither {run.name} nor AlgoPerf's "
            f"table ({TARGETS}) states one; give --target=VALUE and --metric=NAME, or "
            "another --split"
        )
    why = f"nearest to the longest run's {steps:,} steps and time" if steps else "the newest"
    source = f"AlgoPerf {known.version} (step hint {known.step_hint:,}, {why})"
    return Target(get(known.metric), split, value, source)


def _steps(run: Run) -> int | None:
    return run.step_hint or run.steps or run.last_step


def target_of_runs(
    runs: Sequence[Run], split: str, peers: Sequence[Run] = ()
) -> tuple[Target, tuple[Problem, ...]]:
    """Returns the target that most of the runs have, and a problem for each other one.

    Where nothing states the budget, that of the longest run among `runs` and `peers`, all the
    runs of their study and workload, counts: others may have been stopped early. Raises
    UnknownTargetError where a run has no target, or if there are no runs.
    """
    if not runs:
        raise UnknownTargetError("no run that could reach a target; give another stage or point")
    every = (*runs, *peers)
    steps = max(_steps(run) or 0 for run in every)
    seconds = max(run.trained_seconds for run in every)
    stated = collections.Counter(target_of_run(run, split, steps, seconds) for run in runs)
    (chosen, _), *others = stated.most_common()
    return chosen, tuple(
        Problem("mismatch", "", "", f"{count} runs state {other.words}, not {chosen.words}")
        for other, count in others
        # The same number from another source is no other target.
        if other.words != chosen.words
    )
