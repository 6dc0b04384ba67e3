"""Scores against single requests as they are, for every row of the paper, on several devices."""

import itertools

import jax
import numpy as np
import pytest

from attention import table as variants_table
from tests.python_processes import start_python
from tests.workloads import parameters, small_text
from tests.workloads.conftest import result_of
from workloads.downstream.scoring import Scorer, ladder
from workloads.storage import tokenizer
from workloads.text.text_specs import TransformerSize

SIZE = TransformerSize(2, 16, 32, 2, 8, vocabulary=62, context=40)
ROWS = (*variants_table.PAPER_ROWS, "diff", "diff_laser", "sigmoid")


# Parameters divided over two devices, by 'fsdp' and by 'tensor'.
_MESHES = ((0, 1, 1), (1, 2, 1), (1, 1, 2))
# Of contexts and continuations: few, as every length alone is a compilation.
LENGTHS = ((0, 1), (0, 4), (9, 2), (30, 3), (60, 5))


def _requests(count):
    draw = np.random.default_rng(1)
    lengths = (LENGTHS * count)[:count]
    return [tuple(draw.integers(4, 61, length).tolist() for length in one) for one in lengths]


def _alone(model, params, request, length=None):
    """The log-probability and best tokens of one request, in no batch and without filling.

    length: to which it is filled up nevertheless.
    """
    context, continuation = request
    kept = context[max(0, len(context) + len(continuation) - SIZE.context) :]
    row = np.array([tokenizer.EOS, *kept, *continuation])
    inputs = np.pad(row[:-1], (0, max(0, (length or 0) - len(row) + 1)))
    logits = model({"params": params}, inputs[None])[0, len(kept) : len(row) - 1]
    logs = np.asarray(jax.nn.log_softmax(logits), np.float64)
    return logs[np.arange(len(continuation)), continuation].sum(), logs.argmax(-1)


def check_row(name, count=24, **options):
    """Raises AssertionError where scores are not those of requests alone; returns the scorer."""
    workload = small_text.make("pydoc_lm", name, SIZE, **options)
    params = parameters.moved(workload.init_model_fn(jax.random.key(0))[0], 0.2)
    scorer = Scorer(workload, params, tokens=160)
    requests, model = _requests(count), jax.jit(workload.observable()._called_model().apply)
    alone = workload.observable_parameters(params)
    scores = scorer.loglikelihoods(requests)
    # Sigmoid attention's weights depend on how many keys there are: as many as in training.
    length = SIZE.context if name == "sigmoid" else None
    for request, score in zip(requests, scores, strict=True):
        expected, best = _alone(model, alone, request, length)
        assert abs(score.loglikelihood - expected) < 1e-4, (name, request)
        assert score.greedy == (list(best) == request[1])
        assert score.tokens == len(request[1])
        assert score.truncated == max(0, len(request[0]) + len(request[1]) - SIZE.context)
    return scorer


@pytest.mark.parametrize("name", ["diff_laser", "sigmoid"])
def test_scores_are_those_of_requests_alone(name):
    check_row(name)


@pytest.mark.nightly
@pytest.mark.parametrize("devices", [1, 2])
def test_every_row_of_the_paper(devices):
    """In a process of its own, whose number of devices it is told; on two, what devices divide."""
    code = (
        "import jax, json\n"
        "from tests.workloads import test_scoring\n"
        f"for name in {ROWS if devices == 1 else ROWS[:1]}: test_scoring.check_row(name)\n"
        f"for mesh in {_MESHES[: 2 * devices - 1]}:\n"
        "    test_scoring.check_row('laser', mesh=mesh, scan_layers=True)\n"
        "print(json.dumps(jax.device_count()))\n"
    )
    count, _ = result_of(start_python(code, devices))
    assert count == devices


@pytest.fixture(scope="module")
def scorer():
    workload = small_text.make(size=SIZE)
    return Scorer(workload, workload.init_model_fn(jax.random.key(3))[0], tokens=160)


def test_greedy_answers_are_the_most_probable_tokens_one_by_one(scorer):
    contexts = [context for context, _ in _requests(6)]
    answers = scorer.greedy(contexts, 3)
    model = jax.jit(scorer.workload.observable()._called_model().apply)
    for context, answer in zip(contexts, answers, strict=True):
        row = [tokenizer.EOS, *context[max(0, len(context) - SIZE.context + 3) :]]
        expected = []
        for _ in range(3):
            filled = np.array([row + [0] * (SIZE.context - len(row))])
            logits = model({"params": scorer._parameters}, filled)[0, len(row) - 1]
            expected.append(int(logits.argmax()))
            row.append(expected[-1])
        stop = expected.index(tokenizer.EOS) if tokenizer.EOS in expected else 3
        assert answer == expected[:stop]


def test_an_answer_ends_before_the_separator(scorer, monkeypatch):
    """A model that says each row's length, and the separator from 6 on."""
    asked = []

    def lengths(rows, progress):
        asked.append(len(rows))
        words = [len(row) if len(row) < 6 else tokenizer.EOS for row, _ in rows]
        return [(np.zeros(1), np.array([word])) for word in words]

    monkeypatch.setattr(scorer, "_scored", lengths)
    assert scorer.greedy([[7], [7] * 4, [7] * 9], 3) == [[2, 3, 4], [5], []]
    assert asked == [3, 2, 1]


@pytest.mark.parametrize(
    ("ask", "arguments"),
    [("loglikelihoods", ([([5, 6], [7])],)), ("greedy", ([[5, 6]], 1))],
)
def test_a_model_of_nan_has_no_best_answer(scorer, monkeypatch, ask, arguments):
    """NumPy's argmax would take the first answer, which is right one time in so many."""
    nan = jax.tree.map(lambda leaf: leaf * np.nan, scorer._parameters)
    monkeypatch.setattr(scorer, "_parameters", nan)
    with pytest.raises(ValueError, match="NaN"):
        getattr(scorer, ask)(*arguments)


def test_order_and_copies_change_nothing(scorer):
    requests = _requests(12)
    scores = scorer.loglikelihoods(requests)
    assert scorer.loglikelihoods(requests[::-1])[::-1] == scores
    batches = []
    assert scorer.loglikelihoods(requests[:1] * 5, lambda *counts: batches.append(counts))
    assert batches == [(1, 1)]
    with pytest.raises(ValueError, match="pydoc_bert is no decoder"):
        Scorer(small_text.make("pydoc_bert", size=SIZE), {})


@pytest.mark.parametrize("context", [40, 64, 512, 1024, 1000])
def test_the_ladder_rises_to_the_context(context):
    lengths = ladder(context)
    assert lengths[-1] == context
    assert list(lengths) == sorted(set(lengths))
    assert all(high / low <= 1.5 for low, high in itertools.pairwise(lengths))
