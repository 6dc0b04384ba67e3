"""Wikipedia: TFDS directories and MLPerf's text files; a preparation that is killed goes on."""

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sweeps.waiting import wait
from tests.workloads.conftest import REPOSITORY, check_records, sentences, write_text_dataset
from workloads.base.errors import DataError
from workloads.text.corpora import large_corpora, token_preparation

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
    fewest = dict.fromkeys(token_preparation.SPLITS, 1)
    small = dataclasses.replace(large_corpora.WIKIPEDIA, vocab_size=330, length=16, fewest=fewest)
    monkeypatch.setattr(large_corpora, "WIKIPEDIA", small)


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
    documents = list(token_preparation.mlperf_documents(tmp_path / "part", "repair"))
    assert documents == ["one\ntwo", "three"]
    (tmp_path / "part").write_bytes(b"one\n\xff\n")
    with pytest.raises(DataError, match="part: line 2 is no UTF-8"):
        list(token_preparation.mlperf_documents(tmp_path / "part", "repair"))


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
