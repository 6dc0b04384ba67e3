"""The logarithm of each row's mass, and parts of the keys merged by it, against attention by hand.

The reference is float64, its gradients those of JAX.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import records
from attention.flex import Bias, Weighting, check, flex, merge
from attention.functions import exponential
from attention.verification import reference
from tests.attention.interpreted import PLATFORMS, interpreted

LENGTH, HEADS, PARTS = 48, 4, 4
SINK = Weighting(exponential, exponential, same=True, start="sink")
# Without the registry's constant mass in each row, which parts would count again.
SOFTPICK = Weighting(
    lambda x, s: jax.nn.relu(jnp.exp(x - s) - jnp.exp(-s)),
    lambda x, s: jnp.abs(jnp.exp(x - s) - jnp.exp(-s)),
    floor=0.0,
)
# What flex gets, weights and masses of logits by hand, and the function of values.
CASES = {
    "softmax": ({}, jnp.exp, jnp.exp, lambda v: v),
    "softpick": (
        {"weighting": SOFTPICK},
        lambda x: jax.nn.relu(jnp.exp(x) - 1),
        lambda x: jnp.abs(jnp.exp(x) - 1),
        lambda v: v,
    ),
    "a sink": ({}, jnp.exp, jnp.exp, lambda v: v),
    "LASER": ({"value_function": lambda v, c: jnp.exp(v)}, jnp.exp, jnp.exp, jnp.exp),
}


def _arrays(dtype):
    rng = np.random.default_rng(0)
    shapes = [(2, LENGTH, HEADS, 16), *[(2, LENGTH, 2, 16)] * 2, (2, HEADS, LENGTH), (HEADS,)]
    return [jnp.asarray(rng.normal(size=shape), dtype).astype("float32") for shape in shapes]


def _seen():
    i, j = np.arange(LENGTH)[:, None], np.arange(LENGTH)
    return (i >= j) & (i > 3)


def _by_hand(name, query, key, value, row, sink):
    _, weights_of, mass_of, raised = CASES[name]
    key, value = (jnp.repeat(array, HEADS // 2, 2) for array in (key, value))
    logits = jnp.einsum("bthd,bshd->bhts", query, key) / 4 + row[..., None]
    weights, mass = (jnp.where(_seen(), function(logits), 0) for function in (weights_of, mass_of))
    total = mass.sum(-1) + (jnp.exp(sink)[:, None] if name == "a sink" else 0)
    safe = jnp.where(total > 0, total, 1)
    output = jnp.einsum("bhts,bshd->bthd", weights / safe[..., None], raised(value))
    return output, jnp.where(total > 0, jnp.log(safe), -jnp.inf)


def _whole(name, kernel, dtype, query, key, value, row, sink, keys=slice(None), has_sink=True):
    settings = CASES[name][0]
    if name == "a sink" and has_sink:
        settings = {"weighting": SINK, "leaves": {"sink": ("head", sink)}}
    query, key, value = (array.astype(dtype) for array in (query, key, value))
    return flex(
        query,
        key[:, keys],
        value[:, keys],
        mask=jnp.asarray(_seen())[:, keys],
        bias=Bias(row=row),
        kernel=kernel,
        return_lse=True,
        **settings,
    )


def _merged(name, kernel, dtype, *arrays):
    size = LENGTH // PARTS
    parts = [
        _whole(name, kernel, dtype, *arrays, slice(n * size, (n + 1) * size), n == 2)
        for n in range(PARTS)
    ]
    return merge(*zip(*parts, strict=True))


def _with_gradients(attend, arrays):
    def loss(arrays):
        output, lse = attend(*arrays)
        shown = jnp.where(lse > -jnp.inf, lse, 0)
        terms = jnp.sin(jnp.arange(output.size).reshape(output.shape)) * jnp.log1p(output**2)
        return terms.sum() + (shown * jnp.cos(jnp.arange(lse.size).reshape(lse.shape))).sum(), (
            output,
            lse,
        )

    return jax.jit(jax.value_and_grad(loss, has_aux=True))(arrays)


@pytest.mark.parametrize("kernel", ["xla", *PLATFORMS])
@pytest.mark.parametrize(
    ("name", "dtype", "limit"),
    [
        ("a sink", "float32", 2e-6),
        *(
            pytest.param(name, "float32", 2e-6, marks=pytest.mark.slow)
            for name in CASES
            if name != "a sink"
        ),
        pytest.param("softmax", "bfloat16", 6e-3, marks=pytest.mark.slow),
    ],
)
def test_parts_of_the_keys_merged_equal_the_whole(name, dtype, limit, kernel):
    """Output, lse and gradients of both; a sink in one part; rows that see nothing somewhere."""
    arrays = _arrays(dtype)
    with reference.float64():
        wide = [jnp.asarray(np.float64(array)) for array in arrays]
        exact = jax.tree.map(np.asarray, _with_gradients(functools.partial(_by_hand, name), wide))
    record = kernel if kernel == "xla" else interpreted(kernel)
    for attend in (_whole, _merged):
        (_, (output, lse)), bars = _with_gradients(
            functools.partial(attend, name, record, dtype), arrays
        )
        assert output.dtype == dtype
        assert lse.dtype == jnp.float32
        assert lse.shape == (2, HEADS, LENGTH)
        np.testing.assert_array_equal(lse == -jnp.inf, exact[0][1][1] == -np.inf)
        sees = exact[0][1][1] > -np.inf
        assert reference.relative_error(output, exact[0][1][0]) <= limit
        assert reference.relative_error(lse[sees], exact[0][1][1][sees]) <= limit
        for number, (bar, expected) in enumerate(zip(bars, exact[1], strict=True)):
            if np.any(expected):
                assert reference.relative_error(bar, expected) <= limit, number
            else:
                assert not np.any(bar)
    if kernel != "xla":
        jax.clear_caches()


def test_what_has_no_mass_is_refused_by_name():
    arrays = [jnp.ones((1, 8, 2, 8))] * 3
    for weighting in ("sigmoid", "stick_breaking"):
        with pytest.raises(ValueError, match=weighting):
            flex(*arrays, weighting=weighting, return_lse=True)
    with pytest.raises(ValueError, match="kernel='splash'.*'xla' or kernel='fused'"):
        check(*arrays, kernel="splash", return_lse=True)
    check(*arrays, kernel="fused", return_lse=True)
    jax_xla = records.kernel("jax_xla")
    ignoring = dataclasses.replace(jax_xla, call=lambda problem, value: value)
    with pytest.raises(ValueError, match=r"problem\.with_lse"):
        flex(*arrays, kernel=ignoring, return_lse=True)
    with pytest.raises(ValueError, match="as many of both"):
        merge(arrays[:2], [jnp.ones((1, 2, 8))])


def test_a_square_over_its_sum():
    """Masses are functions of the logits alone: the lse is the logarithm of their sum."""

    def square(x, s):
        return jax.nn.relu(x) ** 2

    query, key, value, *_ = _arrays("float32")
    squares = Weighting(square, square, scales=False)
    _, lse = flex(query, key[:, :5], value[:, :5], weighting=squares, return_lse=True)
    logits = np.einsum("bthd,bshd->bhts", query, np.repeat(key[:, :5], 2, 2)) / 4
    with np.errstate(divide="ignore"):
        expected = np.log((np.maximum(logits, 0) ** 2).sum(-1))
    np.testing.assert_allclose(lse, expected, rtol=1e-5, atol=2e-6)
