"""One contract for every mechanism: exact, causal, blind to padding, whatever its pair."""

import functools
import itertools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from attention import registry, table
from attention.kernels.inputs import make_call
from attention.masks import Bias, Mask
from attention.verification import check, laws, reference

# Operation by operation: each is compiled once for all cases; a case as a whole takes seconds.
pytestmark = pytest.mark.usefixtures("no_jit")

# Modifiers by `laser`: what they do does not depend on the mixer.
MODIFIED = [f"laser+{modifier}" for modifier in table.MODIFIERS]
ALONE = (*table.MIXERS, *MODIFIED)
# Every modifier beside others that act on the same place.
TOGETHER = (
    ("diff+gate+per_dim_temp+qk_norm+rope+sink+softcap+temp+value_residual+window", "causal"),
    ("diff2_laser+alibi+fox+gate+qk_rms_norm+sink+ssmax+xsa", "padded"),
    ("diff_laser+alibi+sink+softcap+ssmax", "none"),
    ("laser+alibi+per_dim_temp+qk_norm+sink+softcap+ssmax+temp+window", "padded"),
    ("standard+alibi+fox+qk_norm+qk_rms_norm+rope+softcap+value_residual+xsa", "causal"),
)
# What acts on the keys that a query sees.
MASKED = tuple(f"laser+{modifier}" for modifier in ("fox", "sink", "ssmax", "window"))
# For laws of hidden tokens: every mixer, and every modifier in one of the names.
LAWS = (*table.MIXERS, *MASKED, TOGETHER[0][0], TOGETHER[1][0])
PAIRS = [
    f"{mixer}+{modifiers}"
    for mixer in ("standard", "laser")
    for modifiers in (*table.MODIFIERS, *map("+".join, itertools.combinations(table.MODIFIERS, 2)))
    if "+" in modifiers or mixer == "standard"
]

SHAPE = (24, 2, 8)
# Limits in bfloat16 are of a norm over many roundings.
WIDE = (96, 4, 40)


@pytest.fixture
def no_jit():
    with jax.disable_jit():
        yield


def _variant(name, **changes):
    others = {key: one.other for key, one in table.hyperparameters_of(name).items()}
    return registry.get(name, **{**others, **changes})


def _layer(variant, shape=SHAPE):
    """Returns arrays by name, and parameters away from their start."""
    drawn = check.draw(variant, shape)
    drawn.pop("cotangent")
    arrays = {name: jnp.asarray(array, jnp.float32) for name, array in drawn.items()}
    return arrays, {"params": check.leaves(variant, arrays, 0.3)}


@functools.cache
def _problem(name):
    """Returns a variant, arrays by name, and parameters away from their start."""
    variant = _variant(name)
    return variant, *_layer(variant)


def _run(variant, params, arrays, mask=None, *, is_causal=False):
    return check.Host(variant, check.LAYER, is_causal).apply(params, mask=mask, **arrays)


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        *itertools.product(table.MIXERS, check.MASKS),
        *((name, "causal") for name in MODIFIED),
        *((name, "padded") for name in MASKED),
        *TOGETHER,
    ],
)
def test_in_float32(name, mask):
    row = check.measure(check.Case(name, "xla", "float32", mask, 1, 1), SHAPE, seed=7)
    assert row.passed, row


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        *((mixer, "causal") for mixer in table.MIXERS),
        *((f"laser+{modifier}", "causal") for modifier in ("fox", "qk_rms_norm", "ssmax", "xsa")),
        ("laser+alibi+gate+rope+sink", "causal"),
        ("laser+gate+rope+value_residual", "causal"),
        ("laser+per_dim_temp+qk_norm+sink+softcap+temp", "padded"),
        *(pytest.param(name, "none", marks=pytest.mark.nightly) for name in MODIFIED),
    ],
)
def test_in_bfloat16(name, mask):
    row = check.measure(check.Case(name, "xla", "bfloat16", mask, 1, 1), WIDE, seed=7)
    assert row.passed, row


