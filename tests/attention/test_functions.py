"""Arguments of flex: functions that kernels take, what is refused by name, weights by hand."""

import contextlib
import dataclasses
import importlib.util
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from attention import functions, records
from attention.common import devices
from attention.flex import Mask, check, flex
from attention.functions import Score, Transform, Weighting, exponential
from attention.kernels import core, elementwise
from attention.kernels.gpu import fused_gpu, plan_gpu
from attention.verification import reference
from tests.attention.interpreted import needs_triton

TABLE = np.linspace(0.0, 1.0, 24)
ARRAY = jnp.arange(24.0)


def _score(function, *kinds):
    return (Score(function, kinds=tuple(kinds)),)


def _check(score=(), weighting=core.SOFTMAX, transform=None):
    elementwise.check(score, weighting, transform)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i, j, c: 30 * jnp.tanh(x / 30),
        lambda x, i, j, c: x + TABLE[3] * jnp.where(i - j < 5, 1.0, -1.0),
        lambda x, i, j, c: jnp.where((i // 32) == (j // 32), x, -1e9),
        lambda x, i, j, c: jax.nn.gelu(x) + jax.nn.silu(x) + jax.nn.softplus(x),
        lambda x, i, j, c: jnp.clip(x, -5, 5) + jnp.abs(x) ** 1.5 + x**3,
        lambda x, i, j, c: jnp.where(((i * 40503 + j * 8191) >> 3) % 7 == 0, 0.0, x),
    ],
)
def test_what_both_compilers_take_goes_in(function):
    _check(_score(function))


def test_leaves_of_every_kind_and_the_mechanisms_go_in():
    leaves = ("slope", "head"), ("row", "row"), ("column", "column")
    _check(
        _score(lambda x, i, j, c: c["slope"] * x * (i - j) + c["row"] - c["column"], *leaves),
        transform=Transform(
            lambda v, c: jnp.exp(v - c["shift"]),
            lambda r, c: c["shift"] + jnp.log(r),
            names=("shift",),
        ),
    )
    for name in ("standard", "sigmoid", "softpick", "stick_breaking"):
        for dtype in (jnp.bfloat16, jnp.float32):
            _check(weighting=records.mixer(name).weighting_of(16, dtype))


def _exp(x, s):
    return jnp.exp(x - s)


