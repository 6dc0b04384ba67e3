"""The ViT's numbers and options, and the image workload by AlgoPerf's method names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import registry as variants
from tests.workloads import parameters
from workloads import catalog, registry
from workloads.base import dropout, loader, options, sources
from workloads.base.errors import DataError
from workloads.base.workload import Sizes
from workloads.images import digits, image_workload, imagenet, images, vit
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
    assert float(language_models.correct(batch["targets"][:3], logits[:3]).sum()) == 1


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


def _small(**options):
    return vit.ViT(
        num_classes=5, patch_size=4, width=16, depth=2, mlp_dim=24, num_heads=2, **options
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {},
            [
                [3.15303, -0.66794, 0.84206, -0.3497, 0.29467],
                [1.1669, -0.4142, 2.23281, 1.838, -0.8789],
            ],
        ),
        (
            {"use_glu": True},
            [
                [2.00254, -1.35046, 0.53542, 1.09111, 1.54247],
                [1.68463, -1.54012, 0.3215, 1.07043, 1.69683],
            ],
        ),
        (
            {"use_map": True},
            [
                [-0.60078, 2.15121, 1.97128, 2.5346, 0.6087],
                [0.18434, 0.1615, 0.12327, 0.82411, 0.35191],
            ],
        ),
        (
            {"use_post_layer_norm": True},
            [
                [1.63913, -1.07549, 0.08969, 0.81409, -0.0879],
                [1.80017, -0.98545, 0.85499, -0.26409, -0.37626],
            ],
        ),
    ],
)
def test_logits_are_those_of_plain_numpy(options, expected):
    """As blocks written out in NumPy gave them; tests/algoperf/parity asks AlgoPerf's own model."""
    model = _small(**options)
    images = np.random.RandomState(1).standard_normal((2, 8, 8, 3)).astype(np.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)
    logits = jax.jit(model.apply)(parameters.drawn(shapes, 0.5), images)
    np.testing.assert_allclose(logits, expected, rtol=2e-4, atol=2e-5)


def test_variants_are_paired_by_their_initial_values():
    """The same seed gives every variant the same values in the leaves they share."""
    trees = [
        jax.jit(_small(variant=variants.get(name)).init)(jax.random.key(3), jnp.ones((1, 8, 8, 3)))
        for name in ("standard", "laser+qk_norm")
    ]
    plain, extended = (
        {jax.tree_util.keystr(p): leaf for p, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in trees
    )
    assert set(plain) < set(extended)
    for path, leaf in plain.items():
        np.testing.assert_array_equal(leaf, extended[path])


def test_dropout_rate_and_scale():
    module = dropout.Dropout()
    ones = jnp.ones((200, 500))

    @jax.jit
    def run(rate, key):
        return module.apply({}, ones, rate, False, rngs={"dropout": key})

    for rate in (0.0, 0.1, 0.5, 0.9):
        output = np.asarray(run(rate, jax.random.key(0)))
        assert set(np.unique(output)) <= {0.0, np.float32(1 / np.float32(1 - np.float32(rate)))}
        assert (output == 0).mean() == pytest.approx(rate, abs=4 * np.sqrt(rate * (1 - rate) / 1e5))
    np.testing.assert_array_equal(module.apply({}, ones, 0.5, True), ones)
    # As drawn when neighbours, rows and keys of 10^6 draws were found to be decorrelated.
    mask = dropout.keep_mask(jax.random.key(0), jnp.float32(0.5), (8, 16))
    assert np.packbits(np.asarray(mask)).tobytes().hex() == "ef5a9d8006ab6d0b5e3e41ddfe1eea5b"


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("rate", [1.0, 1 - 1e-9, 1 - 2**-24])
def test_dropout_of_all_has_no_gradient(rate, dtype):
    """1 − 1e-9 is 1 in float32; at 1 − 2^-24 none of so few entries is kept."""

    def total(inputs):
        key = {"dropout": jax.random.key(0)}
        return dropout.Dropout().apply({}, inputs, rate, False, rngs=key).sum()

    value, gradient = jax.value_and_grad(total)(jnp.ones((4, 5), dtype))
    assert value == 0
    np.testing.assert_array_equal(gradient, np.zeros((4, 5)))
