"""A decoder that learns to answer: rows, a loss on answers alone, metrics by hand."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from attention import registry as variants
from tests.workloads import fabricated_rows
from tests.workloads.conftest import VOCABULARY, WORDS
from workloads import catalog
from workloads.base.errors import DataError
from workloads.base.options import Options
from workloads.downstream import local_data, questions, scoring, suites
from workloads.downstream.finetuning import finetuning_workload as finetuning
from workloads.downstream.finetuning.finetuning_workload import Example, example
from workloads.downstream.questions import Question
from workloads.downstream.tokens import Tokens
from workloads.storage import tokenizer
from workloads.text import finetuning_specs
from workloads.text.text_specs import TransformerSize

pytest.importorskip("lm_eval", reason="needs .[downstream]")

SIZE = TransformerSize(1, 8, 16, 2, 4, vocabulary=VOCABULARY, context=128)
NAME = "pydoc_lm:superglue"


def _workload():
    suite = finetuning_specs.SUITES["superglue"]
    row, variant = catalog.get(NAME), variants.get("laser")
    return finetuning.FinetuningWorkload(row, variant, Options(), SIZE, suite)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory, spm_model):
    folder = tmp_path_factory.mktemp("data")
    (folder / "spm.model").write_bytes(spm_model)
    fabricated_rows.write(folder, suites.get("superglue"), WORDS)
    return folder


@pytest.fixture
def few(monkeypatch):
    """Two tasks, counts as fabricated, and every third of five training questions is
    validation's."""
    made = fabricated_rows.fabricated(suites.get("superglue"))
    made = dataclasses.replace(made, tasks=made.tasks[1:3])  # WiC and WSC
    monkeypatch.setattr(suites, "get", lambda name: made)
    monkeypatch.setattr(finetuning_specs, "HELD_OUT", 3)
    return made


def test_rows_by_hand():
    first, second = finetuning.rows([Example([5, 6], [7, 1]), Example([5], [8, 9, 1])], 128)
    assert len(first["tokens"]) == len(second["tokens"]) == 64
    assert first["tokens"][:5].tolist() == [5, 6, 7, tokenizer.EOS, tokenizer.PAD]
    assert np.flatnonzero(first["weights"]).tolist() == [2, 3]
    assert np.flatnonzero(second["weights"]).tolist() == [1, 2, 3]
    (cut,) = finetuning.rows([Example([5] * 70, [7, 1])], 100)
    assert len(cut["tokens"]) == 100


def test_examples_by_hand_from_the_rows(few, data_dir, monkeypatch):
    """Questions of all rows of train: sentences and their answers, and phrases of the text."""
    monkeypatch.setattr(finetuning_specs, "HELD_OUT", 100)
    wic, wsc = few.tasks
    tokens = Tokens(data_dir)
    rows = local_data.read(data_dir, "wic", "train")
    for question, row in zip(questions.of_task(wic, "train", data_dir), rows, strict=True):
        whole, short = (example(question, tokens, length) for length in (128, 20))
        sentences = f"wic sentence1: {row['sentence1']} sentence2: {row['sentence2']}"
        assert tokens.decode(whole.context) == f"{sentences} word: {row['word']}"
        assert tokens.decode(whole.answer[:-1]) == ["False", "True"][row["label"]]
        assert whole.answer[-1] == tokenizer.EOS
        assert [*short.context, *short.answer] == [*whole.context, *whole.answer][-20:]
    with pytest.raises(ValueError, match=r"has \d tokens, the model's context 2"):
        example(question, tokens, 2)
    phrases = [
        row["span1_text"] if row["label"] else ""
        for row in local_data.read(data_dir, "wsc", "train")
    ]
    assert [one.gold for one in questions.of_task(wsc, "train", data_dir)] == phrases


def test_no_question_is_trained_and_validated(few, data_dir):
    """Of SuperGLUE: every row of train is in one of the two, the published ones are the test."""
    for task in few.tasks:
        contexts = {
            split: [question.context for question in questions.of_task(task, split, data_dir)]
            for split in ("train", "validation", "test")
        }
        assert [len(rows) for rows in contexts.values()] == [4, 1, fabricated_rows.N]
        assert not set(contexts["train"]) & set(contexts["validation"])
    # A task with test rows is trained on all of train.
    tested = dataclasses.replace(task, entry=dataclasses.replace(task.entry, split="test"))
    assert len(questions.of_task(tested, "train", data_dir)) == 5


def test_a_label_without_an_answer_and_a_split_without_questions_are_named(few, data_dir, tmp_path):
    """Not the last answer for -1, nor a right phrase for 2. Every third question is validation's,
    and there are two."""
    rows = {task: local_data.read(data_dir, task.entry.data, "train") for task in few.tasks}
    for task, (first, second, *_) in rows.items():
        for label in (-1, 2):
            splits = {"train": [{**first, "label": label}], "validation": [first]}
            local_data.write(tmp_path, task.entry.data, splits)
            with pytest.raises(DataError, match=f"{task.name}: .* label {label}"):
                questions.of_task(task, "train", tmp_path)
        splits = {"train": [first, second], "validation": [first]}
        local_data.write(tmp_path, task.entry.data, splits)
    assert len(questions.of_suite(few, "train", str(tmp_path))) == 4
    with pytest.raises(DataError, match="no question for the split 'validation'"):
        questions.of_suite(few, "validation", str(tmp_path))


