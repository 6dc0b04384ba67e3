"""Our own flash attention, with LASER's exponential and logarithm inside (`fused`).

Written in Pallas: `fused_tpu` is compiled by Mosaic, `fused_gpu` by Triton. NOT yet run on a TPU or
GPU: interpret mode holds the numbers to those of our core, the real compilers the shapes, and no
study takes it by default.

A library's kernel gives softmax(QKᵀ)·E for a matrix E that was written before it, and its result is
read again by the logarithm: in float32, since rounding in exp space is an absolute error of the
output (`attention.kernels.shift`). Here V is read once, in the inputs' dtype, and what comes out is

    standard    o = A·V
    LASER       o = c + log(1 + A·F),  F = expm1(V − c)     (max form: o = c + log(A·F), F = exp)

with c per channel as `shift.choose` has it. Blocks of logits live on the chip. Kept for the
backward pass: log Σ exp of each row, and R = A·F in float32 (standard: o). With G = dO·∂o/∂R, in
float32 up to the matrix unit:

    dV = F'∘(AᵀG),  F' = ∂F/∂V;   dL = A∘(G·Fᵀ − δ),  δ = Σ_d R∘G;   dQ = s·dL·K,  dK = s·dLᵀ·Q

and, with +softcap, dL times its derivative. Weights are rounded to the inputs' dtype before a
product, as our core does; the scale is applied to float32 logits, so queries are rounded once less
than under `splash`.
"""

import functools

import jax
import jax.numpy as jnp

from attention import masks
from attention.kernels import accelerated, fused_gpu, fused_tpu, fused_values
from attention.kernels.inputs import Problem
from attention.records import Kernel

Array = jax.Array


def weighted_sum(problem: Problem, value: Array, *, interpret: str = "") -> Array:
    """Returns A·V for value [..., S, H, Dv], [..., T, H, Dv] in its dtype.

    interpret: 'tpu' or 'gpu', whose kernel XLA is to run on any platform, for tests. Raises
    ValueError for what the kernel lacks, and where neither a TPU nor a GPU is to run it.
    """
    return _run(problem, value, False, interpret)


def log_mean_exp(problem: Problem, value: Array, *, interpret: str = "") -> Array:
    """Returns log(A·exp(V)) for value [..., S, H, Dv], [..., T, H, Dv] in its dtype.

    Rows that see nothing return 0. Raises as `weighted_sum`.
    """
    output = _run(problem, value, True, interpret)
    return output if problem.masks.rows is None else jnp.where(problem.masks.rows, output, 0)


def _run(problem: Problem, value: Array, laser: bool, interpret: str) -> Array:
    accelerated.refuse("fused", problem, value, interpret)
    of_form = {
        "laser": laser,
        "is_causal": problem.mask.causal,
        "scale": problem.scale,
        "cap": accelerated.soft_cap(problem),
        "dtype": value.dtype,
        "interpret": bool(interpret),
    }
    narrow = value.astype(problem.query.dtype)
    arrays = {"query": problem.query, "key": problem.key, "value": narrow}
    keys = accelerated.visible_keys(problem)
    queries, length = problem.query.shape[-3], value.shape[-3]
    earlier = masks.of_causality(queries, length).keys if problem.mask.causal else None
    if earlier is not None:
        earlier = jnp.broadcast_to(earlier[:, 0, 0], (*value.shape[:-3], length))
        keys = earlier if keys is None else keys & earlier
    if keys is not None:
        arrays["keys"] = keys
    attend = functools.partial(fused_gpu.attend, of_form)
    if (interpret or problem.platform) == "tpu":
        attend = functools.partial(fused_tpu.attend, of_form, problem.device.device_kind)
    return accelerated.on_devices("fused", attend, problem, arrays)


KERNEL = Kernel(weighted_sum, span=fused_values.SPAN, float32_sums=True, log_mean_exp=log_mean_exp)
