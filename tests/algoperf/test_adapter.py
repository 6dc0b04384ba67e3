"""AlgoPerf's workload objects in our loop: the stand-in's, and AlgoPerf's where it is installed."""

import itertools
import re

import jax
import numpy as np
import pytest

from attention import registry as variants
from sweeps.job import trainer
from sweeps.records import measurements, provenance
from sweeps.training import diagnostics
from tests.algoperf import small_models, tiny_data, tiny_run
from tests.sweeps.conftest import begin_stage, resolve
from workloads import registry
from workloads.algoperf import injected
from workloads.base import spec


def _made(installation, folder, name, variant):
    """AlgoPerf's workload as our registry makes it."""
    places = {
        "algoperf_dir": str(installation.directory),
        "tokenizer_vocab_path": str(folder / "spm_model.vocab"),
    }
    return registry.make(f"algoperf:{name}", variants.get(variant), extra_paths=places)


@pytest.fixture
def make(stand_in, tmp_path):
    """Returns a function that makes the stand-in's workload."""

    def made(name="imagenet_vit", variant="standard"):
        return _made(stand_in, tmp_path, name, variant)

    return made


def _queue(workload, step, seed=3):
    return workload._build_input_queue(seed, "train", "/data", 4, start_step=step)


def _equal(first, second):
    return all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    )


@pytest.mark.filterwarnings("ignore")  # AlgoPerf's and its libraries' own
@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("stand_in", "imagenet_vit"),
        ("algoperf", "imagenet_vit"),
        ("algoperf", "librispeech_conformer"),
    ],
)
def test_batches_are_a_function_of_seed_and_step(request, tmp_path, source, name):
    """ImageNet's signs of rotations and shears are drawn, too, which AlgoPerf leaves to chance."""
    installation = request.getfixturevalue(source)
    if source == "algoperf":
        tiny_data.prepare(tmp_path, name)
    workload = _made(installation, tmp_path, name, "standard")

    def drawn(count, seed=0, step=0):
        queue = workload._build_input_queue(seed, "train", str(tmp_path), 8, start_step=step)
        return list(itertools.islice(queue, count))

    whole = drawn(5)
    assert _equal(drawn(5), whole)
    assert _equal(drawn(1, step=4)[0], whole[4])
    assert not _equal(whole[3], whole[4])
    assert not _equal(drawn(1, seed=1)[0], whole[0])


@pytest.fixture(params=["stand_in", "algoperf"])
def checkout(request, monkeypatch):
    """The stand-in, and AlgoPerf with small models where it is installed."""
    installation = request.getfixturevalue(request.param)
    if request.param == "algoperf":
        for change in list(small_models.small(installation)):
            monkeypatch.setattr(*change)
        monkeypatch.setattr(injected, "with_variant", tiny_run.with_variant)
    return installation


