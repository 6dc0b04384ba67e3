"""Metrics by name: which column holds one, whether lower is better, how a table shows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from analysis.load.files.measurements import Columns
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
# That of a workload which neither states it nor is one of these: the first column there is.
TARGET_METRICS = ("wer", "bleu", "mean_average_precision", "ssim", "ppl", "accuracy", "loss")

# Numbers that are made from another column: name to that column.
DERIVED = {"error": "accuracy", "perplexity": "loss"}
LABELS = {
    "wer": "WER",
    "bleu": "BLEU",
    "ssim": "SSIM",
    "mean_average_precision": "mean average precision",
    "ctc_loss": "CTC loss",
    "ppl": "perplexity",
}
# Metrics that are no fraction; that of a loss is the workload's.
UNITS = {"perplexity": "", "ppl": "", "bleu": "", "ctc_loss": ""}
# 3 decimals of a perplexity of 13 tell losses 0.0001 apart, as 4 decimals of the loss do.
DIGITS = {"perplexity": 3, "ppl": 3}
# What an accuracy or a loss is the mean over, by a word of the workload's name.
COUNTED = {"vit": "image", "lm": "token", "bert": "masked position"}

Values = TypeVar("Values", float, np.ndarray)


class MissingMetricError(ValueError):
    """No evaluation has the metric's column; the message lists the columns there are."""


@dataclass(frozen=True)
class Metric:
    """A number that a table shows: column `<split>/<source>` itself, 1 minus it for `error`,
    e to its power for `perplexity`."""

    name: str
    source: str

    @property
    def label(self) -> str:
        """Returns the name within a sentence: `error`, `WER`, `loss`."""
        return LABELS.get(self.name, self.name)

    @property
    def title(self) -> str:
        """Returns the name at the head of a table: `Error`, `WER`, `Loss`."""
        return self.label[0].upper() + self.label[1:]

    @property
    def digits(self) -> int:
        """Returns how many decimals a table prints."""
        return DIGITS.get(self.name, 4)

    @property
    def lower_is_better(self) -> bool:
        """Returns which way is better for the number that is shown."""
        return self.name not in HIGHER_IS_BETTER

    @property
    def mode(self) -> Literal["min", "max"]:
        """Returns which way is better for the column: `sweeps` states it the same way."""
        return "max" if self.source in HIGHER_IS_BETTER else "min"

    @property
    def is_bounded(self) -> bool:
        """Returns whether 1 is the worst there can be, as of errors; before training a loss, a
        perplexity or a WER may be anything."""
        return self.source == "accuracy"

    def unit(self, workload: str) -> str:
        """Returns the unit that the number has on a workload, empty where it has no name."""
        if self.name != "loss":
            return UNITS.get(self.name, "fraction")
        counted = _counted(workload)
        return f"nats per {counted}" if counted else ""

    def axis(self, workload: str) -> str:
        """Returns what a plot's axis says: `loss (nats per token)`."""
        unit = self.unit(workload)
        return f"{self.label} ({unit})" if unit.startswith("nats") else self.label

    def definition(self, workload: str) -> str:
        """Returns what the number is on a workload, in words, for the foot of a table."""
        masked = _counted(workload) == COUNTED["bert"]
        where = " over masked positions" if masked else ""
        unit = self.unit(workload)
        words = {
            "error": f"error = 1 - accuracy{where}, as a fraction",
            "accuracy": f"accuracy{where}, as a fraction",
            "wer": "WER over the corpus, as a fraction: word errors / words spoken",
            "loss": f"loss in {unit}" if unit else "loss, as the workload defines it",
            "perplexity": "perplexity = exp(loss), the loss in nats",
            "ppl": "perplexity per token, as AlgoPerf's workload reports it",
            "bleu": "BLEU over the corpus, 0 to 100; more is better",
            "ssim": "SSIM (structural similarity), at most 1; more is better",
            "mean_average_precision": "mean average precision over tasks, as a fraction; "
            "more is better",
        }
        return words.get(self.name, self.label)

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
        """Returns a reference row's number on a split, None where it has none: reference.json
        gives the number shown (`test/error`) or the column (`test/accuracy`)."""
        if row.get(f"{split}/{self.name}") is not None:
            return float(row[f"{split}/{self.name}"])
        source = row.get(self.column(split))
        return None if source is None else self.shown(float(source))

    def read(self, columns: Columns, split: str, where: str) -> np.ndarray:
        """Returns the column itself, float64 [rows], of the file that `where` names.

        Raises MissingMetricError where the file has no such column.
        """
        if self.column(split) in columns:
            return columns[self.column(split)]
        there = sorted(n for n in columns if "/" in n and n.partition("/")[0] in layout.SPLITS)
        raise MissingMetricError(
            f"{where}: no column {self.column(split)}; it has {', '.join(there) or 'none'}"
        )


def _counted(workload: str) -> str:
    """Returns what is counted on a workload: `masked position` on wikipedia_bert_2b, empty where
    no word of the name says so."""
    return next((COUNTED[word] for word in workload.split("_") if word in COUNTED), "")


def get(name: str) -> Metric:
    """Returns the metric called `name`: `error` (1 - accuracy), `perplexity` (exp(loss)), or a
    column's name with or without its split (`validation/wer`, `wer`, `loss`, `accuracy`)."""
    name = name.rsplit("/", 1)[-1]
    return Metric(name, DERIVED.get(name, name))


def shown_for(target: str) -> Metric:
    """Returns what a table shows where the workload's target is set in `target`: the paper's
    tables give errors, so accuracy is shown as error."""
    return get("error") if get(target).source == "accuracy" else get(target)


def target(columns: Columns, stated: str | None = None, workload: str = "") -> str:
    """Returns the metric a workload's target is set in: as stated, else that of AlgoPerf's
    workload where there is a column of it, else the first of TARGET_METRICS that is a column;
    accuracy where nothing tells."""
    known = OF_WORKLOAD.get(workload.split("_")[0])
    if known and columns and f"validation/{known}" not in columns:
        known = None
    present = (name for name in TARGET_METRICS if f"validation/{name}" in columns)
    return stated or known or next(present, "accuracy")