@pytest.mark.parametrize("mixer", table.DIFF_ROWS)
def test_without_the_head_norm(mixer):
    case = check.Case(mixer, "xla", "float32", "padded", 4, 1)
    row = check.measure(case, SHAPE, seed=5, head_norm=False, layer=20)
    assert row.passed, row


@pytest.mark.nightly
@pytest.mark.parametrize("name", PAIRS)
def test_in_pairs(name):
    row = check.measure(check.Case(name, "xla", "float32", "causal", 1, 1), SHAPE, seed=7)
    assert row.passed, row


@pytest.mark.parametrize("name", LAWS)
def test_nothing_hidden_reaches_an_output(name):
    """Nothing of later or masked tokens, and of other examples."""
    assert laws.measure(_variant(name)) == []


@pytest.mark.parametrize("name", LAWS)
def test_a_row_that_sees_nothing_returns_0(name):
    variant, arrays, params = _problem(name)
    mask = jnp.ones((SHAPE[0],) * 2, bool).at[9].set(False)

    def run(arrays):
        return _run(variant, params, arrays, mask)

    output, pullback = jax.vjp(run, arrays)
    (gradients,) = pullback(jnp.ones_like(output))
    np.testing.assert_allclose(output[9], 0, atol=1e-7)
    assert all(np.isfinite(array).all() for array in (output, *gradients.values()))


@pytest.mark.parametrize(
    "name", ["standard", "laser", "sigmoid", "softpick", "stick_breaking", "diff", *MASKED]
)
def test_one_token(name):
    variant = _variant(name)
    arrays, params = _layer(variant, (1, 2, 8))
    output, pullback = jax.vjp(lambda arrays: _run(variant, params, arrays), arrays)
    (gradients,) = pullback(jnp.ones_like(output))
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())
    exact = reference.compute(variant, params["params"], arrays, output, layer=check.LAYER)
    np.testing.assert_allclose(output, exact.output, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ALONE)
def test_batches_are_examples(name):
    """Two axes of a batch give what their entries give alone, in bfloat16 of that dtype."""
    variant, arrays, params = _problem(name)
    batch = {array: jnp.stack([v, -v])[:, None] for array, v in arrays.items()}
    output = _run(variant, params, batch, is_causal=True)
    np.testing.assert_allclose(
        output[0, 0], _run(variant, params, arrays, is_causal=True), atol=1e-5
    )
    narrow = {array: v.astype(jnp.bfloat16) for array, v in arrays.items()}
    assert _run(variant, params, narrow).dtype == jnp.bfloat16


@pytest.mark.parametrize("name", ALONE)
def test_one_key_head_repeated_is_full_heads(name):
    variant, arrays, params = _problem(name)
    few = {array: v[:, :1] if array not in ("query", "x") else v for array, v in arrays.items()}
    full = {
        array: jnp.repeat(v, SHAPE[1], axis=1) if array not in ("query", "x") else v
        for array, v in few.items()
    }
    np.testing.assert_allclose(
        _run(variant, params, few, is_causal=True),
        _run(variant, params, full, is_causal=True),
        atol=1e-6,
    )


@pytest.mark.parametrize("name", ALONE)
def test_strict_promotion_and_symbolic_lengths(name):
    variant, arrays, params = _problem(name)
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        output, pullback = jax.vjp(
            lambda arrays: _run(variant, params, arrays, is_causal=True), arrays
        )
        pullback(output)
    with jax.disable_jit(False):
        (length,) = jax.export.symbolic_shape("t")
        symbolic = {
            array: jax.ShapeDtypeStruct((length, *v.shape[1:]), v.dtype)
            for array, v in arrays.items()
        }
        run = jax.jit(lambda arrays: _run(variant, params, arrays, is_causal=True))
        program = jax.export.export(run)(symbolic)
        if name in table.MIXERS:
            np.testing.assert_allclose(program.call(arrays), output, atol=2e-6)


def _at_start(name, arrays, layer=check.LAYER):
    host = check.Host(registry.get(name), layer, is_causal=True)
    params = host.init(jax.random.key(0), **arrays)
    return host.apply(params, **arrays), params


