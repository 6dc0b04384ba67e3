"""The image workload: batches, mixup, loss, metrics, all through AlgoPerf's method names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from workloads import catalog, registry
from workloads.base import loader, options, sources
from workloads.base.errors import DataError
from workloads.base.workload import Sizes
from workloads.images import digits, image_workload, imagenet, images
from workloads.text import language_models


@pytest.fixture(scope="module")
def data_dir(made_once):
    return str(made_once("digits", digits.DIGITS.prepare))


@pytest.fixture(scope="module")
def workload():
    return registry.make("digits_vit")


def test_a_batch_has_no_example_twice(workload, data_dir):
    assert next(workload._build_input_queue(5, "train", data_dir, 997))["targets"].shape == (997,)
    with pytest.raises(ValueError, match="998 examples.* 997"):
        next(workload._build_input_queue(5, "train", data_dir, 998))


def test_mixup_mixes_neighbours_with_one_weight(data_dir):
    """inputs and targets are the same convex combination of an example and its neighbour."""
    mixing = image_workload.Images(
        image_size=32, num_classes=10, sizes=Sizes(997, 400, 400, 400, 400), mixup_alpha=0.2,
        cache=True,
        train_transform=images.shifted_view,
        eval_transform=images.shifted_view,
    )  # fmt: skip
    plain = image_workload.Images(**{**vars(mixing), "mixup_alpha": 0.0})
    mixed, raw = (
        next(
            image_workload.ImageWorkload(
                catalog.get("digits_vit"), data, None, options.Options()
            )._build_input_queue(1, "train", data_dir, 8)
        )
        for data in (mixing, plain)
    )
    one_hot = np.asarray(jax.nn.one_hot(raw["targets"], 10))
    partner = np.roll(one_hot, 1, axis=0)
    differ = (one_hot != partner).any(1)
    weights = np.asarray(mixed["targets"])[one_hot.astype(bool)][differ]
    assert np.ptp(weights) < 1e-6
    weight = weights[0]
    assert 0 < weight < 1
    np.testing.assert_allclose(
        mixed["targets"], weight * one_hot + (1 - weight) * partner, atol=1e-6
    )
    expected = weight * raw["inputs"] + (1 - weight) * np.roll(raw["inputs"], 1, axis=0)
    np.testing.assert_allclose(mixed["inputs"], expected, atol=1e-5)


def test_loss_by_hand(workload):
    """Two classes at logits (ln 3, 0, -inf…): smoothing 0.1 over 10 classes."""
    logits = jnp.log(jnp.asarray([[3.0] + [1.0] * 9]))
    log_p = np.log(np.array([3.0] + [1.0] * 9) / 12)
    losses = workload.loss_fn(jnp.asarray([0]), logits, None, 0.1)
    labels = np.full(10, 0.01)
    labels[0] += 0.9
    assert float(losses["summed"]) == pytest.approx(-(labels * log_p).sum(), rel=1e-6)
    mixed = workload.loss_fn(jnp.asarray([[0.5, 0.5] + [0.0] * 8]), logits)
    assert float(mixed["summed"]) == pytest.approx(-(log_p[0] + log_p[1]) / 2, rel=1e-6)
    two = workload.loss_fn(jnp.zeros(2, int), jnp.tile(logits, (2, 1)), jnp.asarray([1.0, 0.0]))
    assert float(two["n_valid_examples"]) == 1
    assert float(two["summed"]) == pytest.approx(-log_p[0], rel=1e-6)


def test_nan_is_no_right_answer(workload, monkeypatch):
    """The argmax of NaN is class 0, which the first example is of; the last one fills up."""
    logits = jnp.full((4, 10), jnp.nan).at[2:].set(jnp.arange(10.0))
    batch = {"targets": jnp.asarray([0, 1, 9, 9]), "weights": jnp.asarray([1.0, 1.0, 1.0, 0.0])}
    monkeypatch.setattr(type(workload), "_eval_logits", lambda *ignored: logits)
    sums, _ = workload._evaluated({}, None, batch)
    assert float(sums["accuracy"]) == 1
    assert float(language_models.correct(batch["targets"][:3], logits[:3])) == 1


@pytest.mark.parametrize("count", [3, 400])
def test_metrics_are_of_what_was_evaluated(count, data_dir, monkeypatch):
    """As many images as there are, whatever the table of sizes says; equal logits say class 0."""
    workload = registry.make("digits_vit")
    whole = workload._source("validation", data_dir)
    labels = [whole[number]["label"] for number in range(count)]
    monkeypatch.setattr(workload, "_eval_logits", lambda *ignored: jnp.zeros((150, 10)))
    monkeypatch.setattr(workload, "_source", lambda *ignored: sources.Subset(whole, range(count)))
    metrics = workload._eval_model_on_split("validation", 150, {}, None, None, str(count))
    assert metrics == {
        "accuracy": pytest.approx(labels.count(0) / count),
        "loss": pytest.approx(np.log(10), rel=1e-6),
        "num_examples": count,
    }


def test_a_directory_of_more_classes_is_refused(data_dir, tmp_path):
    image = digits.DIGITS.open_split(data_dir, "test")[0]["image"]
    example = {"image": image, "label": 10, "file_name": "ten"}
    examples = {role: [example] for role in imagenet.DATASETS}
    imagenet.write(tmp_path, examples, num_classes=11, description="eleven", encoding="png")
    with pytest.raises(DataError, match="11 classes, the model of digits_vit 10"):
        registry.make("digits_vit")._source("train", str(tmp_path))


def test_batches_are_read_by_the_loader_s_workers(data_dir, monkeypatch):
    def read(source, **options):
        raise LookupError(options["num_workers"])

    monkeypatch.setattr(loader, "train_batches", read)
    monkeypatch.setattr(loader, "eval_batches", read)
    workload = registry.make("digits_vit")
    workload.loader_workers = 9
    for split in ("train", "test"):
        with pytest.raises(LookupError, match="9"):
            next(workload._build_input_queue(0, split, data_dir, 200))


def test_shapes_are_known_after_initialisation():
    with pytest.raises(ValueError, match="init_model_fn"):
        _ = registry.make("imagenet_vit").param_shapes


def test_imagenet_is_mixed_as_in_algoperf():
    assert image_workload.IMAGENET.mixup_alpha == 0.2
