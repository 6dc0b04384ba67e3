"""`python -m attention check`: variants against the float64 reference, beside the paper's.

Inputs are normal; `qs` scales the queries (4: peaked rows, as the paper observed in trained
models), `vs` is the standard deviation of the values. Errors are ‖out − ref‖/‖ref‖ on the same
rounded inputs.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from attention import backends, records, registry, table
from attention.kernels.inputs import make_call
from attention.masks import Mask
from attention.variant import Variant
from attention.verification import reference

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
# The paper's computations of LASER, whose errors stand beside ours.
PAPER = ("printed", "snippet")
# The gradient of λ is one number, whose error does not average out as an array's norm does: its
# standard deviation over seeds is 2.6e-3 of its terms (largest of 24 measured: 5.5e-3).
LEARNED_LIMITS = {"float32": 3e-6, "bfloat16": 1e-2}
TAU = 0.9
# λ_init = 0.56: neither the first layer's 0.2 nor the last ones' 0.8.
LAYER = 3
# The block's width, that of x.
WIDTH = 24


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

    gradients: of query, key, value, x and memory, if there are any. paper: of the
    outputs of `records.Mixer.paper`, by name, without a mask. learned: of the gradients of learned
    leaves, None if there are none.
    """

    case: Case
    output: float
    gradients: dict[str, float]
    paper: dict[str, float]
    limits: Limits
    learned: float | None = None

    @property
    def passed(self) -> bool:
        """Whether output and all gradients are within the limits. NaN is not."""
        output, gradient = self.limits
        learned_limit = LEARNED_LIMITS[self.case.dtype]
        learned = (self.learned or 0.0) / learned_limit
        # The gradient of x passes through products with leaves, rounded like theirs.
        gradients = (
            error / (learned_limit if name == "x" else gradient)
            for name, error in self.gradients.items()
        )
        return all(share <= 1 for share in (self.output / output, learned, *gradients))


def cases(variants: tuple[str, ...], kernels: tuple[str, ...]) -> Iterator[Case]:
    """Yields every combination, the pure mixers over all scales, modifiers at (qs 1, vs 1).

    Kernels that cannot serve a variant, and modifiers with kernels other than `xla`, are left out.
    So is float32 by kernels that follow no matmul precision: cuDNN has none, and the limits are for
    float32 products, which the others do not make by default.
    """
    for name, kernel, dtype, mask in itertools.product(
        variants, kernels, ("float32", "bfloat16"), MASKS
    ):
        pure = not table.parse(name)[1]
        if kernel not in table.kernels_of(name):
            continue
        if dtype == "float32" and not backends.KERNELS[kernel].follows_precision:
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
    layer: int = LAYER,
) -> Measurement:
    """Returns the errors of one case at shape (N, H, D), self-attention of N tokens."""
    variant = make_variant(case.variant, case.kernel, head_norm)
    drawn = draw(variant, shape, case.qs, case.vs, seed)
    cotangent = jnp.asarray(drawn.pop("cotangent"), case.dtype)
    arrays = {name: jnp.asarray(array, case.dtype) for name, array in drawn.items()}
    mask = make_mask(case.mask, shape[0])
    params = leaves(variant, arrays, 0.3, layer)
    # Causality is said as such, which every kernel knows.
    is_causal = case.mask == "causal"
    output, gradients, learned = _forward_and_backward(
        variant, layer, is_causal, params, None if is_causal else mask, arrays, cotangent
    )
    exact = reference.compute(variant, params, arrays, cotangent, mask, layer=layer)
    is_plain = case.mask == "none" and not variant.modifiers
    others = records.mixer(variant.mixer).paper if is_plain else {}
    inputs = [arrays[name] for name in ("query", "key", "value")]
    return Measurement(
        case,
        reference.relative_error(output, exact.output),
        {
            name: reference.relative_error(gradients[name], theirs)
            for name, theirs in exact.gradients.items()
        },
        {
            name: reference.relative_error(jax.jit(compute)(*inputs), exact.output)
            for name, compute in others.items()
        },
        limits_of(variant, case.dtype),
        reference.learned_error(learned, exact) if exact.learned else None,
    )


