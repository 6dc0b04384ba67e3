"""Masks that are functions of two positions, and lower bounds of the keys that a query sees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.flex import Mask, check, flex

BATCH, LENGTH, HEADS, SIZE, WIDTH = 2, 140, 4, 16, 40


def _causal(i, j):
    return i >= j


def _prefix(i, j):
    """Causal behind a prefix of 50 positions, without every 7th key; some keys nobody sees."""
    return ((i >= j) | (j < 50)) & (j % 7 > 0)


def _arrays(dtype=jnp.float32, length=LENGTH):
    """Returns query, key and value."""
    keys = jax.random.split(jax.random.key(0), 3)
    shape = (BATCH, length, HEADS, SIZE)
    return [jax.random.normal(key, shape, jnp.float32).astype(dtype) for key in keys]


def _dense(function, length=LENGTH):
    return np.broadcast_to(function(np.arange(length)[:, None], np.arange(length)), (length,) * 2)


def _packed():
    """Returns documents with a window as segments, and as lower bounds."""
    ids = jnp.stack([jnp.arange(LENGTH) // 50, jnp.arange(LENGTH) // 90])
    start = ids * jnp.array([[50], [90]])
    lower = jnp.maximum(start, jnp.arange(LENGTH) - WIDTH + 1)
    return Mask(causal=True, width=WIDTH, segments=(ids, ids)), Mask(causal=True, lower=lower)


def _results(mask, kernel="xla", dtype=jnp.float32):
    """Returns the output and the gradients of query, key and value."""

    def attend(*arrays):
        return flex(*arrays, mask=mask, kernel=kernel)

    output, pull = jax.vjp(attend, *_arrays(dtype))
    return output, *pull(jnp.cos(output))


def _agree(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kernel", ["xla", "jax_xla"])
def test_a_function_is_the_array_of_its_values(kernel):
    both = Mask(width=60) & _prefix
    dense = _dense(_prefix) & _dense(lambda i, j: abs(i - j) < 60)
    _agree(_results(both, kernel), _results(dense, kernel))
    _agree(
        _results(Mask.of(_causal) & Mask.of(_prefix), kernel),
        _results(_dense(_causal) & _dense(_prefix), kernel),
    )


def test_bounds_are_documents_with_a_window():
    segments, lower = _packed()
    _agree(_results(lower), _results(segments))
    later = Mask(lower=jnp.arange(LENGTH) - 3)
    _agree(_results(lower & later), _results(Mask(causal=True, width=4) & segments))


def test_bounds_by_layer_under_scan_are_one_program():
    """Windows of 5 and of 40, of layers that are one traced body."""
    query, key, value = _arrays()
    positions = jnp.arange(LENGTH)

    @jax.jit
    def layers(widths):
        def layer(x, width):
            return flex(x, key, value, mask=Mask(causal=True, lower=positions - width + 1)), None

        return jax.lax.scan(layer, query, widths)[0]

    found = layers(jnp.array([5, WIDTH]))
    first = flex(query, key, value, mask=Mask(causal=True, width=5))
    expected = flex(first, key, value, mask=Mask(causal=True, width=WIDTH))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (lambda i, j: i - j, "mask function .*returns int32"),
        (lambda i, j: i >= jnp.arange(3), "mask function .*returns bool"),
        (lambda i, j: i >= jnp.arange(LENGTH)[j], "mask function .*uses iota"),
        (lambda i, j: (i >= j) & np.ones((1, 1), bool), "mask function .*captures an array"),
        (lambda i, j: jnp.cumsum(i >= j, 0) > 0, "mask function .*uses cumsum"),
        (lambda i: i > 0, "mask function .*cannot be traced"),
        (Mask.of(3), "3 is no function"),
        (Mask(lower=jnp.ones(LENGTH)), "mask.lower has dtype float32"),
        (Mask(lower=jnp.ones(3, int)), r"mask.lower has shape \(3,\)"),
    ],
)
def test_what_is_no_such_mask_is_refused(mask, message):
    with pytest.raises(ValueError, match=message):
        flex(*_arrays(), mask=mask)


@pytest.mark.parametrize("mask", [_causal, Mask(lower=jnp.zeros(LENGTH, int))])
def test_a_kernel_without_such_masks_refuses_them_by_name(mask):
    with pytest.raises(ValueError, match="kernel='splash' has no .*use kernel='xla'"):
        check(*_arrays(), mask=mask, kernel="splash")