# (what, function, what the message says of it, whether `xla` has it).
BAD = [
    ("score", lambda x, i, j, c: x + TABLE, "captures an array of shape .*is a leaf", False),
    ("score", lambda x, i, j, c: x + ARRAY, "captures an array of shape .*is a leaf", False),
    ("score", lambda x, i, j, c: x + np.ones((40, 40)), "array from outside is a leaf", False),
    ("score", lambda x, i, j, c: ARRAY[jnp.clip(i - j, 0, 5)], "uses gather.*jnp.where", False),
    ("score", lambda x, i, j, c: jnp.roll(x, 1, -1), "uses slice.*element by element", False),
    ("score", lambda x, i, j, c: jnp.flip(x, -1), "uses rev.*a tile, not a whole row", False),
    ("score", lambda x, i, j, c: jnp.cumsum(x, -1), "uses cumsum.*`left`", False),
    ("score", lambda x, i, j, c: jax.lax.top_k(x, 24)[0], "top_k", False),
    ("score", lambda x, i, j, c: x - x.mean(), "uses reduce_sum.*not a whole row", False),
    ("score", lambda x, i, j, c: jax.nn.softmax(x), "uses reduce_max.*not a whole row", False),
    ("score", lambda x, i, j, c: jax.pure_callback(np.sort, x, x), "uses pure_callback", False),
    ("score", lambda x, i, j, c: jnp.sort(x), "uses sort.*not a whole row", False),
    ("score", lambda x, i, j, c: x @ jnp.ones((24, 24)), "uses dot_general|leaf", False),
    ("score", lambda x, i, j, c: x * jax.random.uniform(jax.random.key(0), x.shape), "leaf", False),
    ("score", lambda x, i, j, c: jax.lax.cond(True, jnp.tanh, jnp.exp, x), "cond.*where", True),
    ("score", lambda x, i, j, c: jax.lax.fori_loop(0, 3, lambda _, y: 2 * y, x), "scan", True),
    ("score", lambda x, i, j, c: jax.lax.while_loop(lambda y: False, jnp.tanh, x), "while", True),
    ("score", lambda x, i, j, c: jax.lax.scan(lambda a, y: (a + y, a), 0 * i[:, 0], x)[1],
     "uses|traced", False),
    ("score", lambda x, i, j, c: jax.nn.gelu(x, approximate=False), "uses erfc.*gelu", True),
    ("score", lambda x, i, j, c: jax.scipy.special.erf(x), "uses erf.*gelu", True),
    ("score", lambda x, i, j, c: jnp.expm1(x), "uses expm1.*tanh", True),
    ("score", lambda x, i, j, c: jnp.sin(x), "uses sin.*leaf", True),
    ("score", lambda x, i, j, c: jnp.round(x), "uses round.*floor", True),
    ("score", lambda x, i, j, c: jax.checkpoint(jnp.tanh)(x), "uses remat2", True),
    ("score", lambda x, i, j, c: x.astype(jnp.bfloat16), "computes in bfloat16", True),
    ("score", lambda x, i, j, c: x[:5], r"returns float32\(5, 24\).*same shape", False),
    ("score", lambda x, i, j, c: x.T, r"returns float32\(24, 16\).*same shape", False),
    ("score", lambda x, i, j, c: None, "returns NoneType", False),
    ("score", lambda x, i, j, c: True, "returns bool", False),
    ("score", lambda x, i, j, c: x > 0, "returns bool.*mask=", False),
    ("score", lambda x, i, j, c: 1j * x, "returns complex64", False),
    ("score", lambda x, i, j, c: [x], "returns list", False),
    ("score", lambda x, i, j, c: x if x[0, 0] > 0 else -x, "asks for the value.*where", False),
    ("score", lambda x, i, j, c: np.tanh(x), "asks for the value.*jax.numpy", False),
    ("score", lambda x, i, j, c: x * c["slope"], "traced: KeyError.*slope.*leaves: none", False),
    ("score", lambda x, b, h, i, j: x, "TypeError.*logits, query_index, key_index, leaves", False),
    ("score", 3.0, "TypeError", False),
    ("value_function", lambda v, c: None, "returns NoneType", False),
    ("value_function", lambda v, c: v - v.mean(0), "uses reduce_sum", False),
    ("output_function", lambda r, c: r - r.mean(-1, keepdims=True), "uses reduce_sum", False),
    ("output_function", lambda r, c: r[..., :3], "returns float32", False),
    ("output_function", lambda r: r, "TypeError.*output, leaves", False),
    ("weighting", Weighting(lambda x, s: x, lambda x, s: x), "weights .*exp.-s.*scales=Fal", False),
    ("weighting", Weighting(_exp, lambda x, s: jnp.exp(x)), "mass .*scales=False", False),
    ("weighting", Weighting(_exp, lambda x, s: jnp.exp(x - s / 2)), "mass .*scales=False", False),
    ("weighting", Weighting(_exp, lambda x, s: 2 * _exp(x, s), same=True), "same=True", False),
    ("weighting", Weighting(lambda x, s: jnp.exp(x), same=True), "mass=weights", False),
    ("weighting", Weighting(_exp, lambda x, s: _exp(x, s).sum(-1)), "mass uses reduce_sum|returns",
     False),
    ("weighting", Weighting(lambda x, s: jax.nn.softmax(x)), "weights uses reduce_max", False),
    ("weighting", Weighting(lambda x: x), "weights cannot be traced.*logits, s", False),
]  # fmt: skip
NAMES = {"score": "score", "value_function": "value", "output_function": "output"}


@pytest.mark.parametrize("kernel", ["xla", "fused"])
@pytest.mark.parametrize(("what", "function", "problem", "xla_has_it"), BAD)
def test_a_bad_function_is_refused_by_name(what, function, problem, xla_has_it, kernel):
    """By every backend, and before a device is asked for."""
    given = [jnp.ones((1, 40, 2, 8)) for _ in range(3)]
    if xla_has_it and kernel == "xla":
        assert flex(*given, **{what: function}).shape == (1, 40, 2, 8)
        return
    with pytest.raises(ValueError, match=f"{NAMES.get(what, what)}.*{problem}"):
        flex(*given, **{what: function}, kernel=kernel)
    with pytest.raises(ValueError, match=problem):
        check(*given, **{what: function})


