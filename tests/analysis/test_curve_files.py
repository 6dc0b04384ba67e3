"""Curves that stay in their files: read when asked for, once, in bounded memory."""

import pathlib

import numpy as np
import pytest

from analysis.load.files import curves, trial_files
from analysis.load.files.curves import ChangedFileError, CurveCache, CurveFile

TEXT = "global_step,validation/wer,preemption_count\n1,0.5,0\n2,0.25,0\n3,nan,0\n4,0.25,0\n"


class Loads:
    """Reads a file and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, path: pathlib.Path):
        self.count += 1
        return trial_files.load_rows(path)


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "eval_measurements.csv"
    path.write_text(TEXT)
    return path


def test_a_file_is_read_when_asked_for_and_once(file) -> None:
    loads = Loads()
    lazy = CurveFile(file, loads, CurveCache())
    assert loads.count == 0
    assert lazy["validation/wer"].tolist()[:2] == [0.5, 0.25]
    assert list(lazy) == ["global_step", "validation/wer", "preemption_count"]
    assert (len(lazy), lazy.last_step, "test/wer" in lazy) == (3, 4, False)
    assert curves.best_index(lazy, "validation/wer", "min") == 1
    assert loads.count == 1


def test_what_was_read_need_not_be_read_again_for_its_best_and_last_row(file) -> None:
    loads, cache = Loads(), CurveCache(limit=0)
    lazy = CurveFile(file, loads, cache)
    lazy.accept(trial_files.load_rows(file))
    assert curves.last_row(lazy) == {
        "global_step": 4, "validation/wer": 0.25, "preemption_count": 0}  # fmt: skip
    assert (loads.count, cache.size) == (0, 0)
    assert curves.best_index(lazy, "validation/wer", "max") == 0
    read = loads.count
    assert curves.best_index(lazy, "validation/wer", "max") == 0
    assert curves.row(lazy, 0)["validation/wer"] == 0.5
    assert loads.count == read


def test_plain_columns_answer_the_same(file) -> None:
    columns = trial_files.load_rows(file)
    lazy = CurveFile(file, trial_files.load_rows, CurveCache())
    for mode in ("min", "max"):
        assert curves.best_index(columns, "validation/wer", mode) == curves.best_index(
            lazy, "validation/wer", mode
        )
    assert curves.row(columns, 1) == curves.row(lazy, 1)
    assert curves.last_row(columns) == curves.last_row(lazy)
    assert curves.last_step({}) is None
    assert curves.last_row({}) is None


def test_the_cache_forgets_the_file_used_longest_ago() -> None:
    columns = {"loss": np.zeros(100)}
    cache = CurveCache(limit=1700)
    for name in ("a", "b"):
        cache.get(pathlib.Path(name), lambda: columns)
    cache.get(pathlib.Path("a"), lambda: pytest.fail("a is kept"))
    cache.get(pathlib.Path("c"), lambda: columns)
    cache.get(pathlib.Path("a"), lambda: pytest.fail("a was used last"))
    assert cache.size == 1600
    with pytest.raises(KeyError):
        cache.get(pathlib.Path("b"), lambda: {}["b is forgotten"])


def test_rows_that_a_running_trial_adds_are_left_out(file) -> None:
    curves = CurveFile(file, trial_files.load_rows, CurveCache(limit=0))
    assert curves.last_step == 4
    file.write_text(TEXT + "5,0.125,0\n")
    assert curves["global_step"].tolist() == [1, 2, 3, 4]


def test_a_file_that_was_rewritten_meanwhile_is_refused(file) -> None:
    curves = CurveFile(file, trial_files.load_rows, CurveCache(limit=0))
    assert curves.last_step == 4
    file.write_text(TEXT.replace("2,0.25,0\n", ""))
    with pytest.raises(ChangedFileError, match="rewritten while it was read"):
        curves["global_step"]


def test_a_curve_that_others_share_cannot_be_written(file) -> None:
    curves = CurveFile(file, trial_files.load_rows, CurveCache())
    with pytest.raises(ValueError, match="read-only"):
        curves["validation/wer"][:] = 1


def test_a_missing_file_of_losses_has_no_columns(tmp_path) -> None:
    assert CurveFile(tmp_path / "nothing.csv", trial_files.load_rows) == {}
