"""`python -m attention check`: variants against the float64 oracle, beside the paper's snippet.

Inputs are normal; `qs` scales the queries (4: peaked rows, as the paper observed in trained
models), `vs` is the standard deviation of the values. Errors are ‖out − ref‖/‖ref‖ on the same
rounded inputs.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from attention import records, registry, table
from attention.variant import Variant
from attention.verification import oracle

Limits = tuple[float, float]  # output, gradients
Tree = dict[str, dict[str, np.ndarray]]

# Relative error allowed, by (dtype, whether the kernel's sums are float32); in bfloat16 times what
# the records of mixer and modifiers allow for roundings of their own.
LIMITS: dict[tuple[str, bool], Limits] = {
    ("float32", True): (2e-6, 3e-6),
    ("float32", False): (2e-6, 3e-6),
    ("bfloat16", True): (3.0e-3, 4.0e-3),
    ("bfloat16", False): (3.5e-3, 4.5e-3),
}
MASKS = ("none", "causal", "padded")
# The gradient of λ is one number, whose error does not average out as an array's norm does: its
# standard deviation over seeds is 2.6e-3 of its terms (largest of 24 measured: 5.5e-3).
LEARNED_LIMITS = {"float32": 3e-6, "bfloat16": 1e-2}
TAU = 0.9
# λ_init = 0.56: neither the first layer's 0.2 nor the last ones' 0.8.
DEPTH = 3


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
    """Relative errors of one case.

    gradients: of query, key, value. snippet: None where the paper's code has no such mask.
    learned: of the gradients of learned leaves, None where there are none.
    """

    case: Case
    output: float
    gradients: tuple[float, float, float]
    snippet: float | None
    limits: Limits
    learned: float | None = None

    @property
    def worst(self) -> float:
        """The largest error as a fraction of its limit; NaN where any error is."""
        output, gradient = self.limits
        learned = (self.learned or 0.0) / LEARNED_LIMITS[self.case.dtype]
        gradients = (error / gradient for error in self.gradients)
        return float(np.max([self.output / output, learned, *gradients]))

    @property
    def passed(self) -> bool:
        """Whether output and all gradients are within the limits. NaN is not."""
        return self.worst <= 1


def cases(variants: tuple[str, ...], kernels: tuple[str, ...]) -> Iterator[Case]:
    """Yields every combination, the pure mixers over all scales, modifiers at (qs 1, vs 1).

    Kernels that cannot serve a variant, and modifiers with kernels other than `xla`, are left out.
    """
    for name, kernel, dtype, mask in itertools.product(
        variants, kernels, ("float32", "bfloat16"), MASKS
    ):
        pure = not table.parse(name)[1]
        if kernel not in table.kernels_of(name):
            continue
        if not pure and (mask != "none" or kernel != "xla"):
            continue
        for qs, vs in itertools.product((1.0, 4.0), (0.1, 1.0, 4.0)) if pure else ((1.0, 1.0),):
            if dtype == "float32" and vs > 1:
                continue
            yield Case(name, kernel, dtype, mask, qs, vs)


def measure(
    case: Case,
    shape: tuple[int, int, int] = (256, 4, 64),
    seed: int = 0,
    head_norm: bool = True,
    depth: int = DEPTH,
) -> Measurement:
    """Returns the errors of one case at shape (N, H, D), self-attention of N tokens."""
    rng = np.random.default_rng(seed)
    query, key, value, cotangent = (rng.standard_normal(shape) for _ in range(4))
    query, value = query * case.qs, value * case.vs
    arrays = [jnp.asarray(array, case.dtype) for array in (query, key, value, cotangent)]
    mask = make_mask(case.mask, shape[0])
    chosen = {"tau": TAU, "head_norm": head_norm}
    known = table.hyperparameters_of(case.variant).items()
    hyperparameters = {key: chosen.get(key, one.other) for key, one in known}
    variant = registry.get(case.variant, kernel=case.kernel, **hyperparameters)
    params = leaves(variant, arrays[:3], 0.3, depth)
    # Causality is said as such, which every kernel knows.
    is_causal = case.mask == "causal"
    output, gradients, learned = _forward_and_backward(
        variant, depth, is_causal, params, None if is_causal else mask, *arrays
    )
    exact = oracle.compute(variant, params, arrays, mask, depth)
    errors = tuple(
        oracle.relative_error(ours, theirs)
        for ours, theirs in zip(gradients, exact.gradients, strict=True)
    )
    theirs, snippet = records.mixer(variant.mixer).snippet, None
    if theirs is not None and case.mask == "none" and not variant.modifiers:
        snippet = oracle.relative_error(_compiled(theirs)(*arrays[:3]), exact.output)
    return Measurement(
        case,
        oracle.relative_error(output, exact.output),
        errors,  # type: ignore[arg-type]
        snippet,
        limits_of(variant, case.dtype),
        oracle.learned_error(learned, exact) if exact.learned else None,
    )


@functools.cache
def _compiled(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return jax.jit(function)


def limits_of(variant: Variant, dtype: str) -> Limits:
    """Returns the allowed (output, gradient) errors."""
    kernel = records.kernel(variant.kernel)
    output, gradient = LIMITS[dtype, kernel.float32_sums]
    if dtype != "bfloat16":
        return output, gradient
    allowance = records.mixer(variant.mixer).bfloat16_allowance
    # Modifiers and kernel round the same arrays, one after the other: the most that one needs.
    rounding = [records.modifier(name).bfloat16_allowance for name in variant.modifiers]
    allowance *= max(kernel.bfloat16_allowance, *rounding, 1.0)
    return output * allowance, gradient * allowance


def make_mask(kind: str, length: int) -> np.ndarray | None:
    """Returns None, a causal mask [N, N], or one that hides the last quarter of the keys [1, N]."""
    if kind == "none":
        return None
    if kind == "causal":
        return np.tril(np.ones((length, length), bool))
    return (np.arange(length) < length - length // 4)[None]


def unheard(name: str) -> list[str]:
    """Returns what changes nothing in a variant: modifiers and hyperparameters, as sentences.

    A modifier must change the output where its leaves are away from their start and its
    hyperparameters at `Hyperparameter.other`; a hyperparameter must change it there, be part of
    the variant's identity, and refuse what is no value at all.
    """
    mixer, modifiers = table.parse(name)
    known = table.hyperparameters_of(name)
    if not modifiers and not known:
        return []
    other = {key: one.other for key, one in known.items()}
    moved = _output(name, other)
    found = []
    for modifier in modifiers:
        rest = "+".join((mixer, *(part for part in modifiers if part != modifier)))
        given = {key: other[key] for key in table.hyperparameters_of(rest)}
        if _same(moved, _output(rest, given)):
            found.append(f"{name}: modifier {modifier!r} changes nothing")
    for key, one in known.items():
        given = {**other, key: one.default}
        if _same(moved, _output(name, given)):
            found.append(f"{name}: hyperparameter {key!r} changes nothing")
        if registry.get(name, **given) == registry.get(name, **other):
            found.append(f"{name}: hyperparameter {key!r} is no part of the variant's identity")
        try:
            one.check(object())
            found.append(f"{name}: hyperparameter {key!r} takes any value: its check refuses none")
        except ValueError:
            pass
    return found


def _output(name: str, hyperparameters: dict[str, Any]) -> np.ndarray:
    """Returns the output of a small problem, every learned leaf a draw of its own by its path."""
    rng = np.random.default_rng(0)
    qkv = [jnp.asarray(rng.standard_normal((5, 2, 4)), jnp.float32) for _ in "qkv"]
    host = Host(registry.get(name, **hyperparameters), DEPTH)
    shapes = jax.eval_shape(host.init, jax.random.key(0), *qkv, None).get("params", {})
    params = jax.tree_util.tree_map_with_path(functools.partial(_drawn, 0.5), shapes)
    return np.asarray(host.apply({"params": params}, *qkv, None))


def leaves(
    variant: Variant, arrays: Sequence[jax.Array], spread: float, depth: int = DEPTH
) -> Tree:
    """Returns a host's learned leaves for query, key, value: their start plus normal draws.

    The draws have the sd `spread` where a leaf starts at 0 (elsewhere the start is a draw itself)
    and are a function of the leaf's path alone.
    """
    host = Host(variant, depth)
    start = jax.jit(host.init)(jax.random.key(0), *arrays, None).get("params", {})

    def moved(path: object, leaf: jax.Array) -> np.ndarray:
        return np.asarray(leaf) if np.any(leaf) else _drawn(spread, path, leaf)

    tree: Tree = jax.tree_util.tree_map_with_path(moved, start)
    return tree


def _drawn(spread: float, path: object, leaf: Any) -> np.ndarray:
    seed = list(jax.tree_util.keystr(path).encode())  # type: ignore[arg-type]
    return np.random.default_rng(seed).normal(0.0, spread, leaf.shape).astype(np.float32)


def _same(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return ours.shape == theirs.shape and bool(
        np.allclose(ours, theirs, rtol=1e-4, atol=1e-4, equal_nan=True)
    )


class Host(nn.Module):
    """The smallest host: learned factors have a place to live."""

    variant: Variant
    depth: int
    is_causal: bool = False

    @nn.compact
    def __call__(
        self, query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None
    ) -> jax.Array:
        return self.variant(
            query,
            key,
            value,
            mask=mask,
            is_causal=self.is_causal,
            deterministic=True,
            depth=self.depth,
        )


# One compilation per variant, dtype and presence of a mask serves all scales.
@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _forward_and_backward(
    variant: Variant,
    depth: int,
    is_causal: bool,
    params: Tree,
    mask: jax.Array | None,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    cotangent: jax.Array,
) -> tuple[jax.Array, tuple[jax.Array, ...], Tree]:
    """Returns the output, the gradients of query, key and value, and those of the parameters."""
    output, pullback = jax.vjp(
        lambda params, *qkv: Host(variant, depth, is_causal).apply({"params": params}, *qkv, mask),
        params,
        query,
        key,
        value,
    )
    learned, *gradients = pullback(cotangent.astype(output.dtype))
    return output, tuple(gradients), learned