@pytest.mark.parametrize("kernel", ["xla", "fused"])
@pytest.mark.parametrize(
    "around", [jax.grad, jax.jit, lambda f: lambda a: jax.vmap(f)(jnp.full(2, a))]
)
@pytest.mark.parametrize(
    "settings",
    [
        lambda a: {"score": lambda x, i, j, c: a * x},
        lambda a: {"weighting": Weighting(lambda x, s: jax.nn.sigmoid(a * x))},
        lambda a: {"weighting": Weighting(*[lambda x, s: jnp.exp(a * x - s)] * 2)},
    ],
)
def test_a_captured_number_that_jax_traces_is_refused_by_name(settings, around, kernel):
    given = [jnp.ones((1, 40, 2, 8)) for _ in range(3)]
    attend = around(lambda a: flex(*given, kernel=kernel, **settings(a)).sum())
    with pytest.raises(ValueError, match="captures .*leaf of kind scalar"):
        attend(1.3)


def test_float64_and_unknown_kinds_are_refused():
    with reference.float64(), pytest.raises(ValueError, match="float64"):
        elementwise.check(_score(lambda x, i, j, c: x * np.float64(2)), core.SOFTMAX, None)
    with pytest.raises(ValueError, match="leaf 'end' of kind 'tail': give head, row, column"):
        _check(_score(lambda x, i, j, c: x, ("end", "tail")))


@pytest.mark.parametrize("number", [{"start": jnp.ones(())}, {"start": [0.0]}, {"floor": "0"}])
def test_numbers_of_a_weighting_are_numbers(number):
    with pytest.raises(ValueError, match="give a number.*head leaf"):
        Weighting(_exp, _exp, same=True, **number)


def test_dropout_s_hash_is_as_random_as_a_generator():
    """Shares of all, rows and columns; neighbours, corners of rectangles and seeds do not agree."""
    places = jnp.arange(512)
    seeds = jax.random.bits(jax.random.key(0), (8, 1, 1), jnp.uint32).astype(jnp.int32)
    found = functions.is_kept(0.25, seeds, places[:, None], places)
    centred = (np.float64(found) - 0.75) / np.sqrt(0.75 * 0.25)  # variance 1
    assert abs(centred.mean()) < 4 / np.sqrt(centred.size)
    for axis in (1, 2):
        spread = np.square(centred.mean(axis)).mean() * 512  # 1 ± sqrt(2/4096)
        assert abs(spread - 1) < 4 * np.sqrt(2 / 4096)
    others = [np.roll(centred, shift, axis) for axis in (1, 2) for shift in (1, 2, 128)]
    others += [np.roll(centred, 1, 0), np.swapaxes(centred, 1, 2)]
    others += [np.roll(centred, s, 1) * np.roll(centred, s, 2) * np.roll(centred, (s, s), (1, 2))
               for s in (1, 64, 256)]  # fmt: skip
    for other in others:
        assert abs((centred * other).mean()) < 5 / np.sqrt(centred.size)


def _rows(weighting, logits, seen):
    logits = jnp.where(seen, logits, jnp.finfo(jnp.float32).min)
    return functions.rows(weighting, logits)[0]


def test_rows_by_hand():
    """Weights of whole rows in float64; a sink, a constant mass, keys from the last on."""
    rng = np.random.default_rng(0)
    logits, seen = rng.normal(0, 3, (2, 5, 7)), rng.random((2, 5, 7)) < 0.7
    seen[0, 2] = False
    raised = np.where(seen, np.exp(logits), 0)
    terms = np.where(seen, np.expm1(logits), 0)
    shares = np.where(seen, 1 / (1 + np.exp(-logits)), 0)
    left = np.flip(np.cumprod(np.flip(1 - shares, -1), -1), -1) / (1 - shares)

    def over(total):
        return np.where(total > 0, total, 1)

    of = {name: records.mixer(name).weighting_of(7, jnp.float32) for name in _NAMES}
    sinks = Weighting(functions.exponential, functions.exponential, same=True, start=0.5)
    expected = {
        "standard": (raised / over(raised.sum(-1, keepdims=True)), of["standard"]),
        "sink": (raised / (raised.sum(-1, keepdims=True) + np.exp(0.5)), sinks),
        "softpick": (
            np.maximum(terms, 0) / (1e-6 + np.abs(terms).sum(-1, keepdims=True)),
            of["softpick"],
        ),
        "stick_breaking": (shares * left, of["stick_breaking"]),
        "sigmoid": (np.where(seen, 1 / (1 + 7 * np.exp(-logits)), 0), of["sigmoid"]),
    }
    for name, (exact, weighting) in expected.items():
        found = _rows(weighting, jnp.asarray(logits, jnp.float32), seen)
        np.testing.assert_allclose(found, exact, rtol=2e-5, atol=2e-7, err_msg=name)


