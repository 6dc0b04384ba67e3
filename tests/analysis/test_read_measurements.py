"""Reading AlgoPerf's CSV files, whole and damaged."""

import csv
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.load.files import csv_reader

HEADER = "global_step,validation/accuracy,preemption_count\n"


def steps_and_values(content: bytes) -> list[tuple[int, float]]:
    columns = csv_reader.parse(content).columns
    return list(
        zip(columns["global_step"].tolist(), columns["validation/accuracy"].tolist(), strict=True)
    )


def test_reads_numbers_empty_cells_and_nan() -> None:
    read = csv_reader.parse((HEADER + "1,0.5,0\n2,,0\n3,nan,0\n4,-inf,\n").encode())
    assert read.columns["global_step"].tolist() == [1, 2, 3, 4]
    assert read.columns["global_step"].dtype == np.int64
    np.testing.assert_array_equal(
        read.columns["validation/accuracy"], [0.5, np.nan, np.nan, -np.inf]
    )
    assert read.problems == ()
    assert read.notes == ()


def test_accepts_carriage_returns() -> None:
    assert steps_and_values((HEADER + "1,0.5,0\n").replace("\n", "\r\n").encode()) == [(1, 0.5)]


def test_a_last_line_without_its_newline_is_left_out_and_named() -> None:
    """`2,0.75,0` may have been `2,0.75,01`: it cannot be told from a number that was cut."""
    read = csv_reader.parse((HEADER + "1,0.5,0\n2,0.75,0").encode())
    assert read.columns["global_step"].tolist() == [1]
    assert read.problems == ("truncated in its last line (3), which is left out: '2,0.75,0'",)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "truncated: the file is empty"),
        (b"global_step,valid", "truncated in its header"),
        (b"step,validation/accuracy\n1,2\n", "unknown format: no column global_step"),
    ],
)
def test_without_a_header_there_are_no_rows(content: bytes, says: str) -> None:
    read = csv_reader.parse(content)
    assert read.columns == {}
    assert says in read.problems[0]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("2,0.7", "2 of 3 columns"),
        ("2,0.7,0,9", "4 of 3 columns"),
        ("2,0.x7,0", "validation/accuracy is '0.x7', not a number"),
        ("2.5,0.7,0", "global_step is 2.5"),
        ("nan,0.7,0", "global_step is nan"),
        ("-1,0.7,0", "global_step is -1"),
        (",0.7,0", "no global_step"),
        ("2,0.7,0.5", "preemption_count is 0.5"),
        ("2,1_0,0", "validation/accuracy is '1_0', not a number"),
        ("2,٣,0", "validation/accuracy is '٣', not a number"),
        ("", "1 of 3 columns"),
        ("\r\0", "1 of 3 columns"),
    ],
)
def test_a_damaged_line_is_named_and_the_others_survive(line: str, says: str) -> None:
    read = csv_reader.parse(f"{HEADER}1,0.5,0\n{line}\n3,0.8,0\n".encode())
    assert read.columns["global_step"].tolist() == [1, 3]
    assert len(read.problems) == 1
    assert "line 3" in read.problems[0]
    assert says in read.problems[0]


def test_after_a_preemption_the_later_attempt_wins() -> None:
    """Attempt 0 reached 300; attempt 1 resumed before 200, so 200 and 300 were run again."""
    lines = "100,0.1,0\n200,0.2,0\n300,0.3,0\n200,0.25,1\n300,0.35,1\n400,0.45,1\n"
    read = csv_reader.parse((HEADER + lines).encode())
    assert read.columns["global_step"].tolist() == [100, 200, 300, 400]
    assert read.columns["validation/accuracy"].tolist() == [0.1, 0.25, 0.35, 0.45]
    assert read.notes == ("2 rows superseded by later ones",)
    assert read.problems == ()


def test_lines_out_of_order_are_ordered_by_attempt_not_by_position() -> None:
    lines = "200,0.25,1\n300,0.35,1\n100,0.1,0\n200,0.2,0\n"
    assert steps_and_values((HEADER + lines).encode()) == [(100, 0.1), (200, 0.25), (300, 0.35)]


def test_an_abandoned_branch_is_cut_where_the_next_attempt_resumed() -> None:
    """Evaluations by wall time fall on other steps: 290 of attempt 0 lies after the resumption
    at 250 and belongs to no trajectory that went on."""
    lines = "100,0.1,0\n290,0.9,0\n250,0.2,1\n400,0.3,1\n"
    assert steps_and_values((HEADER + lines).encode()) == [(100, 0.1), (250, 0.2), (400, 0.3)]


def test_a_logged_loss_and_an_evaluation_at_one_step_are_one_row() -> None:
    """In measurements.csv rows with only the loss carry no preemption count."""
    text = (
        "global_step,loss,validation/accuracy,preemption_count\n"
        "100,2.0,,\n100,,0.1,0\n200,1.5,,\n100,1.9,,\n100,,0.2,1\n200,1.4,,\n"
    )
    read = csv_reader.parse(text.encode())
    assert read.columns["global_step"].tolist() == [100, 200]
    assert read.columns["loss"].tolist() == [1.9, 1.4]
    np.testing.assert_array_equal(read.columns["validation/accuracy"], [0.2, np.nan])


def test_of_one_attempts_lines_at_one_step_the_later_wins() -> None:
    read = csv_reader.parse((HEADER + "1,0.5,0\n2,0.6,0\n2,0.7,0\n").encode())
    assert read.columns["validation/accuracy"].tolist() == [0.5, 0.7]
    assert read.notes == ()
    assert read.problems == (
        "duplicated: 1 line with other values than one of the same step and attempt, at step 2; "
        "the last counts",
    )


