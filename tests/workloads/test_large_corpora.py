"""C4 and Wikipedia: from TFDS directories and MLPerf's text files to records, also after a kill."""

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sweeps.waiting import wait
from tests.workloads import data_files
from tests.workloads.conftest import REPOSITORY, check_records, sentences, write_text_dataset
from workloads.base.errors import DataError
from workloads.storage import tokenizer
from workloads.text.corpora import large_corpora

PREPARE = """
import dataclasses, sys
from workloads.text.corpora import large_corpora
corpus = dataclasses.replace(large_corpora.WIKIPEDIA, vocab_size=330, length=16)
if __name__ == "__main__":
    corpus.prepare(sys.argv[1], sys.argv[2], processes=2)
"""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fabricated data sets are smaller than an evaluation."""
    fewest = dict.fromkeys(large_corpora.SPLITS, 1)
    for name, corpus in (("C4", large_corpora.C4), ("WIKIPEDIA", large_corpora.WIKIPEDIA)):
        small = dataclasses.replace(corpus, vocab_size=330, length=16, documents=100, fewest=fewest)
        monkeypatch.setattr(large_corpora, name, small)


@pytest.fixture
def data(tmp_path: Path, spm_model: bytes) -> Path:
    """A folder with a vocabulary in it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "spm.model").write_bytes(spm_model)
    return tmp_path / "data"


@pytest.fixture
def articles() -> list[list[str]]:
    """Five files of 12 articles, each of one to three sentences."""
    files = [sentences(24, number) for number in range(5)]
    return [["\n".join(lines[i : i + 1 + i % 3]) for i in range(12)] for lines in files]


@pytest.fixture
def mlperf(tmp_path: Path, articles: list[list[str]]) -> Path:
    """Four parts and the evaluation file."""
    tree = tmp_path / "results4"
    tree.mkdir()
    names = [f"part-0000{number}-of-00004" for number in range(4)] + ["eval.txt"]
    for name, documents in zip(names, articles, strict=True):
        (tree / name).write_text("\n\n".join(documents) + "\n")
    return tree


def _splits(articles: list[list[str]]) -> dict[str, list[list[str]]]:
    return {"train": articles[:3], "validation": articles[3:4], "test": articles[4:]}


def test_mlperf_files_to_records(data: Path, mlperf: Path, articles: list[list[str]]) -> None:
    large_corpora.WIKIPEDIA.prepare(data, mlperf, processes=1)
    check_records(data, _splits(articles))
    lines = large_corpora.WIKIPEDIA.check(data, full=True)
    assert lines[0] == "made from MLPerf's text files, vocabulary given"
    assert "36 documents" in lines[2]


def test_tfds_to_records(
    data: Path,
    tmp_path: Path,
    articles: list[list[str]],
) -> None:
    tree = tmp_path / "tree"
    write_text_dataset(tree, "wikipedia/20220620.en:1.0.0", {"train": [["old"]] * 3})
    write_text_dataset(tree, "wikipedia/20230601.de:1.0.0", {"train": [["alt"]] * 3})
    place = write_text_dataset(tree, "wikipedia/20230601.en:1.0.0", {"train": articles}).parent
    write_text_dataset(tree, "wikipedia/20230601.en:0.9.0", {"train": [["old"]] * 3})
    (place / "1.9.0").mkdir()  # half prepared
    large_corpora.WIKIPEDIA.prepare(data, tree, processes=1)
    check_records(data, _splits(articles))
    assert large_corpora.WIKIPEDIA.check(data)[0].startswith(
        "made from wikipedia/20230601.en:1.0.0"
    )


def test_blank_lines_part_documents(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"\n one \r\ntwo\n\n \nthree\n\n")
    documents = list(large_corpora.mlperf_documents(tmp_path / "part", "repair"))
    assert documents == ["one\ntwo", "three"]
    (tmp_path / "part").write_bytes(b"one\n\xff\n")
    with pytest.raises(DataError, match="part: line 2 is no UTF-8"):
        list(large_corpora.mlperf_documents(tmp_path / "part", "repair"))


