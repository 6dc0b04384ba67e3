"""Questions about Python's documentation: by hand, and properties of the prepared ones."""

import ast

import numpy as np
import pytest

from tests.workloads.conftest import few_sources
from workloads.base.errors import DataError
from workloads.downstream import embedded, local_data, pydoc_questions, suites
from workloads.downstream.tokens import Tokens
from workloads.storage import tokenizer
from workloads.text.corpora import pydoc_text


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pydoc")
    with pytest.MonkeyPatch.context() as patch:
        few_sources(patch)
        patch.setattr(pydoc_text, "SIZES", {"train": 1300, "validation": 120, "test": 120})
        pydoc_text.prepare(folder)
        embedded.prepare(folder)
        yield folder


@pytest.mark.parametrize(
    ("task", "least", "choices"),
    [("next", 90, 4), ("near", 90, 4), ("sig", 50, 4), ("swap", 100, 2)],
)
def test_questions_fit_the_model_and_have_one_right_answer(data_dir, task, least, choices):
    rows, tokens = local_data.read(data_dir, task, "test"), Tokens(data_dir)
    assert len(rows) >= least
    for row in rows:
        assert len(set(row["choices"])) == choices
        longest = max(
            sum(map(len, tokens.pair(row["context"], f" {one}"))) for one in row["choices"]
        )
        assert longest <= pydoc_text.LENGTH
    shares = np.bincount([row["gold"] for row in rows], minlength=choices) / len(rows)
    error = np.sqrt((1 / choices) * (1 - 1 / choices) / len(rows))
    assert abs(shares - 1 / choices).max() < 4 * error


def test_right_answers_stand_in_the_test_part_and_swaps_do_not(data_dir):
    parts = pydoc_text.split_documents(pydoc_text.documents())
    held_out = " ".join(document.text for document in parts["test"]).split()
    text = " ".join(held_out)
    for task in ("next", "near"):
        for row in local_data.read(data_dir, task, "test"):
            right = row["choices"][row["gold"]]
            assert f"{row['context']} {right}" in text
            assert len(right.split()) == 8
    for row in local_data.read(data_dir, "swap", "test"):
        right, wrong = row["choices"][row["gold"]].split(), row["choices"][1 - row["gold"]].split()
        assert " ".join(right) in text
        different = [
            i for i, pair in enumerate(zip(right, wrong, strict=True)) if len(set(pair)) > 1
        ]
        assert len(different) == 2
        assert different[1] - different[0] == 1
        assert sorted(right) == sorted(wrong)


def test_no_text_of_returns_is_in_two_splits_and_none_is_trained_on(data_dir):
    names = ("train", "validation", "test")
    splits = {split: local_data.read(data_dir, "returns", split) for split in names}
    texts = [row["text"] for rows in splits.values() for row in rows]
    assert len(texts) == len(set(texts))
    assert min(map(len, splits.values())) > 50
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
    (node,) = ast.parse("async def f(a, /, b=1, *c, d, e=2, **g): pass").body
    assert pydoc_questions._arguments(node) == "a, b, *c, d, e, **g"


def test_references_by_hand(data_dir):
    """Training records in which token 7 follows 5, and 8 begins them all."""
    train = np.array([[8, 5, 7, 5, 7, 5, 7, 5]] * 50)

    class Letters:
        size = 12

        def pair(self, context, continuation):
            ids = [int(one) for one in continuation.split()]
            return [int(one) for one in context.split()], ids

    rows = [
        {"context": "5", "choices": ["8 5", "7 5"], "gold": 1},
        {"context": "", "choices": ["8 5", "7 5"], "gold": 1},
    ]
    references = pydoc_questions.references(rows, Letters(), train, "acc")
    assert references == {"bigram": 0.5, "word overlap": 0.0}
    pairs = pydoc_text.bigram(train, pydoc_text.unigram(train, 12))
    assert pairs[5, 7] > pairs[5, 8]
    assert pairs[tokenizer.EOS, 8] > pairs[tokenizer.EOS, 7]
    # "7 5" gains by a 5 before it; behind nothing no choice gains, and the first is taken.
    assert pydoc_questions.references(rows, Letters(), train, "acc_mutual_info")["bigram"] == 0.5


def test_the_index_names_every_task_and_what_simple_answers_get(data_dir, tmp_path):
    index = local_data.index(data_dir)
    assert set(index) == {"next", "near", "sig", "swap", "returns"}
    assert set(index["sig"]["references"]) == {"bigram", "word overlap"}
    assert 0.3 < index["next"]["references"]["bigram"] < 0.6
    assert 0.1 < index["sig"]["references"]["bigram"] < 0.4
    assert 0.75 < index["swap"]["references"]["bigram"] < 0.95
    for name in embedded.NAMES:
        suites.check_data(suites.get(name), data_dir, full=True)
    with pytest.raises(DataError, match="no whole set of token records"):
        embedded.prepare(tmp_path)
