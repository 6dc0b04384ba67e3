"""What an attention operator of MaxText is asked for, without MaxText."""

import types

import jax
import numpy as np
import pytest

from attention import registry
from tests.maxtext.formula import laser
from workloads.maxtext.runner import Substitution, check_config

SEGMENTS = np.array([[1] * 5 + [2] * 7, [1] * 10 + [0] * 2])


def _operator(kind="global", window=None):
    return types.SimpleNamespace(
        attention_type=types.SimpleNamespace(value=kind),
        sliding_window_size=window,
        config=types.SimpleNamespace(matmul_precision="highest"),
        leaf_paths=(),
    )


def _arrays():
    keys = jax.random.split(jax.random.key(0), 3)
    return [
        np.asarray(jax.random.normal(key, (2, 12, heads, 8)))
        for key, heads in zip(keys, (4, 2, 2), strict=True)
    ]


def _attend(operator, arrays, segments=None, mode="train", *args, **named):
    substitution = Substitution(registry.get("laser"))
    return substitution.attend(operator, None, *arrays, segments, None, mode, *args, **named)


@pytest.mark.parametrize(
    ("kind", "window"), [("global", None), ("local_sliding", 4), ("full", None)]
)
@pytest.mark.parametrize("has_segments", [True, False])
def test_segments_windows_and_grouped_heads(kind, window, has_segments):
    arrays, index = _arrays(), np.arange(12)
    distance = index[:, None] - index
    seen = np.ones((12, 12), bool) if kind == "full" else distance >= 0
    if window is not None:
        seen = seen & (distance < window)
    segments = SEGMENTS if has_segments else None
    if has_segments:
        seen = seen & (SEGMENTS[:, None, :, None] == SEGMENTS[:, None, None, :])
    output = _attend(_operator(kind, window), arrays, segments)
    np.testing.assert_allclose(output, laser(*arrays, seen), rtol=0, atol=2e-5)


def test_what_training_does_not_ask_for_is_refused():
    arrays = _arrays()
    _attend(_operator(), arrays, None, "train", [None, None], None, None, None)
    for mode, sinks in (("prefill", None), ("autoregressive", None), ("train", np.zeros(4))):
        with pytest.raises(ValueError, match="more than training"):
            _attend(_operator(), arrays, None, mode, [None, None], None, None, sinks)
    with pytest.raises(ValueError, match="mla"):
        _attend(_operator("mla"), arrays)


def test_settings_that_change_attention_are_refused():
    laser = registry.get("laser")
    check_config(types.SimpleNamespace(use_qk_norm=True, moba=False), laser)
    with pytest.raises(ValueError, match="attn_logits_soft_cap"):
        check_config(types.SimpleNamespace(attn_logits_soft_cap=50.0), laser)
    with pytest.raises(ValueError, match="qk_norm"):
        check_config(types.SimpleNamespace(use_qk_norm=True), registry.get("laser+qk_norm"))
