"""Both ways of making numbers of a file give the same, and the order is that of a plain reading."""

import codecs
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.load.files import csv_reader
from analysis.load.files.measurements import Measurements

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


def header_of(names: list[str]) -> bytes:
    return (",".join(names) + "\n").encode()


def check_equal(one: Measurements, other: Measurements) -> None:
    assert list(one.columns) == list(other.columns)
    for name, values in one.columns.items():
        np.testing.assert_array_equal(values, other.columns[name], err_msg=name)
        assert values.dtype == other.columns[name].dtype
    assert one.empty.keys() == other.empty.keys()
    for name, cells in one.empty.items():
        np.testing.assert_array_equal(cells, other.empty[name], err_msg=name)
    assert (one.problems, one.notes) == (other.problems, other.notes)


def by_arrow(names: list[str], body: bytes) -> Measurements | None:
    """None where the file is handed over."""
    try:
        return csv_reader._rows(names, csv_reader._arrow_cells(names, body), ())
    except csv_reader._NotNumbersError:
        return None


def by_line(names: list[str], body: bytes) -> Measurements:
    cells, damaged = csv_reader._line_cells(names, body)
    return csv_reader._rows(names, cells, (), tuple(damaged))


def plainly(body: bytes) -> dict[int, dict[str, float]]:
    """Step to cells, read row by row: an attempt is cut where a later one begins."""
    rows: list[tuple[int, int, dict[str, float]]] = []
    for line in body.decode().splitlines():
        if line.startswith(str(2**53)):  # no step: a float does not hold every number from there on
            continue
        cells = {n: float(c) for n, c in zip(NAMES, line.split(","), strict=True) if c}
        step = int(cells["global_step"])
        before = rows[-1] if rows else None
        continued = before[1] + (step < before[0]) if before else 0
        rows.append((step, int(cells.get("preemption_count", continued)), cells))
    found: dict[int, dict[str, float]] = {}
    for step, attempt, cells in rows:
        later = (other for other, number, _ in rows if number > attempt)
        if step < min(later, default=math.inf):
            found[step] = found.get(step, {}) | cells
    return dict(sorted(found.items()))


@settings(deadline=None, max_examples=150)
@given(rows=FILES)
def test_both_ways_read_the_same_and_in_the_order_of_a_plain_reading(rows) -> None:
    """Mixed rows, empty cells, nan, inf, steps out of order, restarts with and without counts."""
    body = body_of(rows)
    careful = by_line(NAMES, body)
    fast = by_arrow(NAMES, body)
    if fast is not None:
        check_equal(fast, careful)
    expected = plainly(body)
    assert careful.columns["global_step"].tolist() == list(expected)
    for name in NAMES[1:]:
        values = [cells.get(name, math.nan) for cells in expected.values()]
        np.testing.assert_array_equal(careful.columns[name], values)


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
def test_no_file_of_plain_numbers_is_read_line_by_line(rows: list[tuple[str, ...]]) -> None:
    body = body_of(rows)
    fast = by_arrow(NAMES, body)
    assert fast is not None
    check_equal(fast, by_line(NAMES, body))


@settings(deadline=None, max_examples=100)
@given(body=st.text("0123456789.,-+einfaNx_(\r\n \t\0é\"'", max_size=60).map(str.encode))
def test_what_arrow_reads_is_read_so_line_by_line(body: bytes) -> None:
    body = body[: body.rfind(b"\n") + 1]
    fast = by_arrow(NAMES[:2], body)
    if fast is not None:
        check_equal(fast, by_line(NAMES[:2], body))


@pytest.mark.parametrize(
    "body",
    ["1,,0.5\n", "1,0.5,0.5,0,0\n", "x,0.5,,0\n", "1.5,,,0\n", ",,,0\n", "1,,,nan\n", "1,(,,0\n",
     "1,nan(7),,0\n", "1,,\r,0\n", "\n", "1,1_0,,\n", "-1,,,\n", "1,,,1e18\n"],
)  # fmt: skip
def test_a_line_that_is_no_row_of_numbers_is_handed_over(body: str) -> None:
    assert by_arrow(NAMES, body.encode()) is None


def test_a_long_file_of_losses_and_evaluations_is_one_table() -> None:
    """An evaluation every 1,000 steps beside losses every 10, restarted once at 50,000."""
    rows = []
    for attempt, steps in enumerate((range(10, 60_010, 10), range(50_010, 100_010, 10))):
        for step in steps:
            rows.append((str(step), f"{1 / step!r}", "", ""))
            if step % 1000 == 0:
                rows.append((str(step), "", f"{step / 1e6!r}", str(attempt)))
    read = csv_reader.parse((",".join(NAMES) + "\n").encode() + body_of(rows))
    assert read.problems == ()
    assert read.columns["global_step"].tolist() == list(range(10, 100_010, 10))
    evaluated = np.isfinite(read.columns[METRIC])
    assert evaluated.sum() == 100
    np.testing.assert_array_equal(
        read.columns[METRIC][evaluated], read.columns["global_step"][evaluated] / 1e6
    )
    assert read.notes[0] == "1010 rows superseded by later ones"


def test_a_name_twice_in_the_header_is_said() -> None:
    read = csv_reader.parse(b"global_step,loss,loss\n1,2,3\n")
    assert read.columns["loss"].tolist() == [3]
    assert read.problems == ("duplicated in its header: 'loss'; the last that is filled counts",)


def test_lines_out_of_order_within_an_attempt_are_said() -> None:
    read = csv_reader.parse(b"global_step,loss,preemption_count\n2,5,0\n1,6,0\n3,4,0\n")
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
    together = csv_reader.read_each(paths)
    assert isinstance(together[6], FileNotFoundError)
    for path, read in zip(paths[:6] + paths[7:], together[:6] + together[7:], strict=True):
        alone = csv_reader.read(path)
        check_equal(read, alone)
    assert together[0].columns[METRIC].tolist() == [0.25]


@pytest.mark.parametrize("mark", [codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE])
def test_utf_16_is_read_as_other_programs_save_it(mark) -> None:
    """PowerShell's `>` writes it, with a byte order mark and two bytes to an end of line."""
    text = "global_step,validation/loss\r\n100,2.5\r\n200,2.25\r\n"
    encoding = "utf-16-le" if mark == codecs.BOM_UTF16_LE else "utf-16-be"
    found = csv_reader.parse(mark + text.encode(encoding))
    assert found.problems == ()
    assert found.columns["global_step"].tolist() == [100, 200]
    assert found.columns["validation/loss"].tolist() == [2.5, 2.25]


def test_rows_of_one_file_do_not_keep_those_of_others_in_memory(tmp_path) -> None:
    bodies = [body_of([("1", "2", "3", "0")]), body_of([("1", "4", "5", "0"), ("2", "", "", "")])]
    paths = [tmp_path / "one.csv", tmp_path / "other.csv"]
    for path, body in zip(paths, bodies, strict=True):
        path.write_bytes(header_of(NAMES) + body)
    first, second = csv_reader.read_each(paths)
    assert first.columns[LOSS].base.size == len(NAMES)
    assert second.columns[LOSS].tolist() == pytest.approx([4, np.nan], nan_ok=True)
