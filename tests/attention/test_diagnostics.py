"""Diagnostics of a layer, against numbers worked out by hand and laws that hold for any."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from attention import probe, registry
from attention.kernels import core, inputs
from attention.masks import Bias, Mask, merged
from attention.verification import layer_statistics


def _layer(weights, value=None, mask=None, dtype=jnp.float32, mixer="standard"):
    """Returns a layer whose logits are ln(weights), [T, S] or [B, H, T, S]: keys are a basis."""
    weights = np.asarray(weights, np.float64)
    weights = weights.reshape((1,) * (4 - weights.ndim) + weights.shape)
    batch, heads, _, keys = weights.shape
    query = jnp.asarray(np.moveaxis(np.log(weights), 1, 2), dtype)
    basis = jnp.broadcast_to(jnp.eye(keys, dtype=dtype)[:, None], (batch, keys, heads, keys))
    if value is None:
        value = np.zeros((batch, keys, heads, 1))
    mask = None if mask is None else jnp.asarray(mask, bool)
    return probe.Layer(
        query=query,
        key=basis,
        value=jnp.asarray(value, dtype),
        bias=Bias(),
        masks=merged(Mask(dense=mask), query.shape[1], keys),
        leaves=(),
        scale=1.0,
        precision=None,
        path="",
        span=core.KERNEL.span,
        mixer=mixer,
        score=(),
    )


def test_weights_of_sigmoid_by_hand():
    """Four keys of logits ln 4 and 0: weights 1/2 and 1/5, whose slopes are a·(1 − a).

    They are no distribution, so that there is no entropy; a hidden key does not count.
    """
    logits = np.array([[4.0, 1.0, 1.0, 1.0]])
    found = _summary(_layer(logits, mask=[[1, 1, 1, 0]], mixer="sigmoid"))
    assert (found["entropy"], found["entropy_share"]) == (None, None)
    assert found["jacobian_mean"] == pytest.approx(math.sqrt(0.25**2 + 2 * 0.16**2), rel=1e-6)
    # log10(1/5) = −0.7 lies in the last but one of the bins.
    assert found["histogram"] == [0] * (layer_statistics.BINS - 2) + [2, 1]
    assert "nonfinite" not in found


def _summary(layer, **gradients):
    return layer_statistics.summary(jax.jit(layer_statistics.measure)(layer), gradients)


def test_masked_entries_do_not_count():
    """Row 0 sees one key, row 1 two, row 2 none: six of nine entries are hidden."""
    mask = [[1, 0, 0], [1, 1, 0], [0, 0, 0]]
    found = _summary(_layer([[1, 1, 1], [0.2, 0.8, 1], [1, 1, 1]], mask=mask))
    entropy = -(0.2 * math.log(0.2) + 0.8 * math.log(0.8))
    assert found["histogram"] == [0] * (layer_statistics.BINS - 2) + [1, 2]
    assert found["entropy"] == pytest.approx(entropy / 2, rel=1e-6)
    assert found["entropy_share"] == pytest.approx(entropy / math.log(2), rel=1e-6)
    # A row of one key has no Jacobian; of (p, 1 − p) its norm is 2·p·(1 − p).
    assert found["jacobian_mean"] == pytest.approx(0.16, rel=1e-6)
    assert found["jacobian_max"] == pytest.approx(0.32, rel=1e-6)


def test_shares_count_what_lies_below():
    """One head's row of 1e-9, 1e-5, 1e-2 and the rest; the bins hold [10^a, 10^b)."""
    small = [1e-13, 1e-9, 1e-5, 1e-2]
    found = _summary(_layer([[*small, 1 - sum(small)]]))
    assert found["share_below_1e-7"] == pytest.approx(2 / 5)
    assert found["share_below_1e-3"] == pytest.approx(3 / 5)
    assert found["histogram"][0] == 1
    assert sum(found["histogram"]) == 5
    assert found["histogram"][-1] == 1
    edges = layer_statistics.HISTOGRAM_EDGES
    assert (edges[0], edges[-1], len(found["histogram"])) == (-12, 0, len(edges))


@pytest.mark.parametrize("largest", [0.5, 0.9, 1 - 1e-3, 1 - 1e-6])
def test_jacobian_norm_is_that_of_the_matrix(largest):
    """Float32, where the plain closed form leaves 3e-4 of a norm of 2e-6."""
    rest = np.array([0.5, 0.3, 0.2]) * (1 - largest)
    row = np.array([*rest, largest])
    exact = np.linalg.norm(np.diag(row) - np.outer(row, row))
    closed = math.sqrt((row**2).sum() - 2 * (row**3).sum() + (row**2).sum() ** 2)
    assert closed == pytest.approx(exact, rel=1e-3)
    found = core.softmax_jacobian_norm(jnp.asarray(row, jnp.float32))
    assert float(found) == pytest.approx(exact, rel=1e-6)


