"""`flex`: FlexAttention's examples and others, by our core and by kernels in interpret mode.

The reference is the same call in float64 by our core, whose functions are held by hand here and in
test_functions.py.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.flex import Bias, Mask, Weighting, flex
from attention.functions import exponential
from attention.kernels import fused, fused_tpu
from attention.verification.reference import relative_error

LENGTH, HEADS, SIZE = 140, 4, 16


@pytest.fixture(params=["tpu", "gpu"])
def platform(request, monkeypatch):
    """`fused` run by XLA, in blocks of 128 rows."""
    made = dataclasses.replace(
        fused.KERNEL,
        call=functools.partial(fused.weighted_sum, interpret=request.param),
        transformed=functools.partial(fused.transformed, interpret=request.param),
    )
    monkeypatch.setattr(fused, "KERNEL", made)
    monkeypatch.setattr(fused_tpu, "_most_rows", lambda *_: (128, None, True))
    monkeypatch.setattr(fused_tpu, "_TILE", 64)
    yield request.param
    jax.clear_caches()


def _arrays(heads=HEADS, length=LENGTH, size=SIZE, batch=2):
    rng = np.random.default_rng(0)
    shapes = {
        "query": (batch, length, HEADS, size),
        "key": (batch, length, heads, size),
        "value": (batch, length, heads, size),
        "cotangent": (batch, length, HEADS, size),
        "head": (HEADS,),
        "row": (batch, HEADS, length),
        "column": (batch, HEADS, length),
        "channel": (batch, heads, size),
    }
    drawn = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    positive = np.abs(drawn["column"]) + 0.5
    return drawn | {"head": np.abs(drawn["head"]) + 0.5, "positive": positive}


def _run(arrays, dtype, settings, kinds, kernel="xla"):
    """Returns the output, and gradients by name; leaves in float32 or wider."""
    wide = jnp.promote_types(dtype, jnp.float32)
    inputs = {name: jnp.asarray(arrays[name], dtype) for name in ("query", "key", "value")}
    leaves = {name: jnp.asarray(arrays[kind], wide) for name, kind in kinds.items()}
    if callable(settings.get("mask")):
        settings = settings | {"mask": settings["mask"](inputs["query"].shape[1])}

    def attend(inputs, leaves):
        kind_of = {name: "column" if kind == "positive" else kind for name, kind in kinds.items()}
        given = {name: (kind_of[name], leaf) for name, leaf in leaves.items()}
        return flex(**inputs, leaves=given, kernel=kernel, **settings)

    @jax.jit
    def both(inputs, leaves):
        output, pull = jax.vjp(attend, inputs, leaves)
        return output, pull(jnp.asarray(arrays["cotangent"], dtype))

    output, (bars, leaf_bars) = both(inputs, leaves)
    return output, bars | {f"leaf {name}": bar for name, bar in leaf_bars.items()}


def _documents(length):
    """Documents of two lengths, by batch entry."""
    ids = jnp.stack([jnp.arange(length) // 50, jnp.arange(length) // 90])
    return Mask(causal=True, segments=(ids, ids))


def _by_head(length):
    """Bands of blocks that differ by head; some queries see nothing, and some tiles everything."""
    i, j = np.arange(length)[:, None] // 40, np.arange(length) // 40
    seen = (i >= j, (i + j) % 5 > 0, i > j, abs(i - j) < 4)
    return jnp.asarray(np.stack(seen) & (j != 1))


SINK = Weighting(exponential, exponential, same=True, start="sink")
# By name: heads of keys, settings, kinds of leaves.
CASES = {
    "learned cap, a term per key": (
        2,
        {
            "score": lambda x, i, j, c: c["cap"] * jnp.tanh(x / c["cap"]) + c["key"],
            "mask": "causal",
        },
        {"cap": "head", "key": "column"},
    ),
    "softpick, a term per query, a window": (
        4,
        {
            "score": lambda x, i, j, c: x + c["query"],
            "weighting": "softpick",
            "mask": Mask(causal=True, width=50),
        },
        {"query": "row"},
    ),
    "sigmoid, ALiBi": (
        4,
        {"score": lambda x, i, j, c: x - c["slope"] * jnp.abs(i - j), "weighting": "sigmoid"},
        {"slope": "head"},
    ),
    "LASER by exp and log, a sink": (
        2,
        {
            "value_function": lambda v, c: jnp.exp(v - c["shift"]),
            "output_function": lambda r, c: c["shift"] + jnp.log(r),
            "weighting": SINK,
            "mask": "causal",
        },
        {"shift": "channel", "sink": "head"},
    ),
    "a sink that some queries see alone, a term per key": (
        2,
        {
            "score": lambda x, i, j, c: x + c["key"],
            "value_function": lambda v, c: jnp.exp(v),
            "output_function": lambda r, c: 1 + r,
            "weighting": SINK,
            "mask": lambda length: Mask(causal=True, keys=jnp.arange(length) > 5),
        },
        {"sink": "head", "key": "column"},
    ),
    "documents, LASER by exp and log": (
        2,
        {
            "value_function": lambda v, c: jnp.exp(v - c["shift"]),
            "output_function": lambda r, c: c["shift"] + jnp.log(r),
            "mask": _documents,
        },
        {"shift": "channel"},
    ),
    "a mask by head alone, LASER by exp and log": (
        2,
        {
            "value_function": lambda v, c: jnp.exp(v - c["shift"]),
            "output_function": lambda r, c: c["shift"] + jnp.log(r + 1e-3),
            "mask": _by_head,
        },
        {"shift": "channel"},
    ),
    "terms to divide by alone, hidden keys": (
        4,
        {
            "score": lambda x, i, j, c: x / (0.5 + c["query"] ** 2) / c["key"],
            "mask": lambda length: Mask(causal=True, keys=jnp.arange(length) % 7 > 0),
        },
        {"query": "row", "key": "positive"},
    ),
    "a mask by head, a term per key": (
        2,
        {"score": lambda x, i, j, c: x + c["key"], "mask": _by_head},
        {"key": "column"},
    ),
    "a window on both sides, the cube of values": (
        1,
        {"value_function": lambda v, c: v**3, "mask": Mask(width=40)},
        {},
    ),
}
SLOW = ("softpick, a term per query, a window", "a window on both sides, the cube of values")


@functools.cache
def _exact(name):
    heads, settings, kinds = CASES[name]
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, _run(_arrays(heads), jnp.float64, settings, kinds))


def _agrees(name, found, exact, limits):
    kinds = CASES[name][2]
    assert relative_error(found[0], exact[0]) <= limits[0]
    for key, bar in found[1].items():
        if kinds.get(key.removeprefix("leaf ")) == "channel":
            assert not np.any(bar)
            continue
        limit = limits[2] if key.startswith("leaf") else limits[1]
        if kinds.get(key.removeprefix("leaf ")) == "row" and limit > 1e-3:
            limit *= 2  # a row's terms cancel but for rounding
        assert relative_error(bar, exact[1][key]) <= limit, key


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.slow] * (one in SLOW)) for one in CASES]
)
def test_kernels_in_float32(name, platform):
    heads, settings, kinds = CASES[name]
    found = _run(_arrays(heads), jnp.float32, settings, kinds, "fused")
    _agrees(name, found, _exact(name), (1e-6, 2e-6, 1e-5))


@pytest.mark.slow
@pytest.mark.parametrize("name", [one for one in CASES if "alone" not in one])
def test_kernels_in_bfloat16(name, platform):
    """A transform's result is rounded before the product, its derivative with the cotangent."""
    heads, settings, kinds = CASES[name]
    arrays = _arrays(heads, length=384, size=64)
    arrays = {key: np.float64(jnp.asarray(one, "bfloat16")) for key, one in arrays.items()}
    with jax.enable_x64(True):
        exact = jax.tree.map(np.asarray, _run(arrays, jnp.float64, settings, kinds))
    found = _run(arrays, jnp.bfloat16, settings, kinds, "fused")
    # Of a mask that leaves some rows few keys our core's own dK and dV are 2.9e-3 off.
    is_bent = "value_function" in settings or name.startswith("a mask by head")
    _agrees(name, found, exact, (2.8e-3, 3.6e-3, 3e-3) if is_bent else (2.4e-3, 2.8e-3, 3e-3))


