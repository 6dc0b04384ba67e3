"""The float64 reference, by hand."""

import numpy as np
import pytest

from attention import registry
from attention.mixers import laser
from attention.verification import reference


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