def test_ranges_of_values_by_hand():
    """Two entries, two channels; the second entry's last key is padding and its value huge."""
    value = np.array([[[0, 1], [3, -1], [1, 0]], [[0, 0], [100, 5], [1e6, -1e6]]], np.float64)
    mask = np.ones((2, 1, 3, 3), bool)
    mask[1, ..., 2] = False
    layer = _layer(np.full((2, 1, 3, 3), 1 / 3), value[:, :, None], mask)
    found = _summary(layer)
    # Ranges 3, 2, 100, 5; only 100 is more than 80 nats above min(mean, min + ln 16).
    assert found["value_range_min"] == 2
    assert found["value_range_median"] == 4
    assert found["value_range_max"] == 100
    assert (found["channels"], found["floored_channels"]) == (4, 1)


def test_what_does_not_exist_is_none():
    found = _summary(_layer([[1, 1]], mask=[[0, 0]]), logit=0.25)
    numbers = {name for name, given in found.items() if given is not None}
    assert numbers == {"logit_grad_norm", "channels", "floored_channels"}
    assert found["channels"] == 0
    one = _summary(_layer([[1.0]]))
    assert (one["entropy"], one["entropy_share"]) == (0, None)
    assert "nonfinite" not in one


def test_what_is_not_finite_is_named():
    weights = np.ones((2, 3))
    weights[1, 2] = np.nan
    value = np.zeros((1, 3, 1, 1))
    value[0, 0] = np.inf
    found = _summary(_layer(weights, value), query=np.nan, key=1.0)
    assert found["key_grad_norm"] == 1
    assert found["logit_grad_norm"] is None
    assert found["histogram"] is None
    assert {"histogram", "share_below_1e-3", "entropy", "query_grad_norm"} <= set(
        found["nonfinite"]
    )
    assert "value_range_max" in found["nonfinite"]
    assert "logit_grad_norm" not in found["nonfinite"]
    assert all(found[name] is None for name in found["nonfinite"])


def test_norms():
    assert float(layer_statistics.norm(jnp.asarray([[3.0, 0.0], [0.0, 4.0]]))) == 5
    assert float(layer_statistics.norm(jnp.full(4, 1e-30))) == pytest.approx(2e-30, rel=1e-6, abs=0)
    assert float(layer_statistics.norm(jnp.zeros(3))) == 0
    tree = {"a": {"query": {"kernel": jnp.full(4, 2.0)}, "out": {"kernel": jnp.ones(1)}}}
    assert {name: float(n) for name, n in layer_statistics.kernel_norms(tree, "a").items()} == {
        "query": 4
    }
    assert layer_statistics.kernel_norms(tree, "b/c") == {}


@pytest.mark.parametrize(
    ("name", "hiding"),
    [
        ("standard", "none"),
        ("standard", "columns"),
        ("laser+sink", "mask by head"),
        ("diff2+sink", "columns"),
        ("diff2+sink", "mask by head"),
        ("diff_laser", "mask by head"),
    ],
)
def test_grouped_heads_are_measured(name, hiding):
    """Four heads of queries and two of keys: a channel is one of a query's head."""
    rng = np.random.default_rng(0)
    query, x = (jnp.asarray(rng.standard_normal(shape)) for shape in ((2, 5, 4, 6), (2, 5, 8)))
    settings = {
        "none": {},
        "mask by head": {"mask": jnp.asarray(rng.random((4, 5, 5)) < 0.7)},
        "columns": {"bias": Bias(column=jnp.zeros((4, 5)).at[1:, 3:].set(-1e9))},
    }[hiding]

    class Model(nn.Module):
        @nn.compact
        def __call__(self):
            value = query[:, :, :2]
            call = inputs.make_call(query, value, value, x=x, layer=0, **settings)
            return registry.get(name).attend(call)

    with probe.probed() as record:
        Model().init(jax.random.key(0))
    found = _summary(record.layers[0])
    heads = record.layers[0].query.shape[-2]
    assert found["channels"] == 2 * heads * 6
    assert found["entropy"] > 0
    assert "nonfinite" not in found
    assert sum(found["histogram"]) == int(record.layers[0].visible().sum())
