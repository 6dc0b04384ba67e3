"""A decoder trained to answer: the loss is on the answer's tokens alone, evaluation is by answers.

A batch's loss is the mean over the tokens of its answers and the separators behind them, so that a
model learns where an answer ends. As T5 was trained, SuperGLUE's Winograd schemas are shown with
their right answer, a phrase of the text: those whose phrase is a wrong one are left out (Raffel et
al., arXiv:1910.10683, section 2.4).

Metrics of a split: accuracy, the share of generated answers that lm-eval's own rule takes for right
(most probable token by token, "decoding accuracy" in the paper); undecodable, the share that is
none of the answers that the task allows; rank_accuracy, where the most probable allowed answer is
taken instead; majority, what always giving the most frequent answer would get; loss, nats per token
of the right answers.
Axes: B batch, L length.
"""

import collections
from statistics import fmean
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from workloads.base import spec
from workloads.base.options import Options
from workloads.base.workload import Sizes
from workloads.base.workload_spec import WorkloadSpec
from workloads.downstream import scoring, suites
from workloads.downstream.questions import Question, of_suite
from workloads.downstream.tokens import Tokens
from workloads.storage import tokenizer
from workloads.text import finetuning_specs
from workloads.text.language_models import LMWorkload
from workloads.text.text_specs import TransformerSize

# Training questions that evaluations look at, too.
_EVAL_TRAIN = 200
# Of how many tokens rows are multiples: attention's kernels like round lengths.
_MULTIPLE = 64


class Example(NamedTuple):
    """Token ids of a question and of its answer, without the separator in front.

    A model's record is `context + answer`; its inputs are that behind the separator, as
    `language_models.shifted` makes them.
    """

    context: list[int]
    answer: list[int]


def example(question: Question, tokens: Tokens, length: int) -> Example:
    """Returns a question, whose left is cut to the model's context `length`, and its right answer,
    which ends with the separator.

    Raises ValueError for an answer that the tokenizer cannot say or that leaves no room.
    """
    tokens.check_sayable(question.gold)
    context, answer = tokens.pair(question.context, f" {question.gold}")
    answer.append(tokenizer.EOS)
    room = length - len(answer)
    if room < 1:
        raise ValueError(
            f"the answer {question.gold!r} has {len(answer)} tokens, the model's context {length}"
        )
    return Example(context[-room:], answer)