@pytest.mark.parametrize("mixer", ["laser", "diff2"])
@pytest.mark.parametrize("modifier", ["gate", "per_dim_temp", "window"])
def test_unchanged_at_the_start(mixer, modifier):
    """A gate of 2σ(0) = 1; a window wider than the text."""
    arrays, _ = _layer(registry.get(f"{mixer}+gate"))
    plain, _ = _at_start(mixer, arrays)
    changed, _ = _at_start(f"{mixer}+{modifier}", arrays)
    np.testing.assert_allclose(changed, plain, atol=1e-6)


@pytest.mark.parametrize(
    ("modifier", "factors"),
    [("alibi", np.exp(-(2.0 ** (-8 * np.arange(1, 7) / 6)))), ("fox", 0.99)],
)
def test_decay_with_distance_by_hand(modifier, factors):
    """Equal logits of three keys: weights f², f, 1 over their sum, by head of six."""
    zeros = {name: jnp.zeros((3, 6, 2)) for name in ("query", "key")}
    arrays = {**zeros, "value": jnp.zeros((3, 6, 2)).at[0].set(1.0), "x": jnp.ones((3, 4))}
    weight, _ = _at_start(f"standard+{modifier}", arrays)
    expected = np.broadcast_to(factors**2 / (1 + factors + factors**2), 6)
    np.testing.assert_allclose(weight[2, :, 0], expected, rtol=2e-6)


def test_values_of_the_first_layer_by_hand():
    """Layer 0 is the mixer; a later one sees (v + v₀)/2, which a zero query averages."""
    variant = registry.get("standard+value_residual")
    arrays, _ = _layer(registry.get("standard"), (4, 1, 2))
    arrays["query"] = 0 * arrays["query"]
    first, params = _at_start("standard+value_residual", arrays, layer=0)
    np.testing.assert_allclose(first[-1], arrays["value"].mean(0), rtol=1e-5)
    memory = {"value_residual": jnp.full((4, 1, 2), 10.0)}
    later = _run(variant, params, {**arrays, **memory}, is_causal=True)
    np.testing.assert_allclose(later[-1], arrays["value"].mean(0) / 2 + 5, rtol=1e-5)


def test_softpick_by_hand():
    """One logit of 1e-6: its term is as large as ε, so that its weight is ½."""
    query = jnp.ones((1, 1, 1))
    arrays = {"query": query, "key": 1e-6 * query, "value": 3 * query}
    output = _run(registry.get("softpick"), {}, arrays)
    assert float(output[0, 0, 0]) == pytest.approx(1.5, rel=1e-5)


def test_symbolic_masks_are_their_arrays():
    """Each part, and all of them, against the array that it stands for."""
    length = SHAPE[0]
    arrays, _ = _layer(registry.get("laser"))
    distance = np.subtract.outer(np.arange(length), np.arange(length))
    segment = np.arange(length) // 9
    keys = np.arange(length) % 5 > 0
    dense = np.random.default_rng(0).random((2, length, length)) < 0.8
    parts = [
        (Mask(causal=True), distance >= 0),
        (Mask(causal=True, strict=True), distance > 0),
        (Mask(width=4), np.abs(distance) < 4),
        (Mask(segments=(jnp.asarray(segment),) * 2), segment[:, None] == segment),
        (Mask(keys=jnp.asarray(keys)), np.broadcast_to(keys, (length, length))),
        (Mask(dense=jnp.asarray(dense)), dense),
    ]
    whole = (parts[0][0], parts[0][1])
    for mask, array in parts[2:]:
        whole = (whole[0] & mask, whole[1] & array)
    for mask, array in (*parts, whole):
        np.testing.assert_array_equal(
            _run(registry.get("laser"), {}, arrays, mask),
            _run(registry.get("laser"), {}, arrays, jnp.asarray(array)),
        )


class _Layer(nn.Module):
    """A place for learned leaves."""

    variant: object

    @nn.compact
    def __call__(self, *arrays, **settings):
        return self.variant.attend(make_call(*arrays, **settings))