def test_killed_in_the_middle_it_leaves_no_process_and_goes_on(
    data: Path, mlperf: Path, articles: list[list[str]], tmp_path: Path
) -> None:
    """One part is a pipe that nothing comes through: the preparation waits there until it dies."""
    pipe = mlperf / "part-00001-of-00004"
    content = pipe.read_bytes()
    pipe.unlink()
    os.mkfifo(pipe)
    script = tmp_path / "prepare.py"
    script.write_text(PREPARE)
    running = subprocess.Popen(
        [sys.executable, script, data, mlperf],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait(lambda: len(list((data / ".progress").glob("*/*.json"))) == 4, "four shards")
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    finally:
        running.kill()
        running.wait()
    assert children
    wait(lambda: not any(Path(f"/proc/{child}/exe").exists() for child in children), "all ended")
    assert not (data / "tokens.json").exists()
    finished = {path: path.stat().st_mtime_ns for path in data.glob("*/*.arrow")}
    assert len(finished) == 4
    pipe.unlink()
    pipe.write_bytes(content)
    large_corpora.WIKIPEDIA.prepare(data, mlperf, processes=1)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    check_records(data, _splits(articles))


def _tfds(articles: list[list[str]]) -> Callable[[Path], object]:
    """Returns what adds a TFDS directory."""
    name = "wikipedia/20230601.en:1.0.0"
    return lambda tree: write_text_dataset(tree, name, {"train": articles})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tree: (tree / "part-00002-of-00004").unlink(), "part-00002-of-00004 is missing"),
        (lambda tree: (tree / "eval.txt").unlink(), "eval.txt is missing"),
        (shutil.rmtree, "no Wikipedia is there. Looked for: TFDS folders such as"),
        (lambda tree: (tree / "part-00000-of-00002").write_text("a\n"), "or of another set"),
        (_tfds([["a"]] * 3), "20230601.en/1.0.0 and MLPerf's part-00000"),
        (lambda tree: (shutil.rmtree(tree), _tfds([["a"], ["b"]])(tree)), "has 2 files; three"),
    ],
)
def test_trees_that_cannot_be_taken_are_refused(
    data: Path, mlperf: Path, change: Callable[[Path], object], words: str
) -> None:
    change(mlperf)
    with pytest.raises(DataError) as caught:
        large_corpora.WIKIPEDIA.prepare(data, mlperf)
    for part in (str(mlperf), words, "python -m workloads prepare wikipedia_bert"):
        assert part in str(caught.value)


TRAIN = "c4-train.tfrecord-0000{}-of-00004"


@pytest.fixture(scope="module")
def texts() -> dict[str, list[list[str]]]:
    """Four shards of train, two of validation, with a line break and a letter of two bytes."""
    train = [sentences(60, shard) for shard in range(4)]
    train[0][3] = "the cat\nsat là"
    return {"train": train, "validation": [sentences(20, 8), sentences(20, 9)]}


@pytest.fixture
def tree(made_once: Callable[..., Path], texts: dict[str, list[list[str]]]) -> Path:
    return made_once("c4", lambda folder: write_text_dataset(folder, "c4/en:3.0.1", texts))


@pytest.fixture
def whole(made_once: Callable[..., Path], tree: Path) -> Path:
    return made_once(
        "c4_records", lambda folder: large_corpora.C4.prepare(folder, tree, processes=1)
    )


def test_records_are_the_documents(whole: Path, texts: dict[str, list[list[str]]]) -> None:
    assert {str(path.relative_to(whole)) for path in whole.glob("*/*.arrow")} == {
        *(f"train/data-0000{number}-of-00003.arrow" for number in range(3)),
        "validation/data-00000-of-00001.arrow",
        *("test/data-00000-of-00002.arrow", "test/data-00001-of-00002.arrow"),
    }
    splits = {
        "train": texts["train"][:3],
        "validation": texts["train"][3:],
        "test": texts["validation"],
    }
    check_records(whole, splits)
    first = [text for shard in texts["train"][:3] for text in shard][:100]
    model = tokenizer.train(first, 330, byte_fallback=True, num_threads=16)
    assert (whole / "spm.model").read_bytes() == model
    assert "trained on the first 100 documents of train" in large_corpora.C4.check(whole)[0]


