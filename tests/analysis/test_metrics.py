"""Metrics by name: what is shown of which column, in which words."""

import math

import numpy as np
import pytest

from analysis.load import metrics

E = math.e


@pytest.mark.parametrize(
    ("name", "column", "value", "shown", "lower"),
    [
        ("error", "test/accuracy", 0.75, 0.25, True),
        ("accuracy", "test/accuracy", 0.75, 0.75, False),
        ("wer", "test/wer", 0.125, 0.125, True),
        ("validation/wer", "test/wer", 0.125, 0.125, True),
        ("loss", "test/loss", 2.0, 2.0, True),
        ("perplexity", "test/loss", 2.0, E * E, True),
        ("perplexity", "test/loss", 1e4, math.inf, True),
    ],
)
def test_what_is_shown_of_a_column(name, column, value, shown, lower) -> None:
    metric = metrics.get(name)
    assert metric.column("test") == column
    assert metric.shown(value) == pytest.approx(shown)
    assert metric.shown(np.array([value, value])).tolist() == pytest.approx([shown, shown])
    assert metric.lower_is_better == lower


@pytest.mark.parametrize(
    ("target", "shown"), [("accuracy", "error"), ("wer", "wer"), ("loss", "loss")]
)
def test_a_table_shows_the_target_and_accuracy_as_error(target, shown) -> None:
    assert metrics.shown_for(target) == metrics.get(shown)


@pytest.mark.parametrize(
    ("name", "workload", "unit"),
    [
        ("loss", "c4_lm_2b", "nats per token"),
        ("loss", "pydoc_bert", "nats per masked position"),
        ("loss", "digits_vit", "nats per image"),
        ("loss", "speech", ""),
        ("perplexity", "c4_lm", ""),
        ("bleu", "wmt", ""),
        ("chrf", "wmt", ""),
    ],
)
def test_the_unit_is_in_the_definition_and_on_the_axis(name, workload, unit) -> None:
    metric = metrics.get(name)
    assert metric.unit(workload) == unit
    assert unit in metric.axis(workload)
    assert unit in metric.definition(workload)
    assert metric.label in metric.definition(workload)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("error", 0.25), ("accuracy", 0.75), ("loss", 2.0), ("perplexity", E * E)],
)
def test_a_reference_row_may_give_the_number_or_its_column(name, expected) -> None:
    row = {"test/accuracy": 0.75, "test/loss": 2.0, "train/error": 0.0, "validation/loss": None}
    metric = metrics.get(name)
    assert metric.reference(row, "test") == pytest.approx(expected)
    assert metric.reference(row, "validation") is None
    assert metrics.get("error").reference(row, "train") == 0.0


@pytest.mark.parametrize(
    ("columns", "stated", "expected"),
    [
        (("validation/loss", "validation/wer"), None, "wer"),
        (("validation/loss", "validation/accuracy"), None, "accuracy"),
        (("validation/loss", "validation/accuracy"), "loss", "loss"),
        (("validation/loss",), None, "loss"),
        (("train/wer",), None, "accuracy"),
    ],
)
def test_the_target_is_as_stated_else_by_the_columns(columns, stated, expected) -> None:
    assert metrics.target_metric(dict.fromkeys(columns), stated) == expected
