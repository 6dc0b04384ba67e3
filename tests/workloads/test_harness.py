"""Downstream evaluation: scores of requests, and the harness's tasks."""

import dataclasses
import gzip
import itertools
import json
import socket
import types

import jax
import numpy as np
import pytest

from attention import table as variants_table
from tests.python_processes import start_python
from tests.workloads import fabricated_rows, parameters, small_text
from tests.workloads.conftest import VOCABULARY, WORDS, result_of, sentences
from workloads import registry
from workloads.base.errors import DataError
from workloads.downstream import harness, local_data, questions, suites
from workloads.downstream.scoring import Score, Scorer, ladder, score_texts
from workloads.downstream.tokens import Tokens
from workloads.storage import tokenizer
from workloads.text.text_specs import TransformerSize

pytest.importorskip("lm_eval", reason="needs .[downstream]")

HARNESS_SIZE = TransformerSize(1, 8, 16, 2, 4, vocabulary=VOCABULARY, context=128)
PAPERS = ("paper_one_shot", "paper_7b", "paper_diff")
ABOUT = {"trial_id": "t", "variant": "laser", "workload": "tiny", "seed": 0, "step": 7}


@pytest.fixture(scope="module")
def model():
    workload = small_text.make("pydoc_lm", "laser", HARNESS_SIZE)
    return workload, workload.init_model_fn(jax.random.key(0))[0]


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments):
        raise AssertionError(f"the network was asked: {arguments}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory, spm_model):
    folder = tmp_path_factory.mktemp("data")
    (folder / "spm.model").write_bytes(spm_model)
    for name in (*PAPERS, "superglue"):
        fabricated_rows.write(folder, suites.get(name), WORDS)
    return folder


def _samples(directory):
    with gzip.open(directory / "samples.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_every_task_of_the_papers_runs(model, data_dir, tmp_path, no_network):
    tasks = {task.name: task for name in PAPERS for task in suites.get(name).tasks}
    suite = dataclasses.replace(suites.get("paper_one_shot"), tasks=tuple(tasks.values()))
    suite = fabricated_rows.fabricated(suite)
    results = harness.evaluate(*model, suite, data_dir, tmp_path, ABOUT)
    assert results == json.loads((tmp_path / "results.json").read_text())
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "samples.jsonl.gz"}
    assert list(results["tasks"]) == [task.name for task in suite.tasks]
    samples = _samples(tmp_path)
    for task in suite.tasks:
        record = results["tasks"][task.name]
        answered = [sample for sample in samples if sample["task"] == task.name]
        assert record["n"] == len(answered) == fabricated_rows.N
        assert record["shots"] == 1
        assert task.primary in record["metrics"]
        for metric, value in record["metrics"].items():
            assert value == np.mean([sample["correct"][metric] for sample in answered])
        _check_metrics(task, answered, data_dir)


def _check_metrics(task, samples, data_dir):
    """Raises AssertionError where metrics are not lm-eval's own, or the ranks per token."""
    loaded = questions.load(task, data_dir)
    for row, sample in zip(loaded.eval_docs, samples, strict=True):
        choices = sample["choices"]
        logs = [choice["loglikelihood"] for choice in choices]
        per_token = np.array(logs) / [choice["tokens"] for choice in choices]
        right = sample["gold"] if isinstance(sample["gold"], list) else [sample["gold"]]
        assert sample["correct"]["acc"] == (int(np.argmax(logs)) in right)
        assert sample["correct"]["acc_per_token"] == (int(per_token.argmax()) in right)
        alone = [choice["unconditional"] for choice in choices if not task.entry.partial]
        results = [(log, False) for log in (*logs, *alone)]
        if task.name != "record":  # lm-eval's own mutual information knows one right answer
            expected = loaded.process_results(row, results)
            assert {name: sample["correct"][name] for name in expected} == expected


def test_superglue_is_generated_and_ranked(model, data_dir, tmp_path, no_network):
    suite = fabricated_rows.fabricated(suites.get("superglue"))
    results = harness.evaluate(*model, suite, data_dir, tmp_path, ABOUT)
    for sample in _samples(tmp_path):
        ranked = bool(sample["allowed"])
        assert set(sample["correct"]) == {"exact_match", "acc"} if ranked else {"exact_match"}
        assert sample["decodable"] == (sample["answer"] in sample["allowed"]) or not ranked
    assert all(task["majority"] > 0.3 for task in results["tasks"].values())


def test_finished_tasks_are_not_asked_again(model, data_dir, tmp_path, monkeypatch):
    """A run that dies at its second task goes on there, and ends with the same bytes."""
    suite = fabricated_rows.fabricated(suites.get("paper_diff"))
    suite = dataclasses.replace(suite, tasks=suite.tasks[:3])
    harness.evaluate(*model, suite, data_dir, tmp_path / "once", ABOUT)
    ask, asked = harness._chosen, []

    def dies(task, *arguments):
        asked.append(task.name)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return ask(task, *arguments)

    monkeypatch.setattr(harness, "_chosen", dies)
    with pytest.raises(KeyboardInterrupt):
        harness.evaluate(*model, suite, data_dir, tmp_path / "twice", ABOUT)
    assert not (tmp_path / "twice/results.json").exists()
    harness.evaluate(*model, suite, data_dir, tmp_path / "twice", ABOUT)
    first, second, third = (task.name for task in suite.tasks)
    assert asked == [first, second, second, third]
    samples = [tmp_path / run / "samples.jsonl.gz" for run in ("once", "twice")]
    assert samples[0].read_bytes() == samples[1].read_bytes()


def test_prompts_shots_and_several_right_answers(data_dir):
    """What the model is asked, by hand from the rows."""
    (task,) = (one for one in suites.get("paper_one_shot").tasks if one.name == "record")
    loaded = questions.load(task, data_dir)
    row = local_data.read(data_dir, "record", "validation")[0]
    shots = local_data.read(data_dir, "record", "train")
    entities = sorted(set(row["entities"]))
    asked = harness.prompted(task, loaded, loaded.eval_docs[0])
    assert len(asked) == 2 * len(entities)
    prompt = asked[0][0]
    assert any(prompt.startswith(shot["passage"].partition("\n")[0]) for shot in shots)
    assert prompt.count("\n  - ") == 2  # a highlight each
    assert prompt.count("\n   - ") == 1  # the shot's answer, behind lm-eval's blank
    assert asked[1][1] == "   - " + row["query"].replace("@placeholder", entities[1])
    assert loaded.eval_docs[0]["right"] == sorted(map(entities.index, row["entities"][:2]))


@pytest.mark.parametrize(
    ("label", "is_known"), [(1, True), (-1, False), (2, False), ([0, 5], False)]
)
def test_a_label_without_a_choice_is_named(label, is_known):
    task = types.SimpleNamespace(name="piqa", entry=types.SimpleNamespace(partial=False))
    loaded = types.SimpleNamespace(
        doc_to_choice=lambda row: ["yes", "no"], doc_to_target=lambda row: label
    )
    arguments = (task, 0, loaded, {}, [Score(-1.0, True, 1), Score(-2.0, True, 1)])
    if is_known:
        assert harness._choice_sample(*arguments)["correct"]["acc"] is False
        return
    with pytest.raises(
        DataError, match=r"piqa: a question has the label (-1|2|5), and answers 0 to 1"
    ):
        harness._choice_sample(*arguments)


def test_vocabularies_and_answers_that_do_not_fit_are_named(data_dir, tmp_path, model):
    suite = fabricated_rows.fabricated(suites.get("paper_diff"))
    with pytest.raises(ValueError, match="has 330 tokens; pydoc_lm has 1024"):
        harness.evaluate(registry.make("pydoc_lm"), {}, suite, data_dir, tmp_path, ABOUT)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"the answer '\\n' has 0 tokens.* ends in 'ten'"):
        score_texts(Scorer(*model), Tokens(data_dir), [("ten", "\n")])


def test_an_answer_that_cannot_be_said_is_named_at_the_door(tmp_path):
    """A vocabulary without byte fallback, whose text has neither 'F' nor an underscore."""
    (tmp_path / "spm.model").write_bytes(tokenizer.train(sentences(300, 1), 150))
    suite = suites.get("superglue")
    fabricated_rows.write(tmp_path, suite, WORDS)
    with pytest.raises(ValueError, match="the answer '.*' cannot be said: .*spm.model"):
        suites.check(fabricated_rows.fabricated(suite), tmp_path)


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
