"""`python -m attention check`: variants against the float64 oracle, beside the paper's snippet.

Inputs are normal; `qs` scales the queries (4: peaked rows, as the paper observed in trained
models), `vs` is the standard deviation of the values. Errors are ‖out − ref‖/‖ref‖ on the same
rounded inputs.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from attention import oracle, registry, table
from attention.modifiers import INVERSE_SOFTPLUS_OF_ZERO
from attention.variant import Variant

Limits = tuple[float, float]  # output, gradients

# Relative error allowed for the pure mixers, by (dtype, whether the kernel's sums are float32).
LIMITS: dict[tuple[str, bool], Limits] = {
    ("float32", True): (2e-6, 3e-6),
    ("float32", False): (2e-6, 3e-6),
    ("bfloat16", True): (3.0e-3, 4.0e-3),
    ("bfloat16", False): (3.5e-3, 4.5e-3),
}
# A modifier with learned factors rounds the new queries and keys to bfloat16 once more, forward
# and backward (measured: 4.9e-3 in dQ, 3.5e-3 in the output).
MODIFIER_ALLOWANCE = {"float32": 1.0, "bfloat16": 1.5}
MASKS = ("none", "causal", "padded")
TAU = 0.9


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the check: inputs and what computes them."""

    variant: str
    kernel: str
    dtype: str
    mask: str
    qs: float
    vs: float


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Relative errors of one case; `snippet` is None where the paper's code has no such mask."""

    case: Case
    output: float
    gradients: tuple[float, float, float]
    snippet: float | None
    limits: Limits

    @property
    def passed(self) -> bool:
        """Whether output and all gradients are within the limits."""
        return self.output <= self.limits[0] and max(self.gradients) <= self.limits[1]


def cases(variants: tuple[str, ...], kernels: tuple[str, ...]) -> Iterator[Case]:
    """Yields every combination, the pure mixers over all scales, modifiers at (qs 1, vs 1)."""
    for name, kernel, dtype, mask in itertools.product(
        variants, kernels, ("float32", "bfloat16"), MASKS
    ):
        pure = not table.parse(name)[1]
        if not pure and (mask != "none" or kernel != "xla"):
            continue
        for qs, vs in itertools.product((1.0, 4.0), (0.1, 1.0, 4.0)) if pure else ((1.0, 1.0),):
            if dtype == "float32" and vs > 1:
                continue
            yield Case(name, kernel, dtype, mask, qs, vs)


def measure(case: Case, shape: tuple[int, int, int] = (256, 4, 64), seed: int = 0) -> Measurement:
    """Returns the errors of one case at shape (N, H, D), self-attention of N tokens."""
    rng = np.random.default_rng(seed)
    query, key, value, cotangent = (rng.standard_normal(shape) for _ in range(4))
    query, value = query * case.qs, value * case.vs
    arrays = [jnp.asarray(array, case.dtype) for array in (query, key, value, cotangent)]
    mask = make_mask(case.mask, shape[0])
    hyperparameters = table.hyperparameters(case.variant, TAU)
    variant = registry.get(case.variant, kernel=case.kernel, **hyperparameters)
    factors = rng.normal(0.0, 0.3, (3, shape[-1]))
    output, gradients = run(variant, factors, arrays, mask)
    reference = reference_for(variant, factors, arrays, mask)
    errors = tuple(
        oracle.relative_error(ours, theirs)
        for ours, theirs in zip(gradients, reference.gradients, strict=True)
    )
    snippet = None
    if variant.mixer == "laser" and case.mask == "none" and not variant.modifiers:
        snippet = oracle.relative_error(_paper_snippet(*arrays[:3]), reference.output)
    return Measurement(
        case,
        oracle.relative_error(output, reference.output),
        errors,  # type: ignore[arg-type]
        snippet,
        limits_of(variant, case.dtype),
    )


_paper_snippet = jax.jit(oracle.paper_snippet)


