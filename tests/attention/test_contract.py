"""One contract for every mechanism: exact, causal, blind to padding, whatever its pair."""

import itertools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from attention import records, registry, table
from attention.kernels.inputs import make_call
from attention.masks import Bias, Mask
from attention.verification import check, laws, reference

# Operation by operation: each is compiled once for all cases; a case as a whole takes seconds.
pytestmark = pytest.mark.usefixtures("no_jit")

ALONE = (
    *table.MIXERS,
    *(f"{mixer}+{modifier}" for mixer in ("standard", "laser") for modifier in table.MODIFIERS),
)
# For what does not depend on the mixer.
LAWS = (*table.MIXERS, *(f"laser+{modifier}" for modifier in table.MODIFIERS))
PAIRS = [
    f"{mixer}+{first}+{second}"
    for mixer in ("standard", "laser")
    for first, second in itertools.combinations(table.MODIFIERS, 2)
]
REST = [
    f"{mixer}+{modifier}"
    for mixer, modifier in itertools.product(table.MIXERS, table.MODIFIERS)
    if mixer not in ("standard", "laser") and f"{mixer}+{modifier}" in registry.names()
]


def _quick_by_laser(names):
    """Marks what `standard` has as slow: how modifiers compose does not depend on the mixer."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=slow) if "standard+" in name else name for name in names]


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


def _layer(variant, shape=SHAPE, dtype="float32", layer=check.LAYER):
    """Returns arrays by name, and parameters away from their start."""
    drawn = check.draw(variant, shape)
    drawn.pop("cotangent")
    arrays = {name: jnp.asarray(array, dtype) for name, array in drawn.items()}
    return arrays, {"params": check.leaves(variant, arrays, 0.3, layer)}


def _run(variant, params, arrays, mask=None, *, is_causal=False, layer=check.LAYER):
    return check.Host(variant, layer, is_causal).apply(params, mask=mask, **arrays)


@pytest.mark.parametrize("mask", check.MASKS)
@pytest.mark.parametrize("name", ALONE)
def test_alone_in_float32(name, mask):
    row = check.measure(check.Case(name, "xla", "float32", mask, 1, 1), SHAPE, seed=7)
    assert row.passed, row


@pytest.mark.parametrize("name", _quick_by_laser(ALONE))
def test_alone_in_bfloat16(name):
    row = check.measure(check.Case(name, "xla", "bfloat16", "causal", 1, 1), WIDE, seed=7)
    assert row.passed, row


@pytest.mark.parametrize("name", _quick_by_laser(PAIRS))
def test_in_pairs(name):
    row = check.measure(check.Case(name, "xla", "float32", "causal", 1, 1), SHAPE, seed=7)
    assert row.passed, row


@pytest.mark.slow
@pytest.mark.parametrize("name", REST)
def test_with_every_mixer(name):
    """In bfloat16 but for softpick of rounded logits: its gradient jumps where a logit is 0."""
    modifier = records.modifier(table.modifiers(name)[0])
    is_rounded = modifier.acts_on == "inputs" and modifier.bfloat16_allowance > 1
    jumps = table.mixer(name) == "softpick" and is_rounded and modifier.keeps is None
    for dtype in ("float32", "bfloat16")[: 1 if jumps else 2]:
        case = check.Case(name, "xla", dtype, "causal", 1, 1)
        worst = check.measure(case, WIDE, seed=7).worst
        if worst > 1:  # λ's gradient is one number: some draws of diff+sink are twice the limit off
            worst = np.median([check.measure(case, WIDE, seed=seed).worst for seed in range(7, 12)])
        assert worst <= 1


@pytest.mark.parametrize("name", LAWS)
def test_nothing_hidden_reaches_an_output(name):
    """Nothing of later or masked tokens, and of other examples."""
    assert laws.measure(_variant(name)) == []


@pytest.mark.parametrize("name", LAWS)
def test_a_row_that_sees_nothing_returns_0(name):
    variant = _variant(name)
    arrays, params = _layer(variant)
    mask = jnp.ones((SHAPE[0],) * 2, bool).at[9].set(False)

    def run(arrays):
        return _run(variant, params, arrays, mask)

    output, pullback = jax.vjp(run, arrays)
    (gradients,) = pullback(jnp.ones_like(output))
    np.testing.assert_allclose(output[9], 0, atol=1e-7)
    assert all(np.isfinite(array).all() for array in (output, *gradients.values()))


@pytest.mark.parametrize("name", LAWS)
def test_one_token(name):
    variant = _variant(name)
    arrays, params = _layer(variant, (1, 2, 8))
    output, pullback = jax.vjp(lambda arrays: _run(variant, params, arrays), arrays)
    (gradients,) = pullback(jnp.ones_like(output))
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())
    exact = reference.compute(variant, params["params"], arrays, output, layer=check.LAYER)
    np.testing.assert_allclose(output, exact.output, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LAWS)
def test_batches_are_examples(name):
    """Two axes of a batch give what their entries give alone, in bfloat16 of that dtype."""
    variant = _variant(name)
    arrays, params = _layer(variant)
    batch = {array: jnp.stack([v, -v])[:, None] for array, v in arrays.items()}
    output = _run(variant, params, batch, is_causal=True)
    np.testing.assert_allclose(
        output[0, 0], _run(variant, params, arrays, is_causal=True), atol=1e-5
    )
    narrow = {array: v.astype(jnp.bfloat16) for array, v in arrays.items()}
    assert _run(variant, params, narrow).dtype == jnp.bfloat16


@pytest.mark.parametrize("name", LAWS)
def test_one_key_head_repeated_is_full_heads(name):
    variant = _variant(name)
    arrays, params = _layer(variant)
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


@pytest.mark.parametrize("name", LAWS)
def test_strict_promotion_and_symbolic_lengths(name):
    variant = _variant(name)
    arrays, params = _layer(variant)
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


@pytest.mark.parametrize("mixer", ["standard", "laser", "sigmoid", "diff2"])
@pytest.mark.parametrize("modifier", ["gate", "per_dim_temp", "window"])
def test_unchanged_at_the_start(mixer, modifier):
    """A gate of 2σ(0) = 1; a window wider than the text."""
    arrays, _ = _layer(registry.get(f"{mixer}+gate"))
    plain, _ = _at_start(mixer, arrays)
    changed, _ = _at_start(f"{mixer}+{modifier}", arrays)
    np.testing.assert_allclose(changed, plain, atol=1e-6)


def test_stick_breaking_shares_sum_to_what_is_taken():
    """Σ_j a_ij = 1 − Π_{l<i} (1 − σ(s_il)), by values of 1; nothing for the first query."""
    arrays, _ = _layer(registry.get("stick_breaking"))
    ones = {**arrays, "value": jnp.ones_like(arrays["value"])}
    sums = _run(registry.get("stick_breaking"), {}, ones)[..., 0]
    logits = np.einsum("thd,shd->hts", arrays["query"], arrays["key"]) / np.sqrt(SHAPE[2])
    left = np.where(np.tri(SHAPE[0], k=-1, dtype=bool), 1 / (1 + np.exp(logits)), 1).prod(-1)
    np.testing.assert_allclose(sums, 1 - left.T, atol=1e-6)
    assert not sums[0].any()


@pytest.mark.parametrize("mixer", ["standard", "laser"])
def test_forget_gates_of_1_forget_nothing(mixer):
    variant = registry.get(f"{mixer}+fox")
    arrays, params = _layer(variant)
    fox = {"scale": 0 * params["params"]["fox"]["scale"], "scale_bias": jnp.full(SHAPE[1], 60.0)}
    kept = _run(variant, {"params": {"fox": fox}}, arrays)
    plain = {name: v for name, v in arrays.items() if name != "x"}
    np.testing.assert_allclose(
        kept, _run(registry.get(mixer), {}, plain, is_causal=True), atol=1e-6
    )


@pytest.mark.parametrize("mixer", ["standard", "laser", "softpick"])
def test_exclusive_output_is_orthogonal_to_its_own_value(mixer):
    """z·v = (y·v)·ε/(‖v‖² + ε)."""
    variant = registry.get(f"{mixer}+xsa")
    arrays, _ = _layer(variant)
    output = np.asarray(_run(variant, {}, arrays), np.float64)
    along = (output * np.asarray(arrays["value"])).sum(-1)
    norms = np.linalg.norm(output, axis=-1) * np.linalg.norm(arrays["value"], axis=-1)
    assert (np.abs(along) <= 2e-6 * (1 + norms)).all()


def test_rotations_know_distances_alone():
    """Query and key moved by the same number of positions have the same logit; base by hand."""
    variant = registry.get("standard+rope", base=4.0)
    call = make_call(*(jnp.ones((5, 1, 4)) for _ in "qkv"))
    from attention.modifiers import rope

    turned = rope.apply(call, {}, base=variant.base)
    logits = np.einsum("thd,shd->ts", turned.query, turned.key)
    distance = np.subtract.outer(np.arange(5), np.arange(5))
    # Two pairs of ones, turned by the distance and by half of it (4^(−2/4)).
    np.testing.assert_allclose(logits, 2 * np.cos(distance) + 2 * np.cos(distance / 2), rtol=1e-5)


def test_slopes_by_hand():
    """Six heads: m_h = 2^(−8h/6); equal logits leave weights e^(−m·distance)."""
    shape = (3, 6, 2)
    zeros = {"query": jnp.zeros(shape), "key": jnp.zeros(shape)}
    value = jnp.zeros(shape).at[0].set(1.0)
    weight = _run(registry.get("standard+alibi"), {}, {**zeros, "value": value}, is_causal=True)
    slopes = 2.0 ** (-8 * np.arange(1, 7) / 6)
    terms = np.exp(-slopes * np.arange(3)[:, None])
    np.testing.assert_allclose(weight[2, :, 0], terms[2] / terms.sum(0), rtol=1e-6)


def test_scalable_softmax_by_hand():
    """s = 1/log 8 at the start: a row of 8 keys is unchanged, one of 2 is scaled by log 2/log 8."""
    arrays, _ = _layer(registry.get("standard"), (8, 2, 4))
    scaled, params = _at_start("standard+ssmax", arrays)
    np.testing.assert_allclose(params["params"]["ssmax"]["scale"], 1 / np.log(8), rtol=1e-6)
    plain, _ = _at_start("standard", arrays)
    np.testing.assert_allclose(scaled[7], plain[7], atol=1e-6)
    colder = _run(registry.get("standard+temp", tau=3.0), {}, arrays, is_causal=True)
    np.testing.assert_allclose(scaled[1], colder[1], atol=1e-6)


def test_root_mean_square_norms_by_hand():
    """(3, 1) over √5, times 1 + scale: logits of the two are 2·(3·3 + 1)/5 over √2."""
    head = jnp.asarray([3.0, 1.0]).reshape(1, 1, 2)
    leaves = {"query_rms/scale": jnp.asarray([1.0, 0.0]), "key_rms/scale": jnp.zeros(2)}
    normed = records.modifier("qk_rms_norm").apply(make_call(head, head, head), leaves)
    np.testing.assert_allclose(normed.query[0, 0], [6 / 5**0.5, 1 / 5**0.5], rtol=1e-6)
    np.testing.assert_allclose(normed.key[0, 0], [3 / 5**0.5, 1 / 5**0.5], rtol=1e-6)


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


def test_a_fixed_sink_by_hand():
    """Off by one: one key of logit 0 and value 3 has weight 1/(1 + 1)."""
    one = {name: jnp.zeros((1, 1, 1)) for name in ("query", "key")}
    output = _run(
        registry.get("standard+sink", learned=False), {}, {**one, "value": jnp.full((1, 1, 1), 3.0)}
    )
    assert float(output[0, 0, 0]) == pytest.approx(1.5)


def test_softpick_by_hand():
    """Logits ln 3 and −ln 2: terms 2 and −½, so the weights are 2/2.5 and 0."""
    query = jnp.ones((1, 1, 1))
    key = jnp.log(jnp.asarray([3.0, 0.5])).reshape(2, 1, 1)
    value = jnp.asarray([1.0, 100.0]).reshape(2, 1, 1)
    output = _run(registry.get("softpick"), {}, {"query": query, "key": key, "value": value})
    assert float(output[0, 0, 0]) == pytest.approx(0.8, rel=1e-5)


@pytest.mark.parametrize("mixer", ["diff2", "diff2_laser"])
def test_second_queries_like_the_first_halve_the_output(mixer):
    """λ = σ(0) = ½ at the start, so y₁ − ½·y₂ is half of what one query gives."""
    variant = registry.get(mixer)
    arrays, params = _layer(variant)
    branch = registry.get("laser" if "laser" in mixer else "standard")
    plain = {name: v for name, v in arrays.items() if name != "x"}
    projection = np.linalg.pinv(arrays["x"]) @ np.asarray(plain["query"]).reshape(SHAPE[0], -1)
    leaves = {
        "scale_query": projection.reshape(-1, *SHAPE[1:]).astype(np.float32),
        "scale_lambda": 0 * params["params"]["diff2"]["scale_lambda"],
    }
    output = _run(variant, {"params": {"diff2": leaves}}, arrays)
    # As many inputs as tokens are independent: the projection gives the first queries again.
    assert SHAPE[0] == check.WIDTH
    np.testing.assert_allclose(2 * output, _run(branch, {}, plain), atol=2e-3)


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


@pytest.mark.parametrize(("name", "shapes", "given", "message"), REFUSED)
def test_what_does_not_fit_is_named(name, shapes, given, message):
    arrays = [jnp.ones(shapes.get(array, (5, 2, 4))) for array in ("query", "key", "value")]
    settings = {"layer": 1, "memory": {}, **given}
    with pytest.raises(ValueError, match=message):
        _Layer(registry.get(name)).init(jax.random.key(0), *arrays, **settings)


@pytest.mark.parametrize(
    ("name", "hyperparameters", "message"),
    [
        ("laser+window", {"width": 0}, "width=0.*integer from 1"),
        ("laser+window", {"width": 2.0}, "width=2.0.*integer from 1"),
        ("laser+window", {"width": True}, "width=True.*integer from 1"),
        ("laser+gate", {"per": "token"}, "per='token'.*'channel' or 'head'"),
        ("laser+sink", {"learned": 1}, "learned=1.*True or False"),
        ("laser+rope", {"base": 0.0}, "base=0.0.*> 0"),
        ("softpick+sink", {}, "'softpick' has no normaliser"),
        ("stick_breaking+sink", {}, "'stick_breaking' has no normaliser"),
        ("sigmoid_laser", {}, "weights of 'sigmoid' may sum to 0"),
        ("softpick_laser", {}, "weights of 'softpick' may sum to 0"),
        ("stick_breaking_laser", {}, "weights of 'stick_breaking' may sum to 0"),
        ("laser+alibi", {"kernel": "splash"}, "no functions of the logits.*kernel='xla'"),
        ("laser+fox", {"kernel": "splash"}, "no bias.*kernel='xla' or kernel='jax_xla'"),
        ("softpick", {"kernel": "cudnn"}, "no weights other than the softmax's"),
    ],
)
def test_what_no_variant_has_is_named(name, hyperparameters, message):
    with pytest.raises(ValueError, match=message):
        registry.get(name, **hyperparameters)
