"""The columnar road gives what the careful, line-by-line road gives, on files both can read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.files import columnar, lines, measurements
from analysis.files.rows import Table

METRIC, LOSS = "validation/accuracy", "loss"
NAMES = ["global_step", LOSS, METRIC, "preemption_count"]

# As Python, numpy, pandas and C write numbers; `1e400` and `+1.5` are floats to Python alone, so
# that Arrow must hand them over.
NUMBERS = st.one_of(
    st.floats().map(repr),
    st.floats(width=32).map(lambda x: f"{x:.9g}"),
    st.sampled_from(
        ["", "", "nan", "NaN", "-nan", "inf", "-Infinity", "1e400", "1e-400", "+1.5", " 2.5 ", "7"]
    ),
)
STEPS = st.integers(0, 40).map(str) | st.sampled_from(["3.0", "1e1", " 5", "9007199254740992"])
COUNTS = st.sampled_from(["", "", "0", "0", "1", "2", "1.0", "3"])
FILES = st.lists(st.tuples(STEPS, NUMBERS, NUMBERS, COUNTS), max_size=30)


def body_of(rows: list[tuple[str, ...]]) -> bytes:
    return "".join(",".join(row) + "\n" for row in rows).encode()


def check_equal(one: Table, other: Table) -> None:
    assert list(one.columns) == list(other.columns)
    for name, values in one.columns.items():
        np.testing.assert_array_equal(values, other.columns[name], err_msg=name)
        assert values.dtype == other.columns[name].dtype
    assert one.empty.keys() == other.empty.keys()
    for name, cells in one.empty.items():
        np.testing.assert_array_equal(cells, other.empty[name], err_msg=name)
    assert (one.superseded, one.disorder) == (other.superseded, other.disorder)
    assert (one.repeated, one.contradicted) == (other.repeated, other.contradicted)


@settings(deadline=None, max_examples=150)
@given(rows=FILES)
def test_both_roads_read_the_same(rows: list[tuple[str, ...]]) -> None:
    """Mixed rows, empty cells, nan, inf, steps out of order, restarts with and without counts."""
    body = body_of(rows)
    careful, damaged = lines.read(NAMES, body)
    try:
        fast = columnar.read(NAMES, body)
    except columnar.NotColumnarError:
        return
    assert damaged == []
    check_equal(fast, careful)


PLAIN = st.lists(
    st.tuples(
        st.integers(0, 12).map(str),
        st.floats(-1e300, 1e300).map(repr) | st.sampled_from(["", "nan", "inf"]),
        st.floats(0, 1).map(repr) | st.just(""),
        st.sampled_from(["", "0", "1", "2"]),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=100)
@given(rows=PLAIN)
def test_no_file_of_plain_numbers_needs_the_careful_road(rows: list[tuple[str, ...]]) -> None:
    body = body_of(rows)
    check_equal(columnar.read(NAMES, body), lines.read(NAMES, body)[0])


@settings(deadline=None, max_examples=100)
@given(body=st.text("0123456789.,-+einfaNx_(\r\n \t\0é\"'", max_size=60).map(str.encode))
def test_what_the_columnar_road_reads_the_careful_road_reads_so_too(body: bytes) -> None:
    body = body[: body.rfind(b"\n") + 1]
    try:
        fast = columnar.read(NAMES[:2], body)
    except columnar.NotColumnarError:
        return
    careful, damaged = lines.read(NAMES[:2], body)
    assert damaged == []
    check_equal(fast, careful)


@pytest.mark.parametrize(
    "body",
    ["1,,0.5\n", "1,0.5,0.5,0,0\n", "x,0.5,,0\n", "1.5,,,0\n", ",,,0\n", "1,,,nan\n", "1,(,,0\n",
     "1,nan(7),,0\n", "1,,\r,0\n", "\n", "1,1_0,,\n", "-1,,,\n", "1,,,1e18\n"],
)  # fmt: skip
def test_a_line_that_is_no_row_of_numbers_is_handed_over(body: str) -> None:
    with pytest.raises(columnar.NotColumnarError):
        columnar.read(NAMES, body.encode())


def test_a_long_file_of_losses_and_evaluations_is_one_table() -> None:
    """An evaluation every 1,000 steps beside losses every 10, restarted once at 50,000."""
    rows = []
    for attempt, steps in enumerate((range(10, 60_010, 10), range(50_010, 100_010, 10))):
        for step in steps:
            rows.append((str(step), f"{1 / step!r}", "", ""))
            if step % 1000 == 0:
                rows.append((str(step), "", f"{step / 1e6!r}", str(attempt)))
    read = measurements.parse((",".join(NAMES) + "\n").encode() + body_of(rows))
    assert read.problems == ()
    assert read.columns["global_step"].tolist() == list(range(10, 100_010, 10))
    evaluated = np.isfinite(read.columns[METRIC])
    assert evaluated.sum() == 100
    np.testing.assert_array_equal(
        read.columns[METRIC][evaluated], read.columns["global_step"][evaluated] / 1e6
    )
    assert read.notes[0] == "1010 rows superseded by later ones"


def test_a_name_twice_in_the_header_is_said() -> None:
    read = measurements.parse(b"global_step,loss,loss\n1,2,3\n")
    assert read.columns["loss"].tolist() == [3]
    assert read.problems == ("duplicated in its header: 'loss'; the last that is filled counts",)


def test_lines_out_of_order_within_an_attempt_are_said() -> None:
    read = measurements.parse(b"global_step,loss,preemption_count\n2,5,0\n1,6,0\n3,4,0\n")
    assert read.columns["loss"].tolist() == [6, 5, 4]
    assert read.notes == ("1 line out of order, put in order of attempts and steps",)


def test_files_read_together_are_read_as_one_by_one(tmp_path) -> None:
    """Two headers, one file damaged, one cut, one without rows, one not there."""
    head, other = ",".join(NAMES), "global_step,loss"
    texts = [
        f"{head}\n1,2.5,0.5,0\n2,,0.75,0\n1,,0.25,1\n",
        f"{head}\r\n3,2.5,0.5,0\r\n",
        f"{head}\n",
        f"{other}\n1,2\n",
        f"{other}\n1,x\n2,3\n",
        f"{head}\n1,2.5,0.5,0\n2,2.",
        None,
        "",
    ]
    paths = [tmp_path / f"{index}.csv" for index in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        if text is not None:
            path.write_bytes(text.encode())
    together = measurements.read_each(paths)
    assert isinstance(together[6], FileNotFoundError)
    for path, read in zip(paths[:6] + paths[7:], together[:6] + together[7:], strict=True):
        alone = measurements.read(path)
        assert (read.problems, read.notes) == (alone.problems, alone.notes)
        check_equal(Table(read.columns, read.empty), Table(alone.columns, alone.empty))
    assert together[0].columns[METRIC].tolist() == [0.25]


def test_rows_of_one_file_do_not_keep_those_of_others_in_memory() -> None:
    bodies = [body_of([("1", "2", "3", "0")]), body_of([("1", "4", "5", "0"), ("2", "", "", "")])]
    first, second = columnar.read_each(NAMES, bodies)
    assert first.columns[LOSS].base.size == len(NAMES)
    assert second.columns[LOSS].tolist() == pytest.approx([4, np.nan], nan_ok=True)
