"""Questions about Python's documentation: by hand, and properties of the prepared ones."""

import ast
import dataclasses

import numpy as np
import pytest

from tests.workloads.conftest import few_sources
from workloads.base.errors import DataError
from workloads.downstream import local_data, pydoc_questions, suites
from workloads.downstream.tokens import Tokens
from workloads.text.corpora import pydoc_text


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
