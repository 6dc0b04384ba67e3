"""The Hub's Parquet files into local questions, and what is wrong with local questions."""

import itertools
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.workloads import data_files, fabricated_rows
from tests.workloads.conftest import WORDS
from workloads import __main__ as commands
from workloads.base.errors import DataError
from workloads.downstream import conversion, local_data, suites
from workloads.downstream.conversion import DATA_SETS

# Files of a split: in a repository, alone, and in its branch refs/convert/parquet.
NAMES = (
    ("{}-00000-of-00002.parquet", "{}-00001-of-00002.parquet"),
    ("{}.parquet",),
    ("{}/0000.parquet", "{}/0001.parquet"),
)


def _write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def test_parquet_as_the_hub_has_it(tmp_path):
    """Rows of every data set, in their order, without columns that no task reads."""
    writer, tree, data_dir = fabricated_rows.Writer(WORDS), tmp_path / "tree", tmp_path / "data"
    wanted = {}
    for (name, data_set), files in zip(DATA_SETS.items(), itertools.cycle(NAMES)):
        for split in data_set.splits:
            wanted[name, split] = []
            for number, file in enumerate(files):
                rows = [writer.row(name) for _ in range(2)]
                wanted[name, split] += rows
                path = tree / data_set.folders[-1] / file.format(split)
                _write(path, [{**row, "idx": 9 - number} for row in rows])
                path.with_name(f"._{path.name}").write_bytes(b"\x00\x05\x16\x07")
    lines = conversion.prepare(tree, data_dir)
    assert len(lines) == len(DATA_SETS)
    for (name, split), rows in wanted.items():
        assert local_data.read(data_dir, name, split) == rows
    assert "wsc273: 2 test, from winograd_wsc/wsc273/test.parquet" in lines
    local_data.rows_path(data_dir, "wsc273", "._test").write_bytes(b"\x00\x05\x16\x07")
    (split,) = local_data.lm_eval_dataset(data_dir, "wsc273")
    assert split == "test"


@pytest.mark.parametrize(
    ("columns", "files", "message"),
    [
        (
            (),
            {"train.jsonl": b"{}"},
            "(?s)super_glue/cb/SPLIT-.*.parquet.*hf download.*--local-dir={tree}",
        ),
        (("premise", "label"), {}, "cb: {tree}/super_glue/cb/train.parquet.*hypothesis"),
        (("premise", "hypothesis", "label"), {}, "cb: .*validation"),
        (
            ("premise", "hypothesis", "label"),
            {"validation.parquet": b"PAR1"},
            "cb: {tree}/super_glue/cb/validation.parquet",
        ),
        ((), {}, "{tree} is no directory"),
    ],
)
def test_trees_that_cannot_be_converted(tmp_path, columns, files, message):
    """columns: of cb's Parquet file of train, if there is one. files: others beside it."""
    tree = tmp_path / "tree"
    if columns:
        _write(tree / "super_glue/cb/train.parquet", [dict.fromkeys(columns, 0)])
    for name, content in files.items():
        path = tree / "super_glue/cb" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    with pytest.raises(DataError, match=message.format(tree=re.escape(str(tree)))):
        conversion.prepare(tree, tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.fixture
def whole(tmp_path):
    suite = suites.get("superglue")
    fabricated_rows.write(tmp_path, suite, WORDS)
    return tmp_path, fabricated_rows.fabricated(suite)


def test_what_lacks_is_named_with_its_remedy(whole):
    data_dir, suite = whole
    suites.check_data(suite, data_dir, full=True)
    with pytest.raises(DataError, match="3 questions; the published figures are of 100"):
        suites.check_data(suites.get("superglue"), data_dir)
    with pytest.raises(DataError, match=r"(?s)has no arc_easy/test.jsonl, .*prepare downstream"):
        suites.check_data(suites.get("paper_diff"), data_dir)
    path = local_data.rows_path(data_dir, "wic", "validation")
    content = path.read_text()
    path.write_text(content.replace("0", "1", 1))
    suites.check_data(suite, data_dir)
    for damage, full in (
        (data_files.written(content.replace("0", "1", 1)), True),
        (data_files.written(content + "\n"), False),
        (Path.unlink, False),
    ):
        damage(path)
        with pytest.raises(DataError, match="wic/validation.jsonl is missing, cut short or chan"):
            suites.check_data(suite, data_dir, full=full)
    (local_data.folder(data_dir) / "tasks.json").write_text('{"format": "other"}')
    with pytest.raises(DataError, match="its format is 'other'"):
        suites.check_data(suite, data_dir)


def test_every_suite_names_its_metric_and_the_papers_number():
    with pytest.raises(ValueError, match=r"unknown suite 'pydocs'.*Did you mean 'pydoc'"):
        suites.get("pydocs")
    assert set(suites.names()) == {
        "paper_one_shot",
        "paper_7b",
        "paper_diff",
        "superglue",
        *(f"superglue_{task}" for task in ("copa", "wic", "wsc", "rte")),
        "pydoc",
        "pydoc_returns",
    }
    for name in suites.names():
        for task in suites.get(name).tasks:
            assert (task.entry.n is None) == suites.get(name).embedded
            assert bool(task.paper) == (not suites.get(name).embedded)
            assert not (task.entry.partial and task.primary != "acc")


def test_an_absent_harness_is_named(monkeypatch):
    monkeypatch.setattr(suites, "HARNESS", "no-harness")
    with pytest.raises(ValueError, match=r"no-harness.*attnperf\[downstream\].*installed: none"):
        suites.check_harness()


def test_commands(tmp_path, capsys):
    """Another number of questions than the paper's is refused, a part of the suites is enough."""
    writer = fabricated_rows.Writer(WORDS)
    arguments = ["--data_dir", str(tmp_path / "data")]
    for line, words in (
        (["check", "downstream"], "give --data_dir"),
        (["check", "downstream", *arguments], "no questions are prepared there"),
        (["prepare", "downstream", *arguments], "tokens.json does not exist"),
    ):
        assert commands.main(line) == 2
        assert words in capsys.readouterr().err
    arguments += ["--from", str(tmp_path / "tree")]
    for n, message in ((55, "has 55 questions; .* of 56"), (56, "has no arc_easy/test.jsonl")):
        for split, count in (("train", 3), ("validation", n)):
            _write(tmp_path / f"tree/super_glue/cb/{split}.parquet", [writer.row("cb")] * count)
        assert commands.main(["prepare", "downstream", *arguments]) == 2
        output = capsys.readouterr()
        assert re.search(message, output.err)
        assert f"cb: 3 train, {n} validation" in output.out
