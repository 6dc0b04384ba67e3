"""Kernels: the same answer where they can, a clear refusal where they cannot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import registry
from attention.masks import Bias, Mask
from attention.mixers import laser, standard
from tests.python_processes import start_python


def _qkv(size=8, dtype="float32", batch=(2,), value_size=None):
    rng = np.random.default_rng(0)
    shapes = [(*batch, 6, 3, size)] * 2 + [
        (*batch, 6, 3, size if value_size is None else value_size)
    ]
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


# Every pair of mixer, batch and kind: each case compiles its operations.
@pytest.mark.parametrize(
    ("attend", "batch", "kind"),
    [
        (standard.attend, (), "none"),
        (laser.attend, (), "causal"),
        (standard.attend, (), "padding"),
        (laser.attend, (), "bias"),
        (laser.attend, (2,), "none"),
        (standard.attend, (2,), "causal"),
        (laser.attend, (2,), "padding"),
        (standard.attend, (2,), "bias"),
        (laser.attend, (2, 4), "none"),
        (standard.attend, (2, 4), "causal"),
        (standard.attend, (2, 4), "padding"),
        (laser.attend, (2, 4), "bias"),
    ],
)
def test_jax_xla_agrees_with_our_core(attend, batch, kind):
    query, key, value = _qkv(batch=batch)
    settings = {
        "none": {},
        "causal": {"is_causal": True},
        "padding": {"mask": jnp.arange(6) < 4},
        "bias": {"bias": jnp.arange(6.0)[None, :, None] * jnp.ones((3, 6, 6))},
    }[kind]
    ours = attend(query, key, value, **settings)
    theirs = attend(query, key, value, kernel="jax_xla", **settings)
    assert ours.shape == (*batch, 6, 3, 8)
    np.testing.assert_allclose(ours, theirs, atol=2e-6)


def test_scale_reaches_every_kernel():
    query, key, value = _qkv()
    for scale in (0.3, jnp.asarray(0.3)):
        np.testing.assert_allclose(
            laser.attend(query, key, value, scale=scale),
            laser.attend(query, key, value, scale=scale, kernel="jax_xla"),
            atol=2e-6,
        )


@pytest.mark.parametrize(
    ("kernel", "settings", "arrays", "message"),
    [
        ("jax_xla", {}, {"value_size": 5}, r"head size of V \(5\).*use kernel='xla'"),
        ("jax_xla", {"dropout_rate": 0.1}, {}, "no attention dropout.*use kernel='xla'"),
        ("jax_xla", {"precision": "highest"}, {}, "no matmul precision"),
        ("cudnn", {}, {}, "needs an NVIDIA GPU and JAX runs on 'cpu'"),
        ("nope", {}, {}, "unknown kernel 'nope'.*xla, jax_xla, cudnn"),
    ],
)
def test_refusals_name_a_kernel_that_can(kernel, settings, arrays, message):
    if "dropout_rate" in settings:
        settings = {**settings, "dropout_rng": jax.random.key(0)}
    with pytest.raises(ValueError, match=message):
        standard.attend(*_qkv(**arrays), kernel=kernel, **settings)


@pytest.mark.parametrize(
    ("size", "dtype", "message"),
    [
        (8, "float32", "bfloat16 or float16, not float32"),
        (12, "bfloat16", "head size 12.*multiple of 8"),
        (512, "bfloat16", "head size 512.*at most 256"),
    ],
)
def test_cudnn_limits_are_checked_before_the_call(monkeypatch, size, dtype, message):
    """The paper's head sizes 512 and 720 are impossible in cuDNN; a GPU is only pretended here."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(ValueError, match=message):
        laser.attend(*_qkv(size=size, dtype=dtype), kernel="cudnn")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": (6, 8)}, "query has shape"),
        ({"key": (2, 6, 3, 4)}, "head sizes"),
        ({"value": (2, 5, 3, 8)}, "differ before the last axis"),
        ({"query": (2, 6, 4, 8)}, "heads"),
        ({"mask": (5,)}, "mask of shape"),
        ({"bias": (9, 3, 6, 6)}, "bias of shape"),
        ({"dropout_rate": 1.0}, "dropout_rate=1.0"),
        ({"dropout_rate": 0.5}, "needs a dropout_rng"),
        ({"mask": Mask(keys=[True] * 6)}, "mask.keys=.*is no array"),
        ({"mask": Mask(segments=([0] * 6, [0] * 6))}, r"mask.segments\[0\]=.*is no array"),
        ({"mask": Mask(segments=(jnp.zeros(6, int),))}, "mask.segments: give two"),
        ({"bias": Bias(column=[0.0] * 6)}, "bias=.*is no array"),
        ({"mask": "causal"}, "mask='causal' is no array"),
        ({"bias": 1.0}, "bias=1.0 is no array"),
        ({"scale": float("nan")}, "scale=nan.*finite"),
        ({"is_causal": "no"}, "is_causal='no': give True or False"),
        ({"key": (2, 0, 3, 8), "value": (2, 0, 3, 8)}, "number of keys must be at least 1"),
    ],
)
def test_arguments_are_checked(change, message):
    arguments = dict(zip(("query", "key", "value"), _qkv(), strict=True))
    for name, given in change.items():
        arguments[name] = jnp.ones(given) if type(given) is tuple else given
    with pytest.raises(ValueError, match=message):
        laser.attend(**arguments)


