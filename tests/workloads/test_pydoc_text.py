"""Python's documentation as records, and questions about it."""

import ast
import dataclasses
import gc
import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.workloads.conftest import few_sources
from workloads.base.errors import DataError
from workloads.downstream import local_data, pydoc_questions, suites
from workloads.downstream.tokens import Tokens
from workloads.storage import token_records, tokenizer
from workloads.text.corpora import pydoc_text


@pytest.fixture(scope="module")
def prepared(made_once: Callable[..., Path]) -> Path:
    return made_once("pydoc", pydoc_text.PYDOC.prepare)


@pytest.fixture(scope="module")
def documents() -> list[pydoc_text.Document]:
    return pydoc_text.documents()


@pytest.mark.slow
def test_records_are_the_text(prepared: Path, documents: list[pydoc_text.Document]) -> None:
    processor = tokenizer.load(prepared / "spm.model")
    sizes = {"train": 6800, "validation": 800, "test": 800}
    for split, part in pydoc_text.split_documents(documents).items():
        source = token_records.open_split(prepared, split, "")
        assert (len(source), source.length, source.vocabulary) == (sizes[split], 64, 1024)
        first = processor.encode(part[0].text)
        records = pydoc_text.PYDOC.records(prepared)[split].ravel()
        assert records[: len(first) + 1].tolist() == [*first, tokenizer.EOS]


@pytest.mark.slow
def test_no_document_and_no_paragraph_is_in_two_splits(
    documents: list[pydoc_text.Document],
) -> None:
    parts = pydoc_text.split_documents(documents)
    assert sorted(document.name for part in parts.values() for document in part) == sorted(
        document.name for document in documents
    )
    lines = {
        split: {line.lower() for document in part for line in document.text.splitlines()}
        for split, part in parts.items()
    }
    assert not lines["train"] & (lines["validation"] | lines["test"])
    assert not lines["validation"] & lines["test"]
    sizes = {split: sum(len(document.text) for document in part) for split, part in parts.items()}
    total = sum(sizes.values())
    assert 0.1 <= sizes["test"] / total < 0.13
    assert 0.07 < sizes["validation"] / total < 0.13


@pytest.mark.slow
def test_the_corpus_holds_topics_and_docstrings(documents: list[pydoc_text.Document]) -> None:
    texts = {document.name: document.text for document in documents}
    assert "insert debugging assertions into a program" in texts["topic:assert"]
    assert texts["json/__init__.py"].startswith("JSON (JavaScript Object Notation)")
    assert not [name for name in texts if name.startswith(("test/", "idlelib/", "site-packages/"))]


def test_docstrings_in_order_without_indentation() -> None:
    source = b'''"""Module.

    Indented.
    """
class A:
    """Class."""
    def f(self):
        """Method
        continues."""
        def g(): "inner"
async def h(): "last"
x = "no docstring"
'''
    assert pydoc_text.docstrings(source) == [
        "Module.\n\nIndented.",
        "Class.",
        "Method\ncontinues.",
        "inner",
        "last",
    ]


def test_no_garbage_is_collected_while_python_parses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer might parse, too."""
    parse, states = ast.parse, []

    def note(source: bytes) -> ast.Module:
        states.append(gc.isenabled())
        return parse(source)

    monkeypatch.setattr(ast, "parse", note)
    pydoc_text.syntax_tree(b"x = 1")
    assert (states, gc.isenabled()) == ([False], True)


def test_paragraphs_are_kept_once() -> None:
    kept = pydoc_text.deduplicated(
        [("a", "One  two\nthree.\n\n---\n\nFour."), ("b", "one two three"), ("c", "FOUR!\n \nFive")]
    )
    assert kept == [
        pydoc_text.Document("a", "One two three.\nFour."),
        pydoc_text.Document("c", "Five"),
    ]


def test_source_code_is_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code, comments and docstrings, in the encoding that a file declares, without tests."""
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "c.py").write_text("left_out = 1\n")
    (tmp_path / "b.py").write_bytes(b"# coding: latin-1\n\ndef f(x):\n    return '\xe9'  # x\n")
    (tmp_path / "a.py").write_text('"""Says."""\r\n\r\nclass A:\n\n    pass\n')
    monkeypatch.setattr(pydoc_text, "library_path", lambda: tmp_path)
    assert pydoc_text.source_documents() == [
        pydoc_text.Document("a.py", '"""Says."""\nclass A:\npass'),
        pydoc_text.Document("b.py", "# coding: latin-1\ndef f(x): return 'é' # x"),
    ]


@pytest.mark.slow
def test_records_of_source_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_sources(monkeypatch)
    sizes = {"train": 90, "validation": 4, "test": 3}
    data = dataclasses.replace(pydoc_text.PYSOURCE, sizes=sizes)
    data.prepare(tmp_path)
    documents = pydoc_text.split_documents(pydoc_text.source_documents())
    first = tokenizer.load(tmp_path / "spm.model").encode(documents["train"][0].text)
    records = data.records(tmp_path)["train"]
    assert records.ravel()[: len(first)].tolist() == first[: records.size]


