"""Laws that hold for every input: shift, bounds, Jensen, permutation, causality, Jacobians."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import registry
from attention.mixers import laser, standard
from attention.verification import reference
from tests.attention import pairs

# Jitted once: hypothesis varies numbers, not shapes.
ATTEND = {
    "standard": jax.jit(standard.attend, static_argnames="is_causal"),
    "laser": jax.jit(laser.attend, static_argnames="is_causal"),
}
PAIRED = {mixer: pairs.compiled(mixer) for mixer in ("diff", "diff_laser")}
settings = hypothesis.settings(max_examples=25, derandomize=True)

T, H, D = 9, 2, 4


@st.composite
def problems(draw, span=60.0):
    """Query, key, value [T, H, D]; the channels of value span at most 70 nats."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    qs, vs = draw(st.sampled_from([0.1, 1.0, 4.0])), draw(st.sampled_from([0.01, 1.0, 3.0]))
    query, key = qs * rng.standard_normal((T, H, D)), rng.standard_normal((T, H, D))
    value = np.clip(vs * rng.standard_normal((T, H, D)), -5, 5)
    outlier = draw(st.floats(-span, span))
    value[draw(st.integers(0, T - 1))] += outlier
    return [jnp.asarray(array, jnp.float32) for array in (query, key, value)]


def _size(*arrays):
    return max(1.0, *(float(np.abs(array).max()) for array in arrays))


@settings
@hypothesis.given(problems(), st.floats(-50, 50))
def test_shift_of_the_values_shifts_the_output(problem, constant):
    query, key, value = problem
    moved = ATTEND["laser"](query, key, value + constant)
    expected = ATTEND["laser"](query, key, value) + constant
    np.testing.assert_allclose(moved, expected, atol=3e-7 * _size(value, value + constant) + 1e-6)


@settings
@hypothesis.given(problems())
def test_between_extremes_and_above_the_mean(problem):
    """min v ≤ o ≤ max v, and o ≥ Σ a·v by Jensen's inequality."""
    query, key, value = problem
    output = np.asarray(ATTEND["laser"](query, key, value))
    slack = 3e-7 * _size(value) + 1e-6
    assert (output <= np.asarray(value).max(0) + slack).all()
    assert (output >= np.asarray(value).min(0) - slack).all()
    assert (output >= np.asarray(ATTEND["standard"](query, key, value)) - slack).all()


@settings
@hypothesis.given(problems(), st.permutations(range(T)))
def test_order_of_keys_does_not_matter(problem, order):
    query, key, value = problem
    order = np.array(order)
    np.testing.assert_allclose(
        ATTEND["laser"](query, key[order], value[order]),
        ATTEND["laser"](query, key, value),
        atol=3e-7 * _size(value) + 1e-6,
    )


@settings
@hypothesis.given(problems(), st.integers(0, T - 1))
def test_one_visible_key_returns_its_value(problem, index):
    query, key, value = problem
    mask = jnp.arange(T) == index
    for attend in ATTEND.values():
        output = attend(query, key, value, mask=mask)
        expected = np.broadcast_to(value[index], output.shape)
        np.testing.assert_allclose(output, expected, rtol=1e-6, atol=1e-6)


@settings
@hypothesis.given(problems())
def test_bounded_by_the_largest_term(problem):
    """max_j (v_j + log a_j) ≤ o ≤ that + log N (the paper's lemma on log-sum-exp)."""
    query, key, value = problem
    logits = np.einsum("thd,shd->hts", *(np.asarray(a, np.float64) for a in (query, key)))
    logits *= D**-0.5
    top = logits.max(-1, keepdims=True)
    log_a = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    terms = log_a[..., None] + np.moveaxis(np.asarray(value, np.float64), 1, 0)[:, None]
    largest = np.moveaxis(terms.max(2), 0, 1)
    output = np.asarray(ATTEND["laser"](query, key, value))
    slack = 3e-7 * _size(value) + 1e-6
    assert (output >= largest - slack).all()
    assert (output <= largest + np.log(T) + slack).all()