def limits_of(variant: Variant, dtype: str) -> Limits:
    """Returns the allowed (output, gradient) errors."""
    output, gradient = LIMITS[dtype, variant.kernel == "xla"]
    allowance = MODIFIER_ALLOWANCE[dtype] if variant.has_parameters else 1.0
    return output * allowance, gradient * allowance


def make_mask(kind: str, length: int) -> np.ndarray | None:
    """Returns None, a causal mask [N, N], or one that hides the last quarter of the keys [1, N]."""
    if kind == "none":
        return None
    if kind == "causal":
        return np.tril(np.ones((length, length), bool))
    return (np.arange(length) < length - length // 4)[None]


def run(
    variant: Variant, factors: np.ndarray, arrays: list[jax.Array], mask: np.ndarray | None
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Returns output and gradients of the variant with the given learned factors [3, D]."""
    query_ln, key_ln, per_dim = (jnp.asarray(row, jnp.float32) for row in factors)
    params: dict[str, dict[str, jax.Array]] = {}
    if "qk_norm" in variant.modifiers:
        params |= {"query_ln": {"scale": query_ln}, "key_ln": {"scale": key_ln}}
    if "per_dim_temp" in variant.modifiers:
        params |= {"per_dim_temp": {"scale": per_dim}}
    return _forward_and_backward(variant, params, mask, *arrays)


class _Host(nn.Module):
    """The smallest host: learned factors have a place to live."""

    variant: Variant

    @nn.compact
    def __call__(
        self, query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None
    ) -> jax.Array:
        return self.variant(query, key, value, mask=mask, deterministic=True)


# One compilation per variant, dtype and presence of a mask serves all scales.
@functools.partial(jax.jit, static_argnums=0)
def _forward_and_backward(
    variant: Variant,
    params: dict[str, dict[str, jax.Array]],
    mask: jax.Array | None,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    cotangent: jax.Array,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    output, pullback = jax.vjp(
        lambda *qkv: _Host(variant).apply({"params": params}, *qkv, mask), query, key, value
    )
    return output, pullback(cotangent.astype(output.dtype))


def reference_for(
    variant: Variant, factors: np.ndarray, arrays: list[jax.Array], mask: np.ndarray | None
) -> oracle.Result:
    """Returns the oracle's result, with modifiers applied and differentiated in float64."""
    query, key, value, cotangent = (np.asarray(array).astype(np.float64) for array in arrays)
    new_query, new_key = query, key
    if "qk_norm" in variant.modifiers:
        new_query, new_key = (
            _normalise(array)[0] * (1 + scale)
            for array, scale in zip((query, key), factors[:2], strict=True)
        )
    temperature = np.ones(query.shape[-1])
    if "per_dim_temp" in variant.modifiers:
        temperature = INVERSE_SOFTPLUS_OF_ZERO * np.log1p(np.exp(factors[2]))
    result = oracle.attend(
        variant.mixer,
        new_query * temperature,
        new_key,
        value,
        cotangent,
        scale=query.shape[-1] ** -0.5 / variant.tau,
        mask=mask,
    )
    query_bar, key_bar = result.gradients.query * temperature, result.gradients.key
    if "qk_norm" in variant.modifiers:
        query_bar = _normalise_backward(query, query_bar * (1 + factors[0]))
        key_bar = _normalise_backward(key, key_bar * (1 + factors[1]))
    return oracle.Result(
        result.output, oracle.Gradients(query_bar, key_bar, result.gradients.value)
    )


def _normalise(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (x − mean)/√(var + 1e-6) over the last axis, and 1/√(var + 1e-6)."""
    centred = array - array.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    return centred * inverse, inverse


def _normalise_backward(array: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    normal, inverse = _normalise(array)
    mean = gradient.mean(-1, keepdims=True)
    return inverse * (gradient - mean - normal * (gradient * normal).mean(-1, keepdims=True))
