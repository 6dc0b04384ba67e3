"""The numerics table: every limit, on seeds and shapes of the tests' own."""

import functools
import itertools
import math
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import __main__ as command
from attention import registry
from attention.mixers import laser, standard
from attention.verification import check, reference

ATTEND = {"standard": standard.attend, "laser": laser.attend}


def _inputs(shape, qs, vs, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    query, key, value, cotangent = (rng.standard_normal(shape) for _ in range(4))
    return [jnp.asarray(a, dtype) for a in (qs * query, key, vs * value, cotangent)]


@functools.partial(jax.jit, static_argnames=("mixer", "is_causal", "kernel", "dropout_rate"))
def _run(mixer, arrays, **settings):
    *qkv, cotangent = arrays
    output, pullback = jax.vjp(lambda *qkv: ATTEND[mixer](*qkv, **settings), *qkv)
    return output, pullback(cotangent)


def _check_against_reference(mixer, arrays, mask, settings):
    """Returns output and gradients, which are those of float64 within the limits of float32."""
    exact = reference.attend(mixer, *arrays, mask=mask)
    output, gradients = _run(mixer, arrays, **settings)
    assert reference.relative_error(output, exact.output) <= 2e-6
    for ours, theirs in zip(gradients, exact.gradients.values(), strict=True):
        assert reference.relative_error(ours, theirs) <= 3e-6
    return output, gradients, exact


@pytest.mark.parametrize(
    ("mixer", "kernel", "dtype", "mask"),
    [
        *itertools.product(["laser"], ["xla"], ["float32", "bfloat16"], check.MASKS),
        # Of the rest every pair of mixer, kernel, dtype and mask, and standard's causal mask on our
        # core: each case is a compilation.
        ("laser", "jax_xla", "bfloat16", "none"),
        ("laser", "jax_xla", "float32", "causal"),
        ("laser", "jax_xla", "bfloat16", "padded"),
        ("standard", "xla", "float32", "none"),
        ("standard", "xla", "float32", "causal"),
        ("standard", "xla", "bfloat16", "padded"),
        ("standard", "jax_xla", "float32", "padded"),
        ("standard", "jax_xla", "bfloat16", "causal"),
        ("diff", "xla", "float32", "causal"),
        ("diff_laser", "xla", "bfloat16", "none"),
    ],
)
def test_error_within_limits(mixer, kernel, dtype, mask):
    for qs, vs in ((1, 0.1), (1, 1), (4, 0.1), (4, 1), (4, 4)):
        case = check.Case(mixer, kernel, dtype, mask, qs, vs)
        row = check.measure(case, shape=(96, 2, 40), seed=7)
        assert row.passed, row


@pytest.mark.nightly
def test_the_command_finds_the_same_as_users_compile():
    """Without the flags by which these tests compile more quickly: see tests/conftest.py."""
    done = subprocess.run(
        [sys.executable, "-m", "attention", "check", "laser", "diff", "--kernels=xla"],
        cwd=pathlib.Path(__file__).resolve().parents[2],
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.endswith("all within limits\n")


@pytest.mark.parametrize(("vs", "least"), [(1.0, 6e-3), (0.1, 0.1)])
def test_paper_snippet_is_less_exact_than_ours(vs, least):
    """The literal snippet in bfloat16: 9.7e-3 at vs 1 and the paper's shape, 0.23 at vs 0.1."""
    case = check.Case("laser", "xla", "bfloat16", "none", 1.0, vs)
    row = check.measure(case, (256, 2, 64))
    assert row.paper["snippet"] > least
    assert row.output <= 3.0e-3


@pytest.mark.parametrize(
    ("kernel", "vs", "gap"),
    [
        *[("xla", vs, gap) for vs in (0.1, 1.0) for gap in (40.0, 66.0, 70.0)],
        # At vs 1 and gap 70 channels span more than 75 nats, where the max form's floor acts.
        ("jax_xla", 0.1, 70.0),
        ("jax_xla", 1.0, 66.0),
    ],
)
def test_future_maximum_in_float32(kernel, vs, gap):
    """A future token far above everything a query sees costs neither output nor gradients."""
    query, key, value, cotangent = _inputs((192, 2, 64), 1.0, vs, seed=1)
    arrays = (query, key, value.at[-1].add(gap), cotangent)
    mask = np.tril(np.ones((192, 192), bool))
    output, _, exact = _check_against_reference(
        "laser", arrays, mask, {"is_causal": True, "kernel": kernel}
    )
    # The rows that do not see it must be right by themselves, not only in the norm of all.
    assert np.abs(output[:-1] - exact.output[:-1]).max() <= 2e-6


@pytest.mark.parametrize("gap", [-40.0, -70.0])
def test_future_minimum_in_float32(gap):
    """c follows the minimum: V − c and the logarithm near 70 must not round to ulp(70) = 7.6e-6."""
    query, key, value, cotangent = _inputs((192, 2, 64), 1.0, 1.0, seed=1)
    value = value.at[-1].add(gap)
    mask = np.tril(np.ones((192, 192), bool))
    exact = reference.attend("laser", query, key, value, cotangent, mask=mask)
    output = laser.attend(query, key, value, is_causal=True)
    assert np.abs(output[:-1] - exact.output[:-1]).max() <= 1.5e-6


def test_large_cotangents_in_the_widest_centred_channel():
    """exp(75) times a cotangent of 1e6 is beyond float32; the gradients are not."""
    arrays = _inputs((24, 2, 16), 1.0, 0.1, seed=2)
    arrays[2] = arrays[2].at[-1].add(75.0)
    arrays[3] = 1e6 * arrays[3]
    mask = np.tril(np.ones((24, 24), bool))
    _check_against_reference("laser", arrays, mask, {"is_causal": True})


@pytest.mark.parametrize("gap", [100.0, 1e3, -100.0])
def test_padded_key_at_any_gap(gap):
    query, key, value, cotangent = _inputs((64, 2, 32), 1.0, 1.0, seed=2)
    arrays = (query, key.at[-8:].multiply(100.0), value.at[-8:].add(gap), cotangent)
    mask = (np.arange(64) < 56)[None]
    _, gradients, _ = _check_against_reference("laser", arrays, mask, {"mask": mask})
    assert not np.asarray(gradients[1])[-8:].any()
    assert not np.asarray(gradients[2])[-8:].any()


@pytest.mark.parametrize("kernel", ["xla", "jax_xla"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("gap", [0.0, 90.0, 1e6, -1e6])
@pytest.mark.parametrize("where", ["last", "half the channels"])
def test_finite_at_every_gap(kernel, dtype, gap, where):
    arrays = _inputs((24, 2, 16), 4.0, 1.0, dtype, seed=4)
    index = {"last": np.s_[-1], "half the channels": np.s_[-1, :, ::2]}[where]
    arrays[2] = arrays[2].at[index].add(gap)
    for mask, causal in ((None, True), (None, False), (np.arange(24) % 3 > 0, False)):
        output, gradients = _run("laser", arrays, mask=mask, is_causal=causal, kernel=kernel)
        # A loss of squares makes cotangents as large as the values.
        large = [*arrays[:3], output]
        _, steep = _run("laser", large, mask=mask, is_causal=causal, kernel=kernel)
        for array in (output, *gradients, *(steep if kernel == "xla" else ())):
            assert np.isfinite(np.asarray(array, np.float32)).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [1.0, 1e6, 1e12])
def test_steep_losses_and_dropout_stay_finite_in_the_max_form(dtype, size):
    """Values of 1e6, a loss of squares and more, half of the weights dropped."""
    arrays = _inputs((10, 2, 8), 4.0, 1e6, dtype, seed=3)
    for settings in ({}, {"dropout_rng": jax.random.key(0), "dropout_rate": 0.5}):
        output, _ = _run("laser", arrays, **settings)
        steep = [*arrays[:3], 2 * output + size * arrays[3]]
        for array in _run("laser", steep, **settings)[1]:
            assert np.isfinite(np.asarray(array, np.float32)).all()


@pytest.mark.parametrize("mixer", ["standard", "laser"])
@pytest.mark.parametrize("low", [None, float(jnp.finfo(jnp.float32).min), -np.inf])
def test_rows_that_see_nothing_return_zero_by_jax_s_function(mixer, low):
    """By our core: test_mechanisms."""
    arrays = _inputs((16, 2, 8), 1.0, 1.0, seed=5)
    mask = np.ones((16, 16), bool)
    mask[[3, 9]] = mask[:, 5] = False
    settings = {"mask": mask} if low is None else {"bias": jnp.where(mask, 0.0, low)}
    output, gradients, _ = _check_against_reference(
        mixer, arrays, mask, {"kernel": "jax_xla", **settings}
    )
    query_bar, key_bar, value_bar = gradients
    for array in (output[3], output[9], query_bar[3], key_bar[5], value_bar[5]):
        assert not array.any()


@pytest.mark.parametrize("kernel", ["xla", "jax_xla"])
def test_bias_moves_logits_and_has_a_gradient(kernel):
    query, key, value, cotangent = _inputs((12, 2, 8), 1.0, 1.0, seed=6)
    bias = jnp.asarray(np.random.default_rng(0).standard_normal((2, 1, 12)), jnp.float32)

    def loss(bias, scale_of_key):
        output = laser.attend(query, key * scale_of_key, value, bias=bias, kernel=kernel)
        return jnp.sum(output * cotangent)

    gradient = jax.grad(loss)(bias, 1.0)
    assert gradient.shape == bias.shape
    step = 1e-2
    direction = jnp.ones_like(bias).at[1].set(-1.0) * jnp.arange(12)
    numeric = (loss(bias + step * direction, 1.0) - loss(bias - step * direction, 1.0)) / (2 * step)
    assert float(jnp.sum(gradient * direction)) == pytest.approx(float(numeric), rel=2e-3)


def test_dropout_that_drops_everything_gives_zero_and_finite_gradients():
    arrays = _inputs((6, 1, 4), 1.0, 1.0, seed=9)
    settings = {"dropout_rate": 0.9, "is_causal": True, "dropout_rng": jax.random.key(0)}
    output, gradients = _run("laser", arrays, **settings)
    keep = jax.random.bernoulli(settings["dropout_rng"], 0.1, (1, 6, 6))
    empty = ~np.asarray(jnp.tril(keep[0])).any(-1)
    assert empty.any()
    assert not np.asarray(output)[empty].any()
    assert all(np.isfinite(np.asarray(array)).all() for array in gradients)


def test_float16_laser_is_refused():
    arrays = _inputs((4, 1, 8), 1.0, 1.0, "float16")
    with pytest.raises(ValueError, match="float16 gives NaN.*bfloat16"):
        laser.attend(*arrays[:3])
    assert standard.attend(*arrays[:3]).dtype == jnp.float16


def test_float64_is_kept():
    with reference.float64():
        query, key, value, cotangent = _inputs((20, 2, 8), 1.0, 1.0, "float64")
        output = laser.attend(query, key, value)
        assert output.dtype == jnp.float64
        exact = reference.attend("laser", query, key, value, cotangent).output
        assert reference.relative_error(output, exact) < 1e-13
        bias = jnp.asarray(np.random.default_rng(1).standard_normal((2, 20, 20)))
        output = registry.get("standard+sink", learned=False)(query, key, value, bias=bias)
        raised = np.exp(np.einsum("thd,shd->hts", query, key) / np.sqrt(8) + bias)
        weights = raised / (raised.sum(-1, keepdims=True) + 1)
        np.testing.assert_allclose(output, np.einsum("hts,shd->thd", weights, value), atol=1e-14)


@pytest.mark.parametrize(
    ("output", "gradients", "learned"),
    [
        (math.nan, (0.0, 0.0, 0.0), None),
        (3e-6, (0.0, 0.0, 0.0), None),
        (0.0, (math.nan, 0.0, 0.0), None),
        (0.0, (0.0, 0.0, math.nan), 0.0),
        (0.0, (0.0, 1.0, 0.0), 0.0),
        (0.0, (0.0, 0.0, 0.0), math.nan),
        (0.0, (0.0, 0.0, 0.0), 4e-6),
    ],
)
def test_the_command_fails_where_a_row_does(output, gradients, learned, monkeypatch, capsys):
    """Where one number is NaN, too, which Python's max drops unless it is the first."""

    def measure(case, shape):
        named = dict(zip(("query", "key", "value"), gradients, strict=True))
        return check.Measurement(case, output, named, {}, (2e-6, 3e-6), learned)

    monkeypatch.setattr(check, "measure", measure)
    assert command.main(["check", "standard", "--kernels=xla", "--shape=4,2,4"]) == 1
    assert "all within limits" not in capsys.readouterr().out


def test_dropout_shows_a_nan():
    """Rows that dropout left without a weight return 0; rows of NaN are no such rows."""
    query, key, value = jax.random.normal(jax.random.key(0), (3, 1, 4, 1, 2))
    settings = {"dropout_rate": 0.5, "dropout_rng": jax.random.key(1)}
    for name in ("standard", "laser"):
        output = registry.get(name)(query.at[0, 2].set(jnp.nan), key, value, **settings)
        assert np.isnan(output[0, 2]).all(), name
