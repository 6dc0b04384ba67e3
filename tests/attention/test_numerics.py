"""The numerics table's limits, the float64 reference by hand, and float32 products of platforms."""

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
from attention import backends, registry, table
from attention.common import precision
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


ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_names_are_jaxs_and_mean_what_is_said():
    levels = {name: jax.lax.Precision(name).name for name in precision.NAMES}
    assert levels == {
        **{"default": "DEFAULT", "bfloat16": "DEFAULT"},
        **{"tensorfloat32": "HIGH", "float32": "HIGHEST"},
    }
    for name in precision.NAMES[1:]:
        with jax.default_matmul_precision(name):
            assert jax.config.jax_default_matmul_precision == name


@pytest.mark.parametrize(
    ("name", "platform", "capability", "made"),
    [
        ("default", "cpu", "", "float32"),
        ("bfloat16", "cpu", "", "float32"),
        ("default", "gpu", "9.0", "TF32"),
        ("bfloat16", "gpu", "8.0", "TF32"),
        ("default", "gpu", "7.0", "float32"),
        ("float32", "gpu", "9.0", "float32"),
        ("default", "tpu", "", "bfloat16"),
        ("tensorfloat32", "tpu", "", "3 bfloat16 products"),
        ("float32", "tpu", "", "6 bfloat16 products"),
        ("default", "metal", "", "not known"),
    ],
)
def test_what_platforms_make_of_float32(name, platform, capability, made):
    assert precision.made_of(name, platform, capability) == made


def _precisions(jaxpr):
    """Yields the precision of every matrix product in a program."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation.params["precision"]
        for leaf in jax.tree.leaves(equation.params, is_leaf=lambda one: hasattr(one, "jaxpr")):
            if hasattr(leaf, "eqns") or hasattr(leaf, "jaxpr"):
                yield from _precisions(getattr(leaf, "jaxpr", leaf))


@pytest.mark.parametrize(
    "kernel", [name for name, entry in backends.KERNELS.items() if entry.follows_precision]
)
@pytest.mark.parametrize("name", ["standard", "laser+temp", "diff", "sigmoid", "laser+qk_norm"])
def test_kernels_that_say_so_follow_forward_and_backward(kernel, name):
    if kernel not in table.kernels_of(name):
        pytest.skip(f"no {kernel} for {name}")
    from attention.verification.check import Host

    query = jnp.ones((5, 2, 4))
    host = Host(registry.get(name, kernel=kernel), 1)
    params = jax.eval_shape(host.init, jax.random.key(0), query, query, query, None)

    def loss(params, *qkv):
        return host.apply(params, *qkv, None).sum()

    backward = jax.grad(loss, argnums=(1, 2, 3))
    with jax.default_matmul_precision("float32"):
        found = set(_precisions(jax.make_jaxpr(backward)(params, query, query, query).jaxpr))
    assert found == {(jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)}
    without = set(_precisions(jax.make_jaxpr(backward)(params, query, query, query).jaxpr))
    assert without == {None}


def test_a_kernel_that_takes_none_refuses_by_name():
    backends.check_precision("cudnn", "default")
    backends.check_precision("xla", "float32")
    with pytest.raises(ValueError, match=r"'cudnn' takes no matmul precision.*'xla' or 'jax_xla'"):
        backends.check_precision("cudnn", "float32")


def test_the_check_takes_one(capsys):
    given = ["check", "standard", "--kernels=xla", "--shape=8,2,4"]
    assert command.main([*given, "--matmul_precision=float32"]) == 0
    assert jax.config.jax_default_matmul_precision is None
    assert command.main([*given[:2], "--kernels=cudnn", "--matmul_precision=float32"]) == 2
    assert "takes no matmul precision" in capsys.readouterr().err


def test_a_platform_that_is_not_here_is_named():
    """As of JAX_PLATFORMS=cuda in a shell's start-up file, on a login node."""
    done = subprocess.run(
        [sys.executable, "-m", "attention", "check", "standard", "--kernels=xla"],
        env={**os.environ, "JAX_PLATFORMS": "nonsense"},
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "JAX_PLATFORMS='nonsense'" in done.stderr


def test_reference_against_brute_force():
    """The reference itself, against two loops and finite differences."""
    rng = np.random.default_rng(1)
    query, key, value, cotangent = (rng.standard_normal((3, 1, 2)) for _ in range(4))

    def loss(query, key, value, mixer):
        total = 0.0
        for t in range(3):
            logits = [float(query[t, 0] @ key[s, 0]) / np.sqrt(2) for s in range(3)]
            weights = np.exp(logits) / np.exp(logits).sum()
            for d in range(2):
                column = value[:, 0, d]
                plain = weights @ column
                output = plain if mixer == "standard" else np.log(weights @ np.exp(column))
                total += output * cotangent[t, 0, d]
        return total

    for mixer in ("standard", "laser"):
        result = reference.attend(mixer, query, key, value, cotangent)
        assert (result.output * cotangent).sum() == pytest.approx(loss(query, key, value, mixer))
        for place, name in enumerate(("query", "key", "value")):
            arrays = [query, key, value]
            direction = rng.standard_normal((3, 1, 2))
            up, down = list(arrays), list(arrays)
            up[place], down[place] = (arrays[place] + s * 1e-6 * direction for s in (1, -1))
            numeric = (loss(*up, mixer) - loss(*down, mixer)) / 2e-6
            assert (result.gradients[name] * direction).sum() == pytest.approx(numeric, rel=1e-6)


def test_sizes_of_learned_gradients_do_not_cancel():
    """Two tokens with opposite cotangents: the gradient of a gate cancels, its size does not."""
    variant = registry.get("standard+gate", per="head")
    arrays = {name: np.ones((2, 1, 1)) for name in ("query", "key", "value")}
    arrays["x"] = np.ones((2, 1))
    tree = {"gate": {"scale": np.zeros((1, 1, 1))}}
    cotangent = np.asarray([1.0, -1.0]).reshape(2, 1, 1)
    result = reference.compute(variant, tree, arrays, cotangent)
    assert abs(result.learned["gate"]["scale"]).max() < 1e-12
    assert 0.25 < result.sizes["gate"] <= 1.0


def test_the_reference_of_wide_channels_agrees_with_the_factored_one():
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal((5, 1, 3)) for _ in range(3)]
    cotangent = rng.standard_normal((5, 1, 3))
    narrow = reference.attend("laser", *arrays, cotangent)
    # Rows are computed one by one.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(laser, "_FACTORED", -1.0)
        reference._compiled.cache_clear()
        wide = reference.attend("laser", *arrays, cotangent)
    reference._compiled.cache_clear()
    np.testing.assert_allclose(wide.output, narrow.output, rtol=1e-12)
    for name, gradient in narrow.gradients.items():
        np.testing.assert_allclose(wide.gradients[name], gradient, rtol=1e-10)


def test_an_error_of_nan_is_the_largest_wherever_it_stands():
    exact = {"first": {"scale": np.ones(1)}, "last": {"scale": np.ones(1)}}
    result = reference.Result(np.ones(1), {}, exact, {"first": 1.0, "last": 1.0})
    for broken in exact:
        gradients = {**exact, broken: {"scale": np.full(1, np.nan)}}
        assert np.isnan(reference.learned_error(gradients, result))