def test_lines_that_say_the_same_twice_are_noted() -> None:
    """Also where the value is nan; a third line that differs is a problem of its own."""
    read = csv_reader.parse((HEADER + "1,0.5,0\n1,0.5,0\n2,nan,0\n2,nan,0\n").encode())
    assert (read.problems, read.notes) == ((), ("2 lines repeated as before",))
    read = csv_reader.parse((HEADER + "1,0.5,0\n1,0.5,0\n1,0.7,0\n2,,0\n2,1,0\n").encode())
    assert read.columns["validation/accuracy"].tolist() == [0.7, 1]
    assert len(read.problems) == 1
    assert read.notes == ("1 line repeated as before",)


@pytest.mark.parametrize(
    ("spelt", "note"),
    [
        (lambda text: "\ufeff" + text, "a byte order mark before the header was left out"),
        (
            lambda text: (
                "\n".join(
                    ",".join(f'"{cell}"' for cell in line.split(",")) for line in text.splitlines()
                )
                + "\n"
            ),
            "cells in quotes were read without them",
        ),
        (lambda text: text.replace(",", ", "), "blanks around cells were left out"),
        (lambda text: text.replace("\n", "\t\r\n"), "blanks around cells were left out"),
    ],
)
def test_other_spellings_of_the_same_table_are_read_and_noted(spelt, note) -> None:
    """Whole, and, by the careful road, with a line that is damaged."""
    text = HEADER + "1,0.5,0\n2,,0\n"
    plain, read = (csv_reader.parse(t.encode()) for t in (text, spelt(text)))
    assert (read.problems, read.notes) == ((), (note,))
    assert list(read.columns) == list(plain.columns)
    for name, values in plain.columns.items():
        np.testing.assert_array_equal(read.columns[name], values)
    damaged = csv_reader.parse(spelt(text + "3,x,0\n").encode())
    assert damaged.columns["global_step"].tolist() == [1, 2]
    assert len(damaged.problems) == 1


@pytest.mark.parametrize("cell", ['"1""5"', '"1,5"', '"1', '1"', "1 5"])
def test_quotes_and_blanks_make_no_number_of_two(cell: str) -> None:
    read = csv_reader.parse((HEADER + f"1,{cell},0\n2,0.5,0\n").encode())
    assert read.columns["global_step"].tolist() == [2]
    assert len(read.problems) == 1


def test_a_step_that_a_float_does_not_hold_is_damaged() -> None:
    """2^53 + 1 is read as 2^53."""
    read = csv_reader.parse((HEADER + "1,0.5,0\n9007199254740993,0.75,0\n").encode())
    assert read.columns["global_step"].tolist() == [1]
    assert "not a whole number from 0 and below 2^53" in read.problems[0]


rows = st.lists(
    st.tuples(st.integers(0, 10**7), st.floats(0, 1) | st.just(float("nan")), st.floats(-1e6, 1e6)),
    max_size=12,
    unique_by=lambda row: row[0],
).map(sorted)


@settings(deadline=None)
@given(rows=rows, data=st.data())
def test_a_file_cut_at_any_byte_keeps_its_complete_rows_and_invents_none(
    rows: list[tuple[int, float, float]], data: st.DataObject
) -> None:
    lines = ["global_step,validation/accuracy,validation/loss,preemption_count"]
    lines += [f"{step},{accuracy!r},{loss!r},0" for step, accuracy, loss in rows]
    whole = ("\n".join(lines) + "\n").encode()
    cut = data.draw(st.integers(0, len(whole)))
    read = csv_reader.parse(whole[:cut])
    complete = whole[:cut].count(b"\n") - 1
    kept = rows[: max(0, complete)]
    assert read.columns.get("global_step", np.array([])).tolist() == [row[0] for row in kept]
    if complete >= 0:
        np.testing.assert_array_equal(read.columns["validation/accuracy"], [r[1] for r in kept])
        np.testing.assert_array_equal(read.columns["validation/loss"], [row[2] for row in kept])
    at_line_end = cut > 0 and whole[cut - 1 : cut] == b"\n"
    assert bool(read.problems) == (not at_line_end)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_after_a_header_never_crash_the_reader(rest: bytes) -> None:
    read = csv_reader.parse(HEADER.encode() + rest)
    assert len(read.columns["global_step"]) <= rest.count(b"\n")
    assert (np.diff(read.columns["global_step"]) > 0).all()


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_never_crash_the_reader(content: bytes) -> None:
    csv_reader.parse(content)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=25))
def test_every_step_comes_from_the_last_attempt_that_reached_it(
    pairs: list[tuple[int, int]],
) -> None:
    """The law behind the cut: a row survives exactly if no later attempt began at or before it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["global_step", "validation/accuracy", "preemption_count"])
    writer.writerows((step, attempt, attempt) for step, attempt in pairs)
    expected = {
        (step, float(attempt))
        for step, attempt in pairs
        if not any(other > attempt and begin <= step for begin, other in pairs)
    }
    assert set(steps_and_values(out.getvalue().encode())) == expected


def test_a_loss_and_an_evaluation_at_one_step_supersede_nothing() -> None:
    """Both state the attempt: that is no value which gave way to another."""
    text = (
        "global_step,loss,validation/loss,preemption_count\n600,1.5,,0\n600,,2.5,0\n700,1.25,,0\n"
    )
    read = csv_reader.parse(text.encode())
    assert read.notes == ()
    assert list(read.columns["loss"]) == [1.5, 1.25]
    assert read.columns["validation/loss"][0] == 2.5