def _curve(checkout, folder, name, workload, variant, stops):
    """The rows of a small trial, trained until each of `stops`, and then to its end: each time in a
    program of its own, as a new process would."""
    changes = {
        "experiment_dir": folder, "name": name, "workload": f"algoperf:{workload}",
        "algoperf_dir": checkout.directory, "data_dir": folder, "protocol": "grid",
        "variants": variant, "baseline": variant, "points": 1, "steps": 4,
        "eval_every": 2, "batch_size": 4, "log_every": 1,
    }  # fmt: skip
    if "librispeech" in workload:
        changes["tokenizer_vocab_path"] = f"{folder}/spm_model.vocab"
    study = resolve("digits_vit_quick", **changes)
    (trial,) = begin_stage(study, "grid")
    directory = study.directory / trial.path
    for stop in (*stops, None):
        job, updates = trainer.Trainer(), itertools.count(1)
        job._stops = lambda updates=updates, stop=stop: next(updates) == stop
        outcome = job.run(directory, study.data_dir).outcome
        assert outcome == ("preempted" if stop else "done")
        (program,) = job._programs.values()
        assert program.compilations == 1
    timed = re.compile("time|second|score|total_duration|preemption_count")
    return [
        {key: value for key, value in row.items() if not timed.search(key)}
        for row in measurements.curve(directory)
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # AlgoPerf's and its libraries' own
@pytest.mark.parametrize(
    ("workload", "variant"),
    [
        ("imagenet_vit", "laser+qk_norm"),
        pytest.param("librispeech_conformer", "diff_laser", marks=pytest.mark.nightly),
    ],
)
def test_a_resumed_trial_measures_what_an_undisturbed_one_does(
    checkout, tmp_path, workload, variant
):
    """Nor does an evaluation depend on how many its process has made before."""
    pytest.importorskip("torch") if "librispeech" in workload else None
    if checkout.directory.name != "stand_in":
        tiny_data.prepare(tmp_path, workload)
    whole, twice = (
        _curve(checkout, tmp_path, name, workload, variant, stops)
        for name, stops in (("whole", ()), ("twice", (3,)))
    )
    assert [row["global_step"] for row in whole if row["kind"] == "eval"] == [2, 4]
    assert len({row["loss"] for row in whole if "loss" in row}) == 4
    assert twice == whole


def test_an_evaluation_without_a_test_split(make):
    """AlgoPerf reports a test loss of 0 over 0 examples."""
    workload = make("finewebedu_lm", "laser")
    params, state = workload.init_model_fn(jax.random.key(0))
    first, second = (
        workload.eval_model(4, params, state, jax.random.key(0), "/data") for _ in range(2)
    )
    assert {name for name in first if name.startswith("test/")} == {"test/num_examples"}
    assert 1 < first["validation/ppl"] == second["validation/ppl"]


def test_trials_record_where_their_workload_is_from(make, tmp_path):
    meta = provenance.meta_data(make("imagenet_vit", "laser"), 0, str(tmp_path))
    assert (
        meta.items()
        >= {
            "workload.num_validation_examples": 4,
            "workload.attention_layers": 2,
            "workload.algoperf_commit": "unknown",
            "attnperf_commit": meta["git_commit_hash"],
        }.items()
    )
    assert meta["workload.algoperf_dir"].endswith("algoperf/stand_in")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "calls"), [("imagenet_vit", 2), ("imagenet_vit_map", 3)])
def test_diagnostics_see_attention_of_every_kind(make, name, calls):
    workload = make(name, "laser")
    params, model_state = workload.init_model_fn(jax.random.key(0))
    compiled, batch = diagnostics.CompiledDiagnostics(workload), next(_queue(workload, 0))
    measured = jax.eval_shape(compiled.measure, params, model_state, batch, 0.0)
    assert len(set(compiled._paths)) == len(measured) == calls


def test_modes_and_model_state_are_those_of_our_loop(make, monkeypatch, stand_in):
    """AlgoPerf's Conformer: statistics of shape [D] are [1, 1, D] after the first update."""
    base, calls = stand_in.module("algoperf.workloads.base").TinyWorkload, []
    original = base.model_fn

    def model_fn(self, *args, use_running_average_bn=None, dropout_rate=0.0):
        calls.append((args[3], use_running_average_bn))
        return original(self, *args)[0], {"mean": args[1]["inputs"].mean((0, 1), keepdims=True)}

    monkeypatch.setattr(base, "model_fn", model_fn)
    workload, key = make(), jax.random.key(0)
    params, _ = workload.init_model_fn(key)
    batch, state = next(_queue(workload, 0)), {"mean": np.zeros(8)}
    theirs = stand_in.module("algoperf.spec").ForwardPassMode
    for mode, running in (("EVAL", None), ("EVAL", False), ("TRAIN", True)):
        arguments = (spec.ForwardPassMode[mode], key, False, running)
        _, new = workload.model_fn(params, batch, state, *arguments)
        assert calls.pop() == (theirs[mode], running)
        np.testing.assert_array_equal(new["mean"], batch["inputs"].mean((0, 1)))


def test_an_algoperf_without_a_dropout_rate_is_refused(stand_in, make, monkeypatch):
    def older(self, params, batch, model_state, mode, rng, update_batch_norm):
        raise NotImplementedError

    base = stand_in.module("algoperf.workloads.base").TinyWorkload
    monkeypatch.setattr(base, "model_fn", older)
    with pytest.raises(ValueError, match="gives its model a dropout rate when it is made"):
        make()
