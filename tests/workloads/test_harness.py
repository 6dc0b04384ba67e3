"""Suites asked of a tiny decoder, on fabricated questions, without a network."""

import gzip
import json
import math
import socket

import jax
import numpy as np
import pytest

from attention import registry as variants
from tests.workloads import fabricated_rows
from tests.workloads.conftest import VOCABULARY, WORDS
from workloads import catalog
from workloads.base.options import Options
from workloads.base.workload import Sizes
from workloads.downstream import harness, suites
from workloads.text.language_models import LMWorkload
from workloads.text.specs import TransformerSize

pytest.importorskip("lm_eval", reason="needs .[downstream]")

SIZE = TransformerSize(1, 8, 16, 2, 4, vocabulary=VOCABULARY, context=128)
ABOUT = {"trial_id": "t", "variant": "laser", "workload": "tiny", "seed": 0, "step": 7}


@pytest.fixture(scope="module")
def model():
    laser = variants.get("laser")
    sizes = Sizes(50, 6, 14, 9, 4)
    workload = LMWorkload(catalog.get("pydoc_lm"), laser, Options(), SIZE, sizes)
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
    for name in ("paper_one_shot", "paper_7b", "superglue"):
        fabricated_rows.write(folder, suites.get(name), WORDS)
    return folder


def _samples(directory):
    with gzip.open(directory / "samples.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _by_hand(sample):
    """The metrics that the choices of a line give; `acc_norm` needs letters, which it has not."""
    choices, gold = sample["choices"], sample["gold"]
    right = gold if isinstance(gold, list) else [gold]
    given = np.array([choice["loglikelihood"] for choice in choices])
    found = {
        "acc": given,
        "acc_per_token": given / [choice["tokens"] for choice in choices],
    }
    if choices[0]["unconditional"] is not None:
        alone = np.array([choice["unconditional"] for choice in choices])
        found["acc_mutual_info"] = given - alone
    return {name: int(np.argmax(one)) in right for name, one in found.items()}


@pytest.mark.parametrize("name", ["paper_one_shot", "paper_7b", "paper_diff"])
def test_every_task_of_the_paper_runs(name, model, data_dir, tmp_path, no_network):
    suite = fabricated_rows.fabricated(suites.get(name))
    results = harness.evaluate(*model, suite, data_dir, tmp_path, ABOUT)
    assert results == json.loads((tmp_path / "results.json").read_text())
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "samples.jsonl.gz"}
    assert list(results["tasks"]) == [task.name for task in suite.tasks]
    samples = _samples(tmp_path)
    for task in suite.tasks:
        told = results["tasks"][task.name]
        own = [sample for sample in samples if sample["task"] == task.name]
        assert told["n"] == len(own) == fabricated_rows.N
        assert told["shots"] == 1
        assert task.primary in told["metrics"]
        for metric, value in told["metrics"].items():
            assert value == np.mean([sample["correct"][metric] for sample in own])
        for sample in own:
            assert _by_hand(sample).items() <= sample["correct"].items()
            for choice in sample["choices"]:
                assert math.isfinite(choice["loglikelihood"])
                assert (choice["unconditional"] is None) == task.entry.partial


def test_superglue_is_generated_and_ranked(model, data_dir, tmp_path, no_network):
    suite = fabricated_rows.fabricated(suites.get("superglue"))
    results = harness.evaluate(*model, suite, data_dir, tmp_path, ABOUT)
    for sample in _samples(tmp_path):
        ranked = bool(sample["allowed"])
        assert set(sample["correct"]) == {"exact_match", "acc"} if ranked else {"exact_match"}
        assert sample["decodable"] == (sample["answer"] in sample["allowed"]) or not ranked
    assert all(task["majority"] > 0.3 for task in results["tasks"].values())
