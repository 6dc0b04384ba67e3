"""Masks that are functions of two positions, and lower bounds of the keys that a query sees."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.flex import Bias, Mask, check, flex
from attention.kernels import pairs
from attention.verification import reference

BATCH, LENGTH, HEADS, SIZE, WIDTH = 2, 140, 4, 16, 40


def _causal(i, j):
    return i >= j


def _prefix(i, j):
    """Causal behind a prefix of 50 positions, without every 7th key; some keys nobody sees."""
    return ((i >= j) | (j < 50)) & (j % 7 > 0)


def _documents(i, j):
    """Causal in documents of 30 positions; each sees the first 3, but for the last 20 queries."""
    return (i >= j) & ((i // 30 == j // 30) | (j < 3)) & (i < LENGTH - 20)


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


def _results(mask, kernel="xla", dtype=jnp.float32, **functions):
    """Returns the output and the gradients of query, key and value."""

    def attend(*arrays):
        return flex(*arrays, mask=mask, kernel=kernel, **functions)

    @jax.jit
    def both(*arrays):
        output, pull = jax.vjp(attend, *arrays)
        return output, *pull(jnp.cos(jnp.arange(output.size, dtype=dtype)).reshape(output.shape))

    return both(*_arrays(dtype))


def _agree(results, expected):
    for result, array in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, array)


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


KEYS = np.arange(LENGTH) % 5 > 0
MASKS = {
    "causal": (lambda: Mask.of(_causal), {}),
    "a prefix": (lambda: Mask.of(_prefix), {}),
    "documents, some queries see nothing": (lambda: Mask.of(_documents), {}),
    "documents, some queries see nothing, 1 + output": (
        lambda: Mask.of(_documents),
        {"output_function": lambda r, c: 1 + r},
    ),
    "a prefix, a window, keys": (
        lambda: Mask.of(_prefix) & Mask(width=60, keys=jnp.asarray(KEYS)),
        {"weighting": "sigmoid"},
    ),
    "a prefix, keys hidden by a bias, 1 + output": (
        lambda: Mask.of(_prefix),
        {
            "output_function": lambda r, c: 1 + r,
            "bias": Bias(column=jnp.where(jnp.arange(LENGTH) < 60, -jnp.inf, 0.0)[None]),
        },
    ),
    "bounds": (lambda: _packed()[1], {}),
    "bounds that some queries see nothing of, 1 + output": (
        lambda: Mask(causal=True, lower=jnp.arange(LENGTH) * 2 - 70),
        {"output_function": lambda r, c: 1 + r},
    ),
    "a prefix, documents and bounds": (lambda: Mask.of(_prefix) & _packed()[0] & _packed()[1], {}),
}


# What they have is held by other cases together.
NIGHTLY = ("causal", "a prefix", "documents, some queries see nothing", "bounds")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name in NIGHTLY)) for name in MASKS]
)
def test_kernels(name, platform):
    """Against our core in float64; queries that see nothing return 0."""
    make, functions = MASKS[name]
    with reference.float64():
        exact = jax.tree.map(np.asarray, _results(make(), dtype=jnp.float64, **functions))
    results = _results(make(), "fused", **functions)
    for result, array in zip(results, exact, strict=True):
        assert reference.relative_error(result, array) <= 1e-6
    hidden = np.all(np.asarray(exact[0]) == 0, axis=(0, 2, 3))
    assert not np.asarray(results[0])[:, hidden].any()
    assert hidden.any() or "nothing" not in name


@pytest.mark.parametrize("shape", [(140, 140), (37, 90), (90, 37)])
@pytest.mark.parametrize(
    "function",
    [_causal, _prefix, lambda i, j: i * j % 5 > 3, lambda i, j: i - j >= 3, lambda i, j: i < -1],
)
def test_what_is_known_of_tiles_is_exact(function, shape):
    """What all pairs show, with a window, by tiles whose rows do not divide the lengths."""
    i, j = np.arange(shape[0])[:, None], np.arange(shape[1])
    shown = np.broadcast_to(function(i, j), shape) & (i - j < 60)
    survey = pairs.survey(pairs.PairMask((function,), -(1 << 30), 59, *shape))
    np.testing.assert_array_equal(survey.rows, shown.any(1))
    np.testing.assert_array_equal(survey.columns, shown.any(0))
    if shown.any():
        assert (survey.low, survey.high) == ((i - j)[shown].min(), (i - j)[shown].max())
    inside = (i - j >= survey.low) & (i - j <= survey.high)
    assert survey.is_band == np.array_equal(inside, shown)
    some, whole = survey.tiles((48, 32), (-(-shape[0] // 48), -(-shape[1] // 32)))
    for row, column in np.ndindex(some.shape):
        tile = shown[row * 48 : row * 48 + 48, column * 32 : column * 32 + 32]
        assert (some[row, column], whole[row, column]) == (tile.any(), tile.all())


@pytest.mark.parametrize(
    ("function", "mask"),
    [
        (_causal, Mask(causal=True)),
        (lambda i, j: i > j, Mask(causal=True, strict=True)),
        (lambda i, j: (i >= j) & (i - j < 30), Mask(causal=True, width=30)),
        (lambda i, j: abs(i - j) < 30, Mask(width=30)),
    ],
)
def test_a_function_that_is_a_band_is_that_program(function, mask, platform):
    """Causality and windows have better programs than lists of tiles: no cycle is lost."""

    def program(mask):
        attend = jax.grad(lambda *arrays: flex(*arrays, mask=mask, kernel="fused").sum())
        return re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(attend)(*_arrays())))

    assert program(function) == program(mask)