def test_integer_inputs_and_boolean_bias_are_refused():
    query, key, value = _qkv()
    with pytest.raises(ValueError, match="floating-point"):
        standard.attend(*(array.astype(int) for array in (query, key, value)))
    with pytest.raises(ValueError, match="belongs in mask"):
        standard.attend(query, key, value, bias=jnp.ones((6, 6), bool))


def test_numpys_float64_bias_is_taken():
    bias = np.zeros((6, 6))
    bias[:, 4:] = np.finfo(np.float32).min
    array, mask = _qkv()[0], np.arange(6) < 4
    np.testing.assert_allclose(
        laser.attend(array, array, array, bias=bias), laser.attend(array, array, array, mask=mask)
    )


def test_a_scale_of_another_dtype_keeps_the_inputs_dtype():
    query, key, value = _qkv(dtype="bfloat16")
    for kernel in ("xla", "jax_xla"):
        output = laser.attend(query, key, value, scale=jnp.float32(0.3), kernel=kernel)
        assert output.dtype == jnp.bfloat16


SHARDED = """
import jax, numpy as np, jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
from attention.mixers import laser
mesh = Mesh(np.array(jax.devices()), ("d",))
rng = np.random.default_rng(0)
q = jnp.asarray(rng.standard_normal((8, 6, 2, 4)), jnp.float32)
b = jnp.asarray(rng.standard_normal((1, 2, 6, 6)), jnp.float32)
shard_map = getattr(jax, "shard_map", None)
def loss(q, b):
    return jax.lax.psum(jnp.sum(jnp.sin(laser.attend(q, q, q, bias=b))), "d")
f = shard_map(loss, mesh=mesh, in_specs=(P("d"), P()), out_specs=P())
got = jax.jit(jax.grad(f, argnums=(0, 1)))(q, b)
loss = lambda q, b: jnp.sum(jnp.sin(laser.attend(q, q, q, bias=b)))
want = jax.jit(jax.grad(loss, argnums=(0, 1)))(q, b)
for ours, theirs in zip(got, want):
    np.testing.assert_allclose(ours, theirs, atol=3e-6)
print("equal")
"""


def test_gradients_under_shard_map_with_a_shared_bias():
    """Queries sharded over 8 devices, one bias for all: gradients equal those of one device."""
    output, errors = start_python(SHARDED, 8).communicate()
    assert output.strip() == "equal", errors[-1500:]


@pytest.mark.parametrize("dtype", ["bfloat16", "int32"])
@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("mask", lambda pairs: pairs),
        ("mask", lambda pairs: Mask(dense=pairs)),
        ("mask.keys", lambda pairs: Mask(keys=pairs[0])),
        ("mask", lambda pairs: Mask(dense=pairs) & Mask(dense=pairs > 0)),
    ],
)
def test_a_mask_of_numbers_is_refused(name, mask, dtype):
    """Under jit, too: one that is added to the logits would hide what it is to show."""
    query, variant = jnp.ones((6, 2, 4)), registry.get("standard")
    for pairs in (jnp.tri(6), jnp.where(jnp.tri(6) > 0, 0, -1e9), jnp.full((1, 6), -1e9)):
        for function in (standard.attend, variant):
            attend = jax.jit(lambda p, f=function: f(query[: len(p)], query, query, mask=mask(p)))
            with pytest.raises(ValueError, match=f"^{name} has dtype {dtype}.*mask > 0.*bias="):
                attend(pairs.astype(dtype))


def test_values_of_size_0_have_a_gradient():
    query, key, value = _qkv(value_size=0)
    for mixer in (standard, laser):
        bars = jax.grad(lambda *a: mixer.attend(*a).sum(), (0, 1, 2))(query, key, value)  # noqa: B023
        assert [bar.shape for bar in bars] == [query.shape, key.shape, value.shape]
        assert not bars[0].any()