@pytest.mark.slow
def test_check_says_what_figures_may_be_compared(prepared: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(prepared, tmp_path / "copy"))
    data = pydoc_text.PYDOC
    reference = json.loads((copy / "reference.json").read_text())
    assert f"SHA-256 of the content: {reference['sha256']}" in data.check(copy)
    # Of each split its name and its ids, 16 bits each: what trials are identified by.
    digest = hashlib.sha256()
    for split, records in sorted(data.records(copy).items()):
        digest.update(split.encode() + records.astype("<u2").tobytes())
    assert digest.hexdigest() == reference["sha256"]
    (copy / "reference.json").write_text(json.dumps({**reference, "python": "3.12.0"}))
    assert "comparable with those on records of the same SHA-256 only" in data.check(copy)[-1]


@pytest.mark.slow
def test_a_python_with_less_text_is_named(
    tmp_path: Path, documents: list[pydoc_text.Document]
) -> None:
    few = [document for document in documents if document.name.startswith("topic:")]
    data = dataclasses.replace(pydoc_text.PYDOC, documents=lambda: few)
    with pytest.raises(DataError, match=r"gives \d+ records for train; 6800 are needed"):
        data.prepare(tmp_path)
    assert not (tmp_path / "tokens.json").exists()


def test_reference_rows_worked_by_hand() -> None:
    """Train 4 5 5 after the separator 1: pairs 1-4, 4-5, 5-5; V = 6, weight 100."""
    single, pair = pydoc_text.reference_rows(
        {"train": np.array([[4, 5, 5]]), "test": np.array([[5, 4, 1]])}, 6
    )
    p4, p5, p1 = 2 / 9, 3 / 9, 1 / 9
    assert single["test/loss"] == pytest.approx(-(math.log(p5 * p4 * p1)) / 3)
    assert single["train/error"] == pytest.approx(1 / 3)
    assert single["test/error"] == pytest.approx(1 / 2)  # of 5 and 4; 1 is a special id
    given1, given5, given4 = 100 * p5 / 101, 100 * p4 / 101, 100 * p1 / 101
    assert pair["test/loss"] == pytest.approx(-math.log(given1 * given5 * given4) / 3)
    train = ((1 + 100 * p4) / 101) * ((1 + 100 * p5) / 101) ** 2
    assert pair["train/loss"] == pytest.approx(-math.log(train) / 3)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pydoc")
    with pytest.MonkeyPatch.context() as patch:
        few_sources(patch)
        sizes = {"train": 1300, "validation": 120, "test": 120}
        small = dataclasses.replace(pydoc_text.PYDOC, sizes=sizes)
        patch.setattr(pydoc_text, "PYDOC", small)
        small.prepare(folder)
        pydoc_questions.prepare(folder)
        yield folder


def test_next_fits_the_model_and_has_one_right_answer(data_dir):
    """Of four choices of eight words the right one continues a text of the test part."""
    rows, tokens = local_data.read(data_dir, "next", "test"), Tokens(data_dir)
    parts = pydoc_text.split_documents(pydoc_text.documents())
    documents = [" ".join(document.text.split()) for document in parts["test"]]
    assert len(rows) >= 90
    for row in rows:
        assert len(set(row["choices"])) == 4
        assert len(row["context"].split()) <= 18
        asked = f"{row['context']} {row['choices'].pop(row['gold'])}"
        (document,) = [text for text in documents if asked in text]
        for wrong in row["choices"]:
            assert len(wrong.split()) == 8
            assert any(wrong in text for text in documents if text != document)
            assert len(tokens.encode(f"{row['context']} {wrong}")) <= pydoc_text.LENGTH
        assert len(tokens.encode(asked)) <= pydoc_text.LENGTH
    shares = np.bincount([row["gold"] for row in rows], minlength=4) / len(rows)
    assert abs(shares - 1 / 4).max() < 4 * np.sqrt(1 / 4 * 3 / 4 / len(rows))


def test_no_text_of_returns_is_in_two_splits_and_none_is_trained_on(data_dir):
    names = ("train", "validation", "test")
    splits = {split: local_data.read(data_dir, "returns", split) for split in names}
    texts = [row["text"] for rows in splits.values() for row in rows]
    assert len(texts) == len(set(texts))
    # Of a sixth of the library, Python 3.13 has 18 rows in the smallest split.
    assert min(map(len, splits.values())) > 10
    parts = pydoc_text.split_documents(pydoc_text.documents())
    for split, rows in splits.items():
        paragraphs = "\n".join(["", *(document.text for document in parts[split])])
        assert all(f"\n{row['text']}" in paragraphs for row in rows)
    assert max(map(len, map(Tokens(data_dir).encode, texts))) == 40
    assert {row["label"] for row in splits["test"]} == {0, 1}


@pytest.mark.parametrize(
    ("code", "returns"),
    [
        ("return 1", True),
        ("return None", False),
        ("return", False),
        ("x = 1", False),
        ("yield", True),
        ("yield from x", True),
        ("if x:\n  return 0", True),
        ("def inner():\n  return 1", False),
        ("y = lambda: (yield)", False),
        ("pass", None),
        ("raise NotImplementedError", None),
        ("'more text'", None),
    ],
)
def test_whether_a_function_returns_something(code, returns):
    body = "\n".join(f"  {line}" for line in ("'''doc'''", *code.split("\n")))
    (node,) = ast.parse(f"def f(x):\n{body}\n").body
    assert pydoc_questions._gives_value(node) is returns


def test_the_index_names_every_task(data_dir, tmp_path):
    assert set(local_data.index(data_dir)) == {"next", "returns"}
    for name in pydoc_questions.NAMES:
        suites.check_data(suites.get(name), data_dir, full=True)
    with pytest.raises(DataError, match="no whole set of token records"):
        pydoc_questions.prepare(tmp_path)
