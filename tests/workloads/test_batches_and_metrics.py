"""What batches and evaluations of every kind of workload keep, on a few examples."""

import jax
import numpy as np
import pytest

from tests.workloads import parameters, small_speech, small_text
from workloads import registry
from workloads.base import spec
from workloads.base.errors import DataError
from workloads.images import digits

METRICS = {
    "digits_vit": {"accuracy", "loss"},
    "pydoc_lm": {"loss", "perplexity"},
    "pydoc_bert": {"accuracy", "loss"},
    "pydoc_finewebedu": {"loss", "ppl"},
    "spoken_digits_conformer": {"wer", "ctc_loss", "loss"},
}


@pytest.fixture(scope="module", params=METRICS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def workload_and_data(name, made_once, tmp_path_factory):
    if name == "digits_vit":
        return registry.make(name), str(made_once("digits", digits.DIGITS.prepare))
    if name == "spoken_digits_conformer":
        return small_speech.make(), small_speech.write(tmp_path_factory.mktemp("speech"))
    return small_text.make(name), "in memory"


@pytest.fixture
def workload(workload_and_data):
    return workload_and_data[0]


@pytest.fixture
def data_dir(workload_and_data):
    return workload_and_data[1]


def _train_batches(workload, data_dir, seed, count, **start):
    queue = workload._build_input_queue(seed, "train", data_dir, 4, **start)
    return [next(queue) for _ in range(count)]


def test_batches_are_a_function_of_seed_and_step(workload, data_dir):
    batches = _train_batches(workload, data_dir, 5, 3)
    later = _train_batches(workload, data_dir, 5, 1, start_step=2)
    jax.tree.map(np.testing.assert_array_equal, later, batches[2:])
    (another,) = _train_batches(workload, data_dir, jax.random.key(6), 1)
    differ = jax.tree.map(lambda a, b: bool((a != b).any()), another, batches[0])
    assert any(jax.tree.leaves(differ))


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("wrong", ["beyond", -1, 2**32 + 5])
def test_ids_that_the_model_does_not_have_are_refused(
    workload, data_dir, split, wrong, monkeypatch
):
    """Before 64 bits become 32: 2^32 + 5 is not 5."""
    ((entry, limit),) = workload.id_limits.items()
    wrong = limit if wrong == "beyond" else wrong
    kind = "train_transform" if split == "train" else "eval_transform"
    plain = getattr(workload, kind)

    def transform(record, generator):
        example = plain(record, generator)
        return {**example, entry: np.full(np.shape(example[entry]), wrong, np.int64)}

    monkeypatch.setattr(workload, kind, transform)
    with pytest.raises(DataError, match=rf"example \d+ has {wrong} among its {entry}.*{limit - 1}"):
        next(workload._build_input_queue(0, split, data_dir, 4))


def test_example_batches_have_the_shapes_of_training(workload, data_dir):
    """`compile` and `bench` train on them."""
    (batch,) = _train_batches(workload, data_dir, 0, 1)
    shapes, expected = (
        jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), batches)
        for batches in (workload.example_batch(4), batch)
    )
    assert shapes == expected


@pytest.mark.slow
def test_evaluations_count_every_example_once(name, workload, data_dir):
    """Batches that are filled up give the metrics of one whole batch; its loss is the mean."""
    key, count = jax.random.key(0), workload.num_validation_examples
    params, state = workload.init_model_fn(key)
    params = parameters.moved(params, 0.2)
    metrics = workload.eval_model(count, params, state, key, data_dir)
    in_parts = workload.eval_model(count * 2 // 3, params, state, key, data_dir)
    assert metrics == pytest.approx(in_parts, rel=1e-5)
    splits = ("train", "validation", "test")[: 2 + (workload.num_test_examples > 0)]
    names = {f"{split}/{metric}" for split in splits for metric in METRICS[name]}
    assert set(metrics) == {*names, "validation/num_examples", "test/num_examples"}
    assert metrics["validation/num_examples"] == count
    (batch,) = workload._build_input_queue(0, "validation", data_dir, count)
    outputs, _ = workload.model_fn(params, batch, state, spec.ForwardPassMode.EVAL, key, False)
    losses = workload.loss_fn(batch["targets"], outputs, batch["weights"])
    mean = float(losses["summed"] / losses["n_valid_examples"])
    assert metrics["validation/loss"] == pytest.approx(mean, rel=1e-5)