def test_the_loss_is_that_of_the_answers(few, data_dir):
    """As scored one by one; what stands in the context's or the filling's place counts nothing."""
    workload = _workload()
    params, _ = workload.init_model_fn(jax.random.key(0))
    batch = next(workload._build_input_queue(3, "train", str(data_dir), 4))
    rows = [
        (row[: weights.argmax()].tolist(), row[weights > 0].tolist())
        for row, weights in zip(
            np.asarray(batch["targets"]), np.asarray(batch["weights"]), strict=True
        )
    ]
    scores = scoring.Scorer(workload, params).loglikelihoods(rows)
    losses, _ = workload.train_loss(params, batch, None, jax.random.key(1), 0.0, 0.0)
    assert losses["n_valid_examples"] == sum(len(answer) for _, answer in rows)
    expected = -sum(score.loglikelihood for score in scores)
    assert float(losses["summed"]) == pytest.approx(expected, rel=1e-5)
    known = [
        example(one, Tokens(data_dir), SIZE.context)
        for one in questions.of_suite(few, "train", data_dir)
        if one.gold
    ]
    assert all(row in known and row[1][-1] == tokenizer.EOS for row in rows)
    again = next(workload._build_input_queue(3, "train", str(data_dir), 4))
    np.testing.assert_array_equal(again["targets"], batch["targets"])
    random = workload.example_batch(2)  # what `compile` and `bench` train on
    assert {name: random[name].dtype for name in batch} == {
        name: array.dtype for name, array in batch.items()
    }


def test_evaluations_have_every_metric_of_every_split(few, data_dir):
    workload = _workload()
    params, _ = workload.init_model_fn(jax.random.key(0))
    metrics = workload.eval_model(4, params, None, None, str(data_dir))
    names = {"accuracy", "undecodable", "loss", "rank_accuracy", "majority"}
    for split in ("train", "validation", "test"):
        assert {name for name in names if f"{split}/{name}" in metrics} == names
        assert 0 < metrics[f"{split}/loss"] < 20
    assert metrics["validation/num_examples"] == 2
    assert metrics["test/num_examples"] == fabricated_rows.N * 2
    # Other parameters are scored without compiling anew, and by themselves.
    scorer = workload._scorer
    other, _ = workload.init_model_fn(jax.random.key(1))
    assert workload.eval_model(4, other, None, None, str(data_dir)) != metrics
    assert workload.eval_model(4, params, None, None, str(data_dir)) == metrics
    assert workload._scorer is scorer


class Words:
    """A token is a letter."""

    def encode(self, text):
        return list(map(ord, text))

    def decode(self, ids):
        return "".join(map(chr, ids))

    def pair(self, context, continuation):
        return self.encode(context), self.encode(continuation)


class Scorer:
    """Says 'y' to contexts with an a, and something else to others; prefers longer answers."""

    context = 128

    def use(self, params):
        pass

    def greedy(self, contexts, most):
        assert most == 3  # the longest answer and the separator
        return [[ord("y")] if ord("a") in ids else [ord("x")] for ids in contexts]

    def loglikelihoods(self, pairs, progress):
        return [
            types.SimpleNamespace(loglikelihood=-1.0 / len(answer), tokens=len(answer))
            for _, answer in pairs
        ]


def _question(context, gold, allowed=("y", "no")):
    return Question("t", context, 0, gold, allowed, lambda answer: answer == gold)


def test_metrics_by_hand(monkeypatch):
    workload = _workload()
    monkeypatch.setattr(workload, "_tokens", lambda data_dir: Words())
    workload._scorer = Scorer()
    train = [_question("", gold) for gold in ("y", "no", "no")]
    monkeypatch.setattr(workload, "_questions", lambda split, data_dir: train)
    asked = [_question("a", "y"), _question("b", "no"), _question("ab", "no"), _question("c", "y")]
    metrics, right = workload._answered(None, asked, "")
    assert right.tolist() == [True, False, False, False]
    # 'y' to two of four, one of them rightly; 'x' is no answer. ' no' is preferred everywhere.
    assert metrics == {
        **{"accuracy": 0.25, "undecodable": 0.5, "rank_accuracy": 0.5, "majority": 0.5},
        "loss": pytest.approx((2 * 1 / 2 + 2 * 1 / 3) / (2 * 2 + 2 * 3)),
    }
    # Where any text may be an answer there are none to rank, and a row may have no right one.
    free = [_question("a", "y", ()), dataclasses.replace(_question("b", "", ()), is_right=bool)]
    workload._scorer = types.SimpleNamespace(
        context=128,
        use=lambda params: None,
        greedy=lambda contexts, most: [[ord("y")], []],
        loglikelihoods=Scorer().loglikelihoods,
    )
    metrics, _ = workload._answered(None, free, "")
    assert metrics == {"accuracy": 0.5, "undecodable": 0.5, "loss": 0.25}


def test_names_of_models_and_suites(data_dir):
    entry = catalog.get(NAME)
    assert (entry.metric, entry.mode, entry.support.decoder) == ("accuracy", "max", True)
    models = {NAME: "pydoc_lm", "c4_lm": "c4_lm", "algoperf:imagenet_vit": "algoperf:imagenet_vit"}
    assert {name: catalog.model(name) for name in models} == models
    for suite in finetuning_specs.SUITES:
        assert all(task.entry.generates for task in suites.get(suite).tasks), suite
    for name in ("pydoc_lm:paper_7b", "digits_vit:superglue"):
        with pytest.raises(ValueError, match=f"unknown workload '{name}'"):
            catalog.get(name)
    # Published counts are asked of real data.
    with pytest.raises(DataError, match="the published figures are of 100"):
        catalog.data_module(NAME).check(data_dir)