REFUSED = [
    ("laser+gate", {}, {}, "'gate' needs the block's input"),
    ("standard+fox", {}, {}, "'fox' needs the block's input"),
    ("diff2", {}, {}, "'diff2' needs the block's input"),
    ("diff", {}, {"layer": None}, "'diff' needs the layer's index"),
    ("laser+value_residual", {}, {"layer": None}, "'value_residual' needs the layer's index"),
    ("laser+value_residual", {}, {"memory": None}, "'value_residual' needs what earlier layers"),
    ("laser+value_residual", {}, {"memory": {}}, "finds nothing in its memory"),
    (
        "laser+value_residual",
        {},
        {"memory": {"value_residual": jnp.ones((4, 2, 4))}},
        r"values of shape \(4, 2, 4\)",
    ),
    ("laser+xsa", {"key": (7, 2, 4), "value": (7, 2, 4)}, {}, "5 queries and 7 keys"),
    ("laser+alibi", {"key": (7, 2, 4), "value": (7, 2, 4)}, {}, "'alibi' needs self-attention"),
    ("laser+rope", {}, {"is_cross": True}, "'rope' needs self-attention"),
    ("laser+window", {}, {"is_cross": True}, "'window' needs self-attention"),
    ("stick_breaking", {}, {"is_cross": True}, "'stick_breaking' needs self-attention"),
    ("laser+rope", {"query": (5, 2, 3), "key": (5, 2, 3)}, {}, "head size is 3, an odd number"),
    ("laser", {"key": (5, 3, 4), "value": (5, 3, 4)}, {}, "2 heads of queries and 3 of keys"),
    ("laser", {"query": (5, 3, 4)}, {}, "3 heads of queries and 2 of keys"),
    ("laser", {"value": (5, 1, 4)}, {}, "differ before the last axis"),
    ("diff", {"query": (5, 3, 4), "key": (5, 3, 4), "value": (5, 3, 4)}, {}, "an odd number"),
    ("laser+gate", {}, {"x": jnp.ones((6, 6))}, r"x has shape \(6, 6\)"),
    ("laser+gate", {}, {"x": jnp.ones(6)}, r"x has shape \(6,\)"),
    ("laser", {}, {"layer": -1}, "layer=-1"),
    ("laser", {}, {"layer": 1.5}, "layer=1.5"),
    ("laser", {}, {"layer": True}, "layer=True"),
    ("laser", {}, {"layer": jnp.ones(2, int)}, r"shape \(2,\)"),
    ("laser", {}, {"bias": Bias(row=jnp.ones((3, 5)))}, r"bias of shape \(3, 5, 1\)"),
    ("laser", {}, {"bias": Bias(column=jnp.ones((2, 4)))}, r"bias of shape \(2, 1, 4\)"),
    ("laser", {}, {"mask": Mask(width=0)}, "mask.width=0"),
    ("laser", {}, {"mask": Mask(width=2.5)}, "mask.width=2.5"),
    ("laser", {}, {"mask": Mask(width="2")}, "mask.width='2'"),
    ("laser", {}, {"mask": Mask(keys=jnp.ones(4, bool))}, r"mask.keys has shape \(4,\)"),
    (
        "laser",
        {},
        {"mask": Mask(segments=(jnp.ones(5, int), jnp.ones(4, int)))},
        r"segments\[1\] has shape \(4,\)",
    ),
    ("laser", {}, {"mask": Mask(dense=jnp.ones((4, 4), bool))}, "does not broadcast"),
]


def test_masks_of_numbers_are_not_joined():
    with pytest.raises(ValueError, match="mask"):
        Mask(dense=jnp.ones((4, 4))) & Mask(dense=jnp.ones((4, 4)))


@pytest.mark.parametrize(("name", "shapes", "given", "message"), REFUSED)
def test_what_does_not_fit_is_named(name, shapes, given, message):
    arrays = [jnp.ones(shapes.get(array, (5, 2, 4))) for array in ("query", "key", "value")]
    settings = {"layer": 1, "memory": {}, **given}
    with pytest.raises(ValueError, match=message):
        _Layer(registry.get(name)).init(jax.random.key(0), *arrays, **settings)