@settings
@hypothesis.given(problems(), st.floats(-50, 50), st.floats(-1, 2))
def test_shift_moves_differential_outputs_by_one_minus_lambda(problem, constant, lambda_):
    """The rows of A1 − λ·A2 sum to 1 − λ; each branch of diff_laser moves by c, and λ·c."""
    query, key, value = problem
    for attend in PAIRED.values():
        moved = attend(query, key, value + constant, lambda_=lambda_)
        expected = attend(query, key, value, lambda_=lambda_) + (1 - lambda_) * constant
        slack = 1e-6 * _size(value, value + constant) + 3e-6
        np.testing.assert_allclose(moved, expected, atol=slack)


@settings
@hypothesis.given(problems(), st.permutations(range(T)), st.integers(0, T - 1), st.floats(-1, 2))
def test_differential_outputs_of_permuted_keys_and_of_one_key(problem, order, index, lambda_):
    """The order of keys does not matter; one visible key gives (1 − λ)·v, before any norm."""
    query, key, value = problem
    order, slack = np.array(order), 1e-6 * _size(value) + 1e-6
    for attend in PAIRED.values():
        everything = attend(query, key, value, lambda_=lambda_)
        permuted = attend(query, key[order], value[order], lambda_=lambda_)
        np.testing.assert_allclose(permuted, everything, atol=slack)
        one = attend(query, key, value, lambda_=lambda_, mask=jnp.arange(T) == index)
        expected = np.broadcast_to((1 - lambda_) * value[index], one.shape)
        np.testing.assert_allclose(one, expected, atol=slack)


@pytest.mark.parametrize("mixer", ["diff", "diff_laser"])
@settings
@hypothesis.given(problems(), st.integers(1, T - 1), st.floats(-60, 60))
def test_the_future_does_not_reach_the_past_of_pairs(mixer, problem, position, gap):
    query, key, value = problem
    value = jnp.clip(value, -5, 5)
    changed_key = key.at[position:].multiply(-3.0)
    before, after = (
        PAIRED[mixer](query, *arrays, lambda_=0.8, is_causal=True)
        for arrays in ((key, value), (changed_key, value.at[position:].add(gap)))
    )
    assert np.abs(np.asarray(before - after))[:position].max() <= 5e-6


def test_two_keys_by_hand():
    """Equal logits, values 0 and ln 3: log(½·1 + ½·3) = ln 2; the standard mean is ln(3)/2."""
    query = jnp.zeros((1, 1, 1))
    key = jnp.ones((2, 1, 1))
    value = jnp.asarray([0.0, np.log(3.0)], jnp.float32).reshape(2, 1, 1)
    assert float(ATTEND["laser"](query, key, value)[0, 0, 0]) == pytest.approx(np.log(2), abs=1e-7)
    assert float(ATTEND["standard"](query, key, value)[0, 0, 0]) == pytest.approx(np.log(3) / 2)


def test_scale_divides_logits_by_hand():
    """Logits 1 and 0 at scale 1: weights e/(1+e) and 1/(1+e)."""
    query = jnp.ones((1, 1, 1))
    key = jnp.asarray([1.0, 0.0]).reshape(2, 1, 1)
    value = jnp.asarray([1.0, 0.0]).reshape(2, 1, 1)
    weight = np.e / (1 + np.e)
    assert float(ATTEND["standard"](query, key, value)[0, 0, 0]) == pytest.approx(weight)
    halved = 1 / (1 + np.exp(-0.5))
    assert float(standard.attend(query, key, value, scale=0.5)[0, 0, 0]) == pytest.approx(halved)
    traced = standard.attend(query, key, value, scale=jnp.asarray(0.5))
    assert float(traced[0, 0, 0]) == pytest.approx(halved)
    assert float(ATTEND["laser"](query, key, value)[0, 0, 0]) == pytest.approx(
        np.log(weight * np.e + 1 - weight)
    )


@pytest.mark.parametrize("mixer", ["standard", "laser"])
@settings
@hypothesis.given(problems(), st.integers(1, T - 1), st.floats(-60, 60))
def test_the_future_does_not_reach_the_past(mixer, problem, position, gap):
    """Changing keys and values at t ≥ position moves outputs before it by rounding only."""
    query, key, value = problem
    value = jnp.clip(value, -5, 5)
    attend = ATTEND[mixer]
    before = attend(query, key, value, is_causal=True)
    changed = attend(
        query,
        key.at[position:].multiply(-3.0),
        value.at[position:].add(gap),
        is_causal=True,
    )
    difference = np.abs(np.asarray(before - changed))[:position].max()
    assert difference <= 5e-6