def rows(examples: list[Example], context: int) -> list[dict[str, Any]]:
    """Returns examples as rows of one length: {"tokens" int32 [L], "weights" float32 [L]}.

    Weights are 1 at an answer's tokens and the separator behind it. L is the longest example's
    length rounded up, at most the model's context.
    """
    longest = max(len(before) + len(answer) for before, answer in examples)
    length = min(context, -(-longest // _MULTIPLE) * _MULTIPLE)
    result = []
    for before, answer in examples:
        end = len(before) + len(answer)
        tokens = np.full(length, tokenizer.PAD, np.int32)
        tokens[:end] = [*before, *answer]
        weights = np.zeros(length, np.float32)
        weights[len(before) : end] = 1
        result.append({"tokens": tokens, "weights": weights})
    return result


class FinetuningWorkload(LMWorkload):
    """A decoder that learns to answer a suite's questions. Metrics: see the module."""

    item_metric = "accuracy"

    def __init__(
        self,
        row: WorkloadSpec,
        variant: Any,
        options: Options,
        size: TransformerSize,
        suite: finetuning_specs.FinetuningSuite,
    ) -> None:
        # How many there are the data say: `eval_model`.
        sizes = Sizes(suite.questions, _EVAL_TRAIN, 0, 0, suite.batch_size)
        super().__init__(row, variant, options, size, sizes)
        self.suite = suite.name
        self._scorer: scoring.Scorer | None = None

    def _open(self, split: str, data_dir: str) -> Any:
        """Returns the training examples: evaluations go by questions."""
        assert split == "train", split
        suites.check(suites.get(self.suite), data_dir)
        tokens, context = self._tokens(data_dir), self.size.context
        questions = self._questions("train", data_dir)
        return rows(
            [example(question, tokens, context) for question in questions if question.gold], context
        )

    def _questions(self, split: str, data_dir: str) -> list[Question]:
        return of_suite(suites.get(self.suite), split, data_dir)

    def _finish(self, batch: spec.Batch, key: Array | None, step: Any) -> spec.Batch:
        """Returns a batch with weights, 1 for all tokens of an example batch."""
        finished = super()._finish(batch, key, step)
        return {"weights": jnp.ones(finished["targets"].shape), **finished}

    def eval_model(
        self,
        global_batch_size: int,
        params: spec.Parameters,
        model_state: spec.ModelState,
        rng: Array,
        data_dir: str,
        imagenet_v2_data_dir: str | None = None,
        global_step: int = 0,
    ) -> dict[str, float]:
        """Returns all splits' metrics and `<split>/num_examples`; of training questions the first
        200 of a fixed order."""
        results: dict[str, float] = {}
        for split in ("train", "validation", "test"):
            questions = self._questions(split, data_dir)
            if split == "train":
                order = np.random.RandomState(0).permutation(len(questions))[:_EVAL_TRAIN]
                questions = [questions[number] for number in order]
            metrics, right = self._answered(params, questions, data_dir)
            results |= {f"{split}/{name}": value for name, value in metrics.items()}
            if split != "train":
                results[f"{split}/num_examples"] = len(questions)
                self.answers = spec.Answers(split, self.item_metric, right, np.ones(len(right)))
        return results

    def _answered(
        self, params: spec.Parameters, questions: list[Question], data_dir: str
    ) -> tuple[dict[str, float], np.ndarray]:
        """Returns the metrics of the module's head, and which questions are answered right."""
        tokens = self._tokens(data_dir)
        if self._scorer is None:
            self._scorer = scoring.Scorer(self, params)
        else:  # what is compiled for other parameters stays
            self._scorer.use(params)
        known = {text for question in questions for text in (*question.allowed, question.gold)}
        # The longest answer, and the separator behind it.
        most = max(len(tokens.encode(answer)) for answer in known) + 1
        answers = scoring.answer_texts(
            self._scorer, tokens, [question.context for question in questions], most
        )
        pairs = [
            (question.context, f" {answer}")
            for question in questions
            for answer in (*question.allowed, question.gold)
            if answer
        ]
        scores = scoring.score_texts(self._scorer, tokens, list(dict.fromkeys(pairs)))
        golds = [
            scores[question.context, f" {question.gold}"] for question in questions if question.gold
        ]
        answered = list(zip(questions, answers, strict=True))
        right = np.array([question.is_right(answer) for question, answer in answered])
        metrics = {
            "accuracy": fmean(right.tolist()),
            "undecodable": fmean(
                not question.is_decodable(answer) for question, answer in answered
            ),
            "loss": -sum(gold.loglikelihood for gold in golds) / sum(gold.tokens for gold in golds),
        }
        if closed := [question for question in questions if question.allowed]:
            ranked = []
            for question in closed:
                logs = [
                    scores[question.context, f" {text}"].loglikelihood for text in question.allowed
                ]
                ranked.append(question.allowed[int(np.argmax(logs))] == question.gold)
            counts: dict[str, collections.Counter[str]] = {}
            for question in self._questions("train", data_dir):
                counts.setdefault(question.task, collections.Counter())[question.gold] += 1
            usual = {task: golds.most_common(1)[0][0] for task, golds in counts.items()}
            metrics["rank_accuracy"] = fmean(ranked)
            metrics["majority"] = fmean(
                usual[question.task] == question.gold for question in closed
            )
        return metrics, right

    def _tokens(self, data_dir: str) -> Tokens:
        """Returns the data's tokens. Raises DataError where they are not the model's."""
        return Tokens(data_dir).checked(str(self), self.size.vocabulary)


def make(row: WorkloadSpec, variant: Any, options: Options) -> FinetuningWorkload:
    """Returns a fine-tuning workload; use `workloads.registry.make`."""
    _, suite = finetuning_specs.split(row.name)
    return FinetuningWorkload(row, variant, options, row.model, finetuning_specs.SUITES[suite])
