"""CSV files of measurements, and metrics by name. Damage is in test_damaged_files.py."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.load import measurements, metrics

LOSS, METRIC = "loss", "validation/accuracy"
NAMES = ["global_step", LOSS, METRIC, "preemption_count"]
HEADER = f"global_step,{METRIC},preemption_count\n"
# As Python, numpy, pandas and C write numbers.
NUMBERS = st.one_of(
    st.floats().map(repr),
    st.floats(width=32).map(lambda x: f"{x:.9g}"),
    st.sampled_from(["", "", "nan", "NaN", "inf", "-Infinity", "1e400", "+1.5", " 2.5 ", "7"]),
)
STEPS = st.integers(0, 40).map(str) | st.sampled_from(["3.0", "1e1", " 5"])
COUNTS = st.sampled_from(["", "", "0", "0", "1", "2", "1.0", "3"])
ROWS = st.lists(st.tuples(STEPS, NUMBERS, NUMBERS, COUNTS), max_size=30)


def parse(text: str) -> measurements.Measurements:
    return measurements.parse(text.encode(), "T", "file.csv")


def steps_and_values(read: measurements.Measurements) -> list[tuple[int, float]]:
    return [
        (int(step), float(value))
        for step, value in zip(read.columns["global_step"], read.columns[METRIC], strict=True)
    ]


def kinds(read: measurements.Measurements) -> list[str]:
    return [problem.kind for problem in (*read.problems, *read.notes)]


def plainly(rows: list[tuple[str, ...]]) -> dict[int, dict[str, float]]:
    """Step to cells, read row by row: an attempt is cut where a later one begins."""
    read: list[tuple[int, int, dict[str, float]]] = []
    for row in rows:
        cells = {n: float(cell) for n, cell in zip(NAMES, row, strict=True) if cell}
        step = int(cells["global_step"])
        before = read[-1] if read else None
        continued = before[1] + (step < before[0]) if before else 0
        read.append((step, int(cells.get("preemption_count", continued)), cells))
    kept: dict[int, dict[str, float]] = {}
    for step, attempt, cells in read:
        later = (other for other, number, _ in read if number > attempt)
        if step < min(later, default=math.inf):
            kept[step] = kept.get(step, {}) | cells
    return dict(sorted(kept.items()))


@settings(deadline=None, max_examples=150)
@given(rows=ROWS, damaged=st.booleans())
def test_a_file_reads_as_a_plain_reading_does(rows, damaged) -> None:
    """Mixed rows, empty cells, nan, inf, steps out of order, restarts with and without counts;
    whole, by Arrow, and with a damaged line, whose columns are read as texts."""
    text = "".join(",".join(row) + "\n" for row in [NAMES, *rows])
    read = parse(text + "1,damaged,,0\n" * damaged)
    expected = plainly(rows)
    assert read.columns["global_step"].tolist() == list(expected)
    assert read.columns["global_step"].dtype == np.int64
    for name in NAMES[1:]:
        values = [cells.get(name, math.nan) for cells in expected.values()]
        np.testing.assert_array_equal(read.columns[name], values)
        empty = [name not in cells for cells in expected.values()]
        assert read.empty.get(name, np.zeros(len(empty), bool)).tolist() == empty
    assert ("damaged" in kinds(read)) == damaged


@pytest.mark.parametrize(
    ("lines", "expected", "noted"),
    [
        # Attempt 1 resumed before 200.
        (
            "100,0.1,0\n200,0.2,0\n300,0.3,0\n200,0.25,1\n300,0.35,1\n400,0.45,1\n",
            [(100, 0.1), (200, 0.25), (300, 0.35), (400, 0.45)],
            [],
        ),
        # Attempts count, not places.
        (
            "200,0.25,1\n300,0.35,1\n100,0.1,0\n200,0.2,0\n",
            [(100, 0.1), (200, 0.25), (300, 0.35)],
            [],
        ),
        # Evaluations by wall time fall on other steps: 290 lies after the resumption at 250.
        (
            "100,0.1,0\n290,0.9,0\n250,0.2,1\n400,0.3,1\n",
            [(100, 0.1), (250, 0.2), (400, 0.3)],
            [],
        ),
        ("2,5,0\n1,6,0\n3,4,0\n", [(1, 6), (2, 5), (3, 4)], []),
        # One attempt twice at a step: the last counts, and only another value is a problem.
        ("1,0.5,0\n2,0.6,0\n2,0.7,0\n", [(1, 0.5), (2, 0.7)], ["duplicated"]),
        ("1,0.5,0\n1,0.5,0\n2,,0\n2,1,0\n", [(1, 0.5), (2, 1)], []),
    ],
)
def test_each_step_counts_once(lines, expected, noted) -> None:
    read = parse(HEADER + lines)
    assert steps_and_values(read) == expected
    assert kinds(read) == noted


@pytest.mark.parametrize(("lines", "more"), [(1, None), (2, "1 more"), (4, "3 more")])
def test_steps_that_appear_twice_are_counted(lines, more) -> None:
    text = "".join(f"{step},0.{twice},0\n" for step in range(lines) for twice in (5, 6))
    (problem,) = parse(HEADER + text).problems
    assert re.findall(r"\d+ more", problem.text) == ([more] if more else [])


@pytest.mark.parametrize(
    ("steps", "every", "missing"),
    [
        ((100, 200, 300, 400), 100, []),
        ((100, 300, 400), 100, ["200", "4"]),
        ((300, 400), 100, ["100", "1", "4"]),
        ((150, 400), 150, ["300", "3"]),
        ((150, 300, 400), 150, []),
        # Beside the plan, and without one.
        ((100, 150, 200), 100, []),
        ((300, 400), None, []),
        ((), 100, []),
        # A step that no trial has, as damaged files do.
        ((100, 2**53 - 1), 1, ["1", "397", "400"]),
    ],
)
def test_planned_evaluations_that_are_missing_are_named(steps, every, missing) -> None:
    read = parse(HEADER + "".join(f"{step},0.5,0\n" for step in steps))
    assert re.findall(r"\d+", measurements.missing_evaluations(read, every, end=400)) == missing


@pytest.mark.parametrize(
    "spell",
    [
        lambda text: ("\ufeff" + text).encode(),
        lambda text: text.replace("\n", "\r\n").encode("utf-16"),
        lambda text: ("\ufeff" + text).encode("utf-16-be"),
        lambda text: text.replace(",", ", ").encode(),
        lambda text: text.replace("\n", "\t\r\n").encode(),
    ],
)
def test_other_spellings_of_the_same_table_are_read(spell) -> None:
    """As spreadsheets, PowerShell and people write it; whole, and with a damaged line."""
    text = HEADER + "1,0.5,0\n2,,0\n"
    for content in (text, text + "3,x,0\n"):
        read = measurements.parse(spell(content))
        np.testing.assert_equal(steps_and_values(read), [(1, 0.5), (2, math.nan)])
        assert read.empty[METRIC].tolist() == [False, True]
        assert kinds(read) == ["damaged"] * (content != text)


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
    assert metrics.shown_for(metrics.get(target)) == metrics.get(shown)


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