def _one_row(weights, value, mixer):
    """Returns output and ∂output/∂logits for one query with the given weights."""
    logits, value = jnp.log(jnp.asarray(weights, jnp.float32)), jnp.asarray(value, jnp.float32)
    output, gradient = _value_and_gradient(mixer, logits, value)
    return float(output), np.asarray(gradient)


@functools.partial(jax.jit, static_argnums=0)
def _value_and_gradient(mixer, logits, value):
    def forward(logits):
        query, key = jnp.ones((1, 1, 1)), logits.reshape(-1, 1, 1)
        return ATTEND[mixer](query, key, value.reshape(-1, 1, 1))[0, 0, 0]

    return jax.value_and_grad(forward)(logits)


@settings
@hypothesis.given(st.lists(st.floats(-3, 3), min_size=2, max_size=6), st.integers(0, 10**6))
def test_closed_form_of_the_logit_gradient(value, seed):
    """∂o/∂ã_j = a_j·(v_j − o) for standard, a_j·exp(v_j − o) − a_j (at most 1) for LASER."""
    weights = np.random.default_rng(seed).dirichlet(np.ones(len(value)))
    weights = np.maximum(weights, 1e-6) / np.maximum(weights, 1e-6).sum()
    value = np.asarray(value)
    output, gradient = _one_row(weights, value, "standard")
    np.testing.assert_allclose(gradient, weights * (value - output), atol=3e-6)
    output, gradient = _one_row(weights, value, "laser")
    np.testing.assert_allclose(gradient, weights * np.exp(value - output) - weights, atol=3e-6)
    assert np.abs(gradient).max() <= 1


def test_softmax_jacobian_lemma():
    """‖J_softmax‖ ≤ 2·a_j(1 − a_j) per row j: the gradient vanishes as a weight saturates.

    The softmax's Jacobian is diag(a) − a·aᵀ; row j has 1-norm 2·a_j·(1 − a_j).
    """
    for top in (0.5, 0.9, 0.999):
        weights = np.array([top, *np.full(4, (1 - top) / 4)])
        jacobian = np.asarray(jax.jacobian(jax.nn.softmax)(jnp.log(jnp.asarray(weights))))
        np.testing.assert_allclose(
            jacobian, np.diag(weights) - np.outer(weights, weights), atol=1e-6
        )
        np.testing.assert_allclose(np.abs(jacobian).sum(1), 2 * weights * (1 - weights), atol=1e-6)


def test_laser_escapes_saturation_where_the_paper_says():
    """Two keys, a_1 = α small, e^(v1 − v2) ≫ 1/α: LASER's gradient is near 1, standard's near α."""
    alpha, value = 1e-3, np.array([12.0, 0.0])
    weights = np.array([alpha, 1 - alpha])
    _, of_standard = _one_row(weights, value, "standard")
    _, of_laser = _one_row(weights, value, "laser")
    assert of_standard[0] == pytest.approx(alpha * (1 - alpha) * 12.0, rel=1e-3)
    assert of_laser[0] == pytest.approx(1 - alpha, abs=0.01)


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


def test_reference_of_pairs_against_its_definition():
    """(A1 − λ·A2)·V and log(A1·exp V) − λ·log(A2·exp V) from explicit maps."""
    rng = np.random.default_rng(4)
    arrays = {name: rng.standard_normal((3, 2, 2)) for name in ("query", "key", "value")}
    maps = []
    for h in (0, 1):
        logits = arrays["query"][:, h] @ arrays["key"][:, h].T / np.sqrt(2)
        maps.append(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))
    columns = arrays["value"].reshape(3, 4)
    for mixer, mean in (
        ("diff", lambda a: a @ columns),
        ("diff_laser", lambda a: np.log(a @ np.exp(columns))),
    ):
        first, second = (mean(weights) for weights in maps)
        variant = registry.get(mixer, head_norm=False)
        zeros = {f"scale_{name}": np.zeros(2) for name in ("q1", "k1", "q2", "k2")}
        tree = {"diff_lambda": zeros}
        result = reference.compute(variant, tree, arrays, np.zeros((3, 2, 2)))
        # λ = e⁰ − e⁰ + 0.2.
        np.testing.assert_allclose(result.output.reshape(3, 4), first - 0.2 * second)


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
