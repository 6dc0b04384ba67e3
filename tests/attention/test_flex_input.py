"""What `flex` answers to arguments that it cannot take, and on a platform that is not here."""

import contextlib
import dataclasses
import importlib.util
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from attention.common import devices
from attention.flex import Mask, Weighting, flex
from attention.functions import exponential
from attention.kernels.gpu import fused_gpu, plan_gpu


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


@pytest.mark.skipif(not hasattr(plan_gpu.triton, "load"), reason="no Triton")
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