@pytest.mark.parametrize("name", CASES)
def test_our_core_in_float32(name):
    heads, settings, kinds = CASES[name]
    found = _run(_arrays(heads), jnp.float32, settings, kinds)
    _agrees(name, found, _exact(name), (1e-6, 2e-6, 1e-5))


def _weights(logits, seen):
    raised = np.where(seen, np.exp(logits), 0)
    total = raised.sum(-1, keepdims=True)
    return raised / np.where(total > 0, total, 1)


def test_examples_by_hand():
    """FlexAttention's own: causal, window, ALiBi, soft cap, documents, PrefixLM, NATTEN, tanh."""
    arrays = _arrays(length=12)
    query, key, value = (arrays[name] for name in ("query", "key", "value"))
    raw = np.einsum("bthd,bshd->bhts", query, key) * SIZE**-0.5
    i, j = np.arange(12)[:, None], np.arange(12)
    slope, documents = arrays["head"], np.repeat([0, 1, 2], 4)[None].repeat(2, 0)
    near = (np.abs(i // 4 - j // 4) <= 1) & (np.abs(i % 4 - j % 4) <= 1)
    cases = [
        ({"mask": "causal"}, raw, i >= j),
        ({"mask": Mask(causal=True, width=3)}, raw, (i >= j) & (i - j < 3)),
        (
            {
                "score": lambda x, i, j, c: x + c["slope"] * (j - i),
                "leaves": {"slope": ("head", jnp.float32(slope))},
                "mask": "causal",
            },
            raw + slope[:, None, None] * (j - i),
            i >= j,
        ),
        ({"score": lambda x, i, j, c: 5 * jnp.tanh(x / 5)}, 5 * np.tanh(raw / 5), True),
        (
            {"mask": Mask(causal=True, segments=(documents, documents))},
            raw,
            (i >= j) & (i // 4 == j // 4),
        ),
        ({"mask": jnp.asarray((i >= j) | (j < 5))}, raw, (i >= j) | (j < 5)),
        ({"mask": jnp.asarray(near)}, raw, near),
        ({"score": lambda x, i, j, c: jnp.tanh(x)}, np.tanh(raw), True),
        ({"scale": 1.0}, raw * SIZE**0.5, True),
        (
            {"bias": Bias(column=jnp.float32(arrays["column"]))},
            raw + arrays["column"][:, :, None],
            True,
        ),
    ]
    for settings, logits, seen in cases:
        given = (jnp.asarray(one, jnp.float32) for one in (query, key, value))
        expected = np.einsum("bhts,bshd->bthd", _weights(logits, seen), value)
        np.testing.assert_allclose(flex(*given, **settings), expected, atol=3e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weighting": "softmin"}, "unknown weighting 'softmin'.*or give a Weighting"),
        ({"mask": "casual"}, "mask='casual': give 'causal', a Mask"),
        ({"leaves": {"s": jnp.ones(4)}}, "leaf 's': give .kind, array."),
        ({"leaves": {"s": ("tail", jnp.ones(4))}}, "leaf 's': give .kind, array."),
        ({"leaves": {"s": ("head", jnp.ones(3))}}, r"kind head has shape \(3,\); give \(4,\)"),
        ({"leaves": {"s": ("head", jnp.arange(4))}}, "has dtype int32; give floating"),
        ({"leaves": {"s": ("head", jnp.ones(4))}}, "read by a score function: give score="),
        (
            {"leaves": {"s": ("channel", jnp.ones((2, 4, 16)))}},
            "value_function and output_function read",
        ),
        ({"weighting": SINK}, "start='sink' of a weighting is a sink: give a leaf"),
        ({"kernel": "flash"}, "unknown kernel 'flash'"),
        ({"kernel": "fused"}, "kernel='fused' needs a TPU or an NVIDIA GPU"),
        ({"kernel": "jax_xla", "weighting": "sigmoid"}, "no weights other than the softmax's"),
        ({"scale": float("inf")}, "scale=inf"),
        ({"mask": Mask(segments=(jnp.ones(8) / 3,) * 2)}, "mask.segments are of .*: give integers"),
    ],
)
def test_bad_input_is_answered(settings, message):
    arrays = _arrays(length=8)
    given = (jnp.asarray(arrays[name], jnp.float32) for name in ("query", "key", "value"))
    with pytest.raises(ValueError, match=message):
        flex(*given, **settings)


@pytest.mark.parametrize(
    ("weighting", "is_bias"), [("softmax", False), ("softmax", True), ("sigmoid", False)]
)
def test_a_query_that_sees_nothing_returns_0(weighting, is_bias, platform):
    """Whatever the output function makes of 0; no gradient passes."""
    arrays = _arrays(length=24)
    there = jnp.asarray([[True] * 24, [False] * 24])
    column = jnp.broadcast_to(jnp.where(there, 0.0, -jnp.inf)[:, None], (2, HEADS, 24))
    hiding = {"bias": Bias(column=column)} if is_bias else {"mask": Mask(keys=there)}

    def attend(*qkv):
        return flex(
            *qkv,
            weighting=weighting,
            output_function=lambda r, c: r + 1,
            kernel="fused",
            **hiding,
        )

    given = [jnp.asarray(arrays[name], jnp.float32) for name in ("query", "key", "value")]
    output, pull = jax.vjp(attend, *given)
    assert output[0].all()
    assert not output[1].any()
    assert not any(bar[1].any() for bar in pull(jnp.ones_like(output)))


def test_a_person_s_strict_settings_hold_for_their_own_code(platform):
    """Gradients through masks, sinks and terms by head and key."""
    arrays = _arrays(heads=2, length=24)
    ids = jnp.arange(24) // 9
    given = [jnp.asarray(arrays[name], jnp.float32) for name in ("query", "key", "value")]
    leaves = {name: (kind, jnp.asarray(arrays[kind], jnp.float32))
              for name, kind in (("sink", "head"), ("key", "column"))}  # fmt: skip

    def summed(*qkv):
        return flex(
            *qkv,
            score=lambda x, i, j, c: x + c["key"],
            weighting=SINK,
            mask=Mask(segments=(ids, ids), dense=(ids != 1)[None, None]),
            leaves=leaves,
            kernel="fused",
        ).sum()

    expected = jax.grad(summed, (0, 1, 2))(*given)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        found = jax.grad(summed, (0, 1, 2))(*given)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_function_that_no_kernel_can_have_is_refused_there(platform):
    arrays = _arrays(length=24)
    given = [jnp.asarray(arrays[name], jnp.float32) for name in ("query", "key", "value")]
    table = np.arange(24.0)

    def score(logits, i, j, leaves):
        return logits + table

    assert flex(*given, score=score).shape == (2, 24, HEADS, SIZE)
    with pytest.raises(
        ValueError, match="score captures an array of shape .24,.; give it as a leaf"
    ):
        flex(*given, score=score, kernel="fused")