def test_a_vocabulary_of_the_right_size_is_used(
    tree: Path, tmp_path: Path, spm_model: bytes
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "spm.model").write_bytes(spm_model)
    large_corpora.C4.prepare(tmp_path / "data", tree, processes=1)
    assert (tmp_path / "data" / "spm.model").read_bytes() == spm_model
    assert (
        large_corpora.C4.check(tmp_path / "data", full=True)[0]
        == "made from c4/en:3.0.1, vocabulary given"
    )
    large = dataclasses.replace(large_corpora.C4, vocab_size=32_000)
    (tmp_path / "data" / "tokens.json").unlink()
    with pytest.raises(DataError, match=r"spm\.model has 330 pieces; 32000 are needed"):
        large.prepare(tmp_path / "data", tree)


def test_processes_and_place_change_nothing(
    tree: Path, whole: Path, tmp_path: Path, texts: dict[str, list[list[str]]]
) -> None:
    """Where data and tree lie in one folder. What is finished is left alone."""
    shutil.copytree(tree / "c4", tmp_path / "data" / "c4")
    data = tmp_path / "data"
    large_corpora.C4.prepare(data, processes=3)
    shutil.rmtree(data / "c4")
    assert data_files.contents(data) == data_files.contents(whole)
    assert large_corpora.C4.describe(data) == large_corpora.C4.describe(whole)
    with pytest.raises(DataError, match="of 16 tokens out of 330 .*; 1024 tokens out of"):
        dataclasses.replace(large_corpora.C4, length=1024).check(data)
    before = {path: path.stat().st_mtime_ns for path in data.iterdir()}
    large_corpora.C4.prepare(data, tmp_path / "nowhere")
    changed = [path.name for path in before if before[path] != path.stat().st_mtime_ns]
    assert set(changed) <= {data_files.LOCK}
    (data / "tokens.json").write_text("{")
    with pytest.raises(DataError, match=r"tokens\.json cannot be read.*\n.*prepare c4_lm"):
        large_corpora.C4.prepare(data, tree)
    train = [list(reversed(texts["train"][0])), *texts["train"][1:]]
    write_text_dataset(tmp_path / "other", "c4/en:3.0.1", {**texts, "train": train})
    large_corpora.C4.prepare(tmp_path / "others", tmp_path / "other", processes=1)
    assert large_corpora.C4.describe(tmp_path / "others") != large_corpora.C4.describe(whole)


def test_a_damaged_shard_stops_it_and_it_goes_on_after_repair(
    tree: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tree, tmp_path / "tree")
    shard = tmp_path / "tree" / "c4" / "en" / "3.0.1" / TRAIN.format(2)
    data_files.flip(shard, 500)
    data = tmp_path / "data"
    with pytest.raises(DataError, match=rf"{TRAIN.format(2)}: record \d+ at byte \d+"):
        large_corpora.C4.prepare(data, tmp_path / "tree", processes=1)
    with pytest.raises(DataError, match=r"data/tokens\.json does not exist"):
        large_corpora.C4.check(data)
    finished = {path: path.stat().st_mtime_ns for path in data.glob("*/*.arrow")}
    assert len(finished) == 2
    data_files.flip(shard, 500)
    # Shards of another length are no part of the data.
    shutil.copytree(data, tmp_path / "shorter")
    capsys.readouterr()
    shorter = dataclasses.replace(large_corpora.C4, length=8)
    shorter.prepare(tmp_path / "shorter", tmp_path / "tree", processes=1)
    assert "are there already" not in capsys.readouterr().err
    large_corpora.C4.prepare(data, tmp_path / "tree", processes=1)
    assert "2 of 6 shards are there already" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert data_files.contents(data) == data_files.contents(whole)


def test_missing_data_is_named_with_its_command(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        large_corpora.C4.prepare(tmp_path / "data", tmp_path / "tree")
    for part in (
        str(tmp_path / "tree" / "c4" / "en"),
        "c4-train.tfrecord-00000-of-01024",
        f"python -m workloads prepare c4_lm --data_dir={tmp_path / 'data'} --from=TREE",
    ):
        assert part in str(caught.value)
    with pytest.raises(DataError, match="python -m workloads prepare c4_lm"):
        large_corpora.C4.check(tmp_path / "nowhere")


def test_one_shard_cannot_give_a_validation_split(tmp_path: Path) -> None:
    write_text_dataset(tmp_path, "c4/en:3.1.0", {"train": [["a"] * 9], "validation": [["b"]]})
    with pytest.raises(DataError, match="has one shard; two are needed"):
        large_corpora.C4.prepare(tmp_path / "data", tmp_path)