def make_variant(name: str, kernel: str = "xla", head_norm: bool = True) -> Variant:
    """Returns a variant by its name, its hyperparameters away from their defaults."""
    chosen = {"tau": TAU, "head_norm": head_norm, "learned": True}
    known = table.hyperparameters_of(name).items()
    hyperparameters = {key: chosen.get(key, setting.other) for key, setting in known}
    return registry.get(name, kernel=kernel, **hyperparameters)


def draw(
    variant: Variant, shape: tuple[int, int, int], qs: float = 1.0, vs: float = 1.0, seed: int = 0
) -> dict[str, np.ndarray]:
    """Returns arrays of a call of shape (N, H, D) by name, and a "cotangent", normal, float64."""
    rng = np.random.default_rng(seed)
    arrays = {name: rng.standard_normal(shape) for name in ("query", "key", "value", "cotangent")}
    arrays["query"] *= qs
    arrays["value"] *= vs
    if "x" in variant.needs:
        arrays["x"] = rng.standard_normal((shape[0], WIDTH))
    for name in variant.empty_memory(jnp.zeros(shape)):
        arrays[name] = vs * rng.standard_normal(shape)
    return arrays


def limits_of(variant: Variant, dtype: str) -> Limits:
    """Returns the allowed (output, gradient) errors."""
    kernel = records.kernel(variant.kernel)
    output, gradient = LIMITS[dtype, kernel.float32_sums]
    if dtype != "bfloat16":
        return output, gradient
    allowance = records.mixer(variant.mixer).bfloat16_allowance
    # The kernel and modifiers of query and key round the same arrays, one after the other: the most
    # that one needs. Those of the values and of the output round others: independent errors.
    most = {"kernel": kernel.bfloat16_allowance}
    for modifier in map(records.modifier, variant.modifiers):
        kind: str = "output" if modifier.acts_on == "output" else "kernel"
        kind = kind if modifier.keeps is None else "values"
        most[kind] = max(most.get(kind, 1.0), modifier.bfloat16_allowance)
    allowance *= (1 + sum(size**2 - 1 for size in most.values())) ** 0.5
    return output * allowance, gradient * allowance


def make_mask(kind: str, length: int) -> np.ndarray | None:
    """Returns None, a causal mask [N, N], or one that hides the last quarter of the keys [1, N]."""
    if kind == "none":
        return None
    if kind == "causal":
        return np.tril(np.ones((length, length), bool))
    return (np.arange(length) < length - length // 4)[None]


def leaves(
    variant: Variant, arrays: Mapping[str, jax.Array], spread: float, layer: int = LAYER
) -> Tree:
    """Returns the learned leaves for arrays by name: their start plus normal draws.

    The draws have the sd `spread` if a leaf starts at 0 (elsewhere the start is a draw itself)
    and are a function of the leaf's path alone.
    """
    start = jax.jit(Host(variant, layer).init)(jax.random.key(0), **arrays).get("params", {})

    def moved(path: object, leaf: jax.Array) -> np.ndarray:
        if np.any(leaf):
            return np.asarray(leaf)
        seed = list(jax.tree_util.keystr(path).encode())  # type: ignore[arg-type]
        return np.random.default_rng(seed).normal(0.0, spread, leaf.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(moved, start)


class Host(nn.Module):
    """The smallest model: learned factors have a place to live."""

    variant: Variant
    layer: int
    is_causal: bool = False

    @nn.compact
    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array | Mask | None = None,
        x: jax.Array | None = None,
        **memory: jax.Array,
    ) -> jax.Array:
        """Returns the variant's output for a layer's arrays and what earlier layers left."""
        call = make_call(
            query,
            key,
            value,
            x=x,
            layer=self.layer,
            memory=memory,
            mask=mask,
            is_causal=self.is_causal,
        )
        return self.variant.attend(call)[0]


# One compilation per variant, dtype and presence of a mask serves all scales.
@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _forward_and_backward(
    variant: Variant,
    layer: int,
    is_causal: bool,
    params: Tree,
    mask: jax.Array | None,
    arrays: dict[str, jax.Array],
    cotangent: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array], Tree]:
    """Returns the output, the gradients of the arrays by name, and those of the parameters."""

    def forward(params: Tree, arrays: dict[str, jax.Array]) -> jax.Array:
        return Host(variant, layer, is_causal).apply({"params": params}, mask=mask, **arrays)

    output, pullback = jax.vjp(forward, params, arrays)
    learned, gradients = pullback(cotangent.astype(output.dtype))
    return output, gradients, learned
