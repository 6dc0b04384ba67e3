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
    ],
)
def test_error_within_limits(mixer, kernel, dtype, mask):
    for qs, vs in ((1, 0.1), (1, 1), (4, 0.1), (4, 1), (4, 4)):
        case = check.Case(mixer, kernel, dtype, mask, qs, vs)
        row = check.measure(case, shape=(96, 2, 40), seed=7)
        assert row.passed, row


@pytest.mark.slow
def test_the_command_finds_the_same_as_users_compile():
    """Without the flags by which these tests compile more quickly: see tests/conftest.py."""
    done = subprocess.run(
        [sys.executable, "-m", "attention", "check", "laser", "diff", "sigmoid", "--kernels=xla"],
        cwd=pathlib.Path(__file__).resolve().parents[2],
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.endswith("all within limits\n")


@pytest.mark.parametrize("mixer", ["diff", "diff_laser"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_differential_error_within_limits(mixer, dtype):
    """One compilation serves all scales; `learned` are gradients of λ's vectors and head norm."""
    for qs, vs in ((1, 0.1), (1, 1), (4, 0.1), (4, 1), (1, 4), (4, 4)):
        if dtype == "float32" and vs > 1:
            continue
        case = check.Case(mixer, "xla", dtype, "causal", qs, vs)
        row = check.measure(case, shape=(256, 4, 64), seed=7)
        assert row.learned is not None
        assert row.passed, row


@pytest.mark.parametrize(("mixer", "layer"), [("diff", 0), ("diff_laser", 20)])
def test_differential_error_without_the_head_norm(mixer, layer):
    for vs in (0.1, 1):
        case = check.Case(mixer, "xla", "bfloat16", "padded", 1, vs)
        row = check.measure(case, (96, 4, 40), seed=5, head_norm=False, layer=layer)
        assert row.passed, row


# Alone and in pairs: test_contract.
@pytest.mark.parametrize(
    ("name", "mask", "dtype"),
    [
        ("diff+qk_norm+temp", "none", "bfloat16"),
        ("diff_laser+per_dim_temp+qk_norm+temp", "none", "float32"),
        ("sigmoid+per_dim_temp+qk_norm+softcap+temp", "causal", "bfloat16"),
        ("laser+per_dim_temp+qk_norm+sink+softcap+temp", "padded", "bfloat16"),
        ("laser+per_dim_temp+qk_norm+sink+softcap+temp", "padded", "float32"),
        ("diff_laser+sink+softcap", "none", "bfloat16"),
        ("laser+alibi+gate+rope+sink", "causal", "bfloat16"),
        ("laser+gate+rope+value_residual", "causal", "bfloat16"),
        ("standard+fox+gate+qk_rms_norm+ssmax+window", "padded", "float32"),
    ],
)
def test_many_mechanisms_within_limits(name, mask, dtype):
    """One compilation serves all scales."""
    for qs, vs in ((1, 0.1), (1, 1), (4, 1), (4, 4)):
        if dtype == "bfloat16" or vs < 4:
            case = check.Case(name, "xla", dtype, mask, qs, vs)
            row = check.measure(case, shape=(96, 4, 40), seed=7)
            assert row.passed, row
            assert row.learned is not None


def test_paper_snippet_reproduces_its_error_and_ours_does_not():
    """The literal snippet at the paper's shape: 9.7e-3 (±5 %) at qs 1, vs 1, and 0.23 at vs 0.1."""
    shape = (1024, 8, 256)
    measured = {}
    for vs in (1.0, 0.1):
        query, key, value, _ = _inputs(shape, 1.0, vs, "bfloat16", seed=0)
        arrays = {"query": query, "key": key, "value": value}
        exact = reference.compute(registry.get("laser"), {}, arrays, query, None).output
        measured[vs] = (
            reference.relative_error(laser.paper_snippet(query, key, value), exact),
            reference.relative_error(jax.jit(laser.attend)(query, key, value), exact),
        )
    assert measured[1.0][0] == pytest.approx(9.7e-3, rel=0.05)
    assert measured[0.1][0] > 0.15
    assert measured[1.0][1] <= 1.9e-3
    assert measured[0.1][1] <= 3.0e-3


@pytest.mark.parametrize(
    ("kernel", "vs", "gap"),
    [
        *[("xla", vs, gap) for vs in (0.1, 1.0) for gap in (40.0, 66.0, 70.0)],
        *[("jax_xla", 0.1, gap) for gap in (40.0, 66.0, 70.0)],
        # At gap 70 these channels span more than 75 nats, where the max form's floor acts.
        *[("jax_xla", 1.0, gap) for gap in (40.0, 66.0)],
    ],
)
def test_future_maximum_in_float32(kernel, vs, gap):
    """A future token far above everything a query sees costs neither output nor gradients."""
    query, key, value, cotangent = _inputs((192, 2, 64), 1.0, vs, seed=1)
    value = value.at[-1].add(gap)
    mask = np.tril(np.ones((192, 192), bool))
    exact = reference.attend("laser", query, key, value, cotangent, mask=mask)
    arrays = (query, key, value, cotangent)
    output, gradients = _run("laser", arrays, is_causal=True, kernel=kernel)
    assert reference.relative_error(output, exact.output) <= 2e-6
    for ours, theirs in zip(gradients, exact.gradients.values(), strict=True):
        assert reference.relative_error(ours, theirs) <= 3e-6
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
    exact = reference.attend("laser", *arrays, mask=mask)
    _, gradients = _run("laser", arrays, is_causal=True)
    for ours, theirs in zip(gradients, exact.gradients.values(), strict=True):
        assert reference.relative_error(ours, theirs) <= 3e-6


@pytest.mark.parametrize("gap", [100.0, 1e3, -100.0])
def test_padded_key_at_any_gap(gap):
    query, key, value, cotangent = _inputs((64, 2, 32), 1.0, 1.0, seed=2)
    value = value.at[-8:].add(gap)
    key = key.at[-8:].multiply(100.0)
    mask = (np.arange(64) < 56)[None]
    exact = reference.attend("laser", query, key, value, cotangent, mask=mask)
    output, gradients = _run("laser", (query, key, value, cotangent), mask=mask)
    assert reference.relative_error(output, exact.output) <= 2e-6
    for ours, theirs in zip(gradients, exact.gradients.values(), strict=True):
        assert reference.relative_error(ours, theirs) <= 3e-6
    assert not np.asarray(gradients[1])[-8:].any()
    assert not np.asarray(gradients[2])[-8:].any()


@pytest.mark.parametrize("kernel", ["xla", "jax_xla"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("gap", [0.0, 50.0, 90.0, 1e3, 1e6, -1e6])
@pytest.mark.parametrize("where", ["last", "first", "all", "half the channels"])
def test_finite_at_every_gap(kernel, dtype, gap, where):
    arrays = _inputs((24, 2, 16), 4.0, 1.0, dtype, seed=4)
    index = {
        "last": np.s_[-1],
        "first": np.s_[0],
        "all": np.s_[:],
        "half the channels": np.s_[-1, :, ::2],
    }[where]
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
@pytest.mark.parametrize("kernel", ["xla", "jax_xla"])
@pytest.mark.parametrize("as_bias", ["mask", "lowest", "-inf"])
def test_rows_that_see_nothing_return_zero_and_pass_nothing(mixer, kernel, as_bias):
    arrays = _inputs((16, 2, 8), 1.0, 1.0, seed=5)
    mask = np.ones((16, 16), bool)
    mask[3] = mask[9] = False
    mask[:, 5] = False
    settings = {"mask": mask}
    if as_bias != "mask":
        minimum = -jnp.inf if as_bias == "-inf" else jnp.finfo(jnp.float32).min
        settings = {"bias": jnp.where(mask, 0.0, minimum).astype(jnp.float32)}
    output, (query_bar, key_bar, value_bar) = _run(mixer, arrays, kernel=kernel, **settings)
    assert not np.asarray(output)[[3, 9]].any()
    assert not np.asarray(query_bar)[[3, 9]].any()
    assert not np.asarray(key_bar)[5].any()
    assert not np.asarray(value_bar)[5].any()
    exact = reference.attend(mixer, *arrays, mask=mask)
    assert reference.relative_error(output, exact.output) <= 2e-6
    for ours, theirs in zip((query_bar, key_bar, value_bar), exact.gradients.values(), strict=True):
        assert reference.relative_error(ours, theirs) <= 3e-6


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


def test_dropout_is_the_logsumexp_of_the_kept_weights():
    """With attention dropout the weights do not sum to 1: o = log Σ a·m·exp(v), by definition."""
    query, key, value, _ = _inputs((10, 1, 6), 1.0, 1.0, seed=8)
    rng = jax.random.key(3)
    output = laser.attend(query, key, value, dropout_rng=rng, dropout_rate=0.6)
    kept = np.asarray(jax.random.bernoulli(rng, 0.4, (1, 10, 10)), np.float64)[0] / 0.4
    logits = np.einsum("thd,shd->ts", query, key).astype(np.float64) / np.sqrt(6)
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True) * kept
    sums = weights @ np.exp(np.asarray(value, np.float64)[:, 0])
    expected = np.log(np.where(sums > 0, sums, 1.0))
    np.testing.assert_allclose(output[:, 0], expected, atol=2e-6)


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
        rng, drops = jax.random.key(3), {"dropout_rng": jax.random.key(3), "dropout_rate": 0.1}
        with_sink = registry.get("standard+sink", learned=False)
        output = with_sink(query, key, value, bias=bias, **drops)
        raised = np.exp(np.einsum("thd,shd->hts", query, key) / np.sqrt(8) + bias)
        kept = np.asarray(jax.random.bernoulli(rng, 0.9, (1, 20, 21)))[..., :-1] / 0.9
        weights = kept * raised / (raised.sum(-1, keepdims=True) + 1)
        np.testing.assert_allclose(output, np.einsum("hts,shd->thd", weights, value), atol=1e-14)


@pytest.mark.parametrize("broken", ["output", "query", "key", "value", "query_ln", "key_ln"])
def test_a_result_of_nan_passes_no_limit(broken, monkeypatch):
    """Wherever it stands: Python's max drops a NaN that is not the first."""
    forward_and_backward = check._forward_and_backward

    def with_nan(*arguments):
        output, gradients, learned = forward_and_backward(*arguments)
        if broken == "output":
            output = output.at[-1].set(jnp.nan)
        elif broken in learned:
            learned[broken] = jax.tree.map(lambda leaf: leaf * jnp.nan, learned[broken])
        else:
            gradients = {**gradients, broken: gradients[broken].at[-1].set(jnp.nan)}
        return output, gradients, learned

    case = check.Case("laser+per_dim_temp+qk_norm", "xla", "float32", "none", 1.0, 1.0)
    assert check.measure(case, shape=(6, 2, 4)).passed
    monkeypatch.setattr(check, "_forward_and_backward", with_nan)
    row = check.measure(case, shape=(6, 2, 4))
    assert not row.passed
    assert np.isnan(row.worst)


@pytest.mark.parametrize("gradients", [(math.nan, 0.0, 0.0), (0.0, 0.0, math.nan), (0.0, 1.0, 0.0)])
def test_the_command_fails_where_a_row_does(gradients, monkeypatch, capsys):
    def measure(case, shape):
        named = dict(zip(("query", "key", "value"), gradients, strict=True))
        return check.Measurement(case, 0.0, named, {}, (2e-6, 3e-6))

    monkeypatch.setattr(check, "measure", measure)
    assert command.main(["check", "standard", "--kernels=xla", "--shape=4,2,4"]) == 1
    said = capsys.readouterr().out
    assert "rows exceed their limits" in said
    assert "all within limits" not in said


def test_dropout_shows_a_nan():
    """Rows that dropout left without a weight return 0; rows of NaN are no such rows."""
    query, key, value = jax.random.normal(jax.random.key(0), (3, 1, 4, 1, 2))
    settings = {"dropout_rate": 0.5, "dropout_rng": jax.random.key(1)}
    for name in ("standard", "laser"):
        output = registry.get(name)(query.at[0, 2].set(jnp.nan), key, value, **settings)
        assert np.isnan(output[0, 2]).all(), name