_NAMES = ("standard", "softpick", "stick_breaking", "sigmoid")


@dataclasses.dataclass
class _Unhashable:
    """A function of anything: a dataclass that is not frozen has no hash."""

    def __call__(self, first, *others):
        return first


SINK = Weighting(exponential, exponential, same=True, start="sink")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weighting": "softmin"}, "unknown weighting 'softmin'.*or give a Weighting"),
        ({"mask": "casual"}, "mask='casual': give 'causal', a Mask"),
        ({"leaves": {"s": jnp.ones(4)}}, "leaf 's': give .kind, array."),
        ({"leaves": {"s": ("tail", jnp.ones(4))}}, "leaf 's': give .kind, array."),
        ({"leaves": {"s": ("head", jnp.ones(3))}}, r"kind head has shape \(3,\); give \(4,\)"),
        ({"leaves": {"s": ("head", jnp.arange(4))}}, "has dtype int32; give floating"),
        ({"leaves": {"s": ("head", [[1.0], 2.0])}}, "leaf 's' is no array"),
        ({"leaves": {"s": ("scalar", [1.0])}}, r"kind scalar has shape \(1,\); give \(\)"),
        ({"leaves": [1.0]}, "leaves=.*give a mapping"),
        ({"leaves": {1: ("scalar", 1.0)}}, "leaves=.*give a mapping from names"),
        ({"weighting": exponential}, "or give a Weighting"),
        ({"leaves": {"s": ("head", jnp.ones(4))}}, "read by a score function: give score="),
        (
            {"leaves": {"s": ("channel", jnp.ones((2, 4, 16)))}},
            "value_function and output_function read",
        ),
        ({"weighting": SINK}, "start='sink' of a weighting is a sink: give a leaf"),
        ({"kernel": "flash"}, "unknown kernel 'flash'"),
        ({"kernel": "fused"}, "kernel='fused' needs a TPU or an NVIDIA GPU"),
        *[
            ({"kernel": "jax_xla", "weighting": weighting}, "no weights other than the softmax's")
            for weighting in (
                "sigmoid",
                dataclasses.replace(SINK, start=0.0),
                Weighting(exponential, lambda x, s: 2 * exponential(x, s)),
            )
        ],
        ({"scale": float("inf")}, "scale=inf"),
        ({"sharding": PartitionSpec("data")}, "sharding=P.*: give NamedSharding"),
        ({"score": _Unhashable()}, "score=.* has no hash.*frozen"),
        ({"mask": _Unhashable()}, "mask=.* has no hash.*frozen"),
        ({"mask": Mask(segments=(jnp.ones(8) / 3,) * 2)}, "mask.segments.0. has dtype"),
    ],
)
def test_bad_input_is_answered(settings, message):
    array = jnp.ones((2, 8, 4, 16))
    with pytest.raises(ValueError, match=message):
        flex(array, array, array, **settings)


@needs_triton
def test_lowering_for_a_gpu_warns_of_nothing(monkeypatch):
    """Where JAX deprecates its Triton backend; where it wants a GPU to lower for, it says so."""
    monkeypatch.setattr(devices, "default_platform", lambda: "gpu")
    query = jax.ShapeDtypeStruct((1, 128, 2, 64), jnp.bfloat16)
    gradient = jax.grad(lambda q: flex(q, q, q, kernel="fused").astype(jnp.float32).sum())
    with contextlib.suppress(RuntimeError):
        jax.jit(gradient).trace(query).lower(lowering_platforms=("cuda",))


def test_a_jax_without_the_triton_backend_is_answered(monkeypatch):
    monkeypatch.delattr("jax.experimental.pallas.triton")
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    spec = importlib.util.spec_from_file_location("plan_gpu_alone", plan_gpu.__file__)
    alone = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(alone)
    monkeypatch.setattr(fused_gpu, "triton", alone.triton)
    monkeypatch.setattr(devices, "default_platform", lambda: "gpu")
    query = jnp.ones((1, 16, 1, 64))
    with pytest.raises(ValueError, match="kernel='cudnn' or kernel='xla'"):
        flex(query, query, query, kernel="fused")
