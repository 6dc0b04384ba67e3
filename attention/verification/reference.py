"""A whole variant in float64: the oracle's mixers between modifiers, λ and head norm.

Learned factors come as the parameter tree that a host of the variant has, so that one set of
numbers goes through Flax and through here.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attention import table
from attention.modifiers import INVERSE_SOFTPLUS_OF_ZERO
from attention.variant import Variant
from attention.verification import oracle

Float64 = np.ndarray
Tree = dict[str, dict[str, np.ndarray]]

# Modifiers that `compute` has formulas of.
MODIFIERS = ("per_dim_temp", "qk_norm", "temp")
# Modules whose leaves `compute` takes.
LEAVES = ("query_ln", "key_ln", "per_dim_temp", "diff_lambda", "head_norm")
LAMBDA_VECTORS = ("scale_q1", "scale_k1", "scale_q2", "scale_k2")
HEAD_NORM_EPSILON = 1e-5


class Reference(NamedTuple):
    """Output, gradients of query, key and value, and those of differential mixers' own leaves.

    `sizes` is what an error in each group of `learned` is measured by: the norm of the gradient,
    and for λ at least that of the terms its gradient is a sum of (`oracle.Result`).
    """

    output: Float64
    gradients: oracle.Gradients
    learned: Tree
    sizes: dict[str, float]


def check(name: str) -> None:
    """Raises ValueError where a variant's mixer or modifier has no formula in float64."""
    mixer, modifiers = table.parse(name)
    oracle.check(mixer)
    for modifier in modifiers:
        if modifier not in MODIFIERS:
            raise ValueError(
                f"the float64 reference has no formula of modifier {modifier!r}, so nothing says "
                "how exact it is: write it in attention/verification/reference.py, which has "
                f"{', '.join(MODIFIERS)}"
            )


def factors(variant: Variant, head_size: int, rng: np.random.Generator) -> Tree:
    """Returns float32 values for the variant's leaves, sd 0.3 (λ's vectors 0.1, as at start)."""
    draws = rng.normal(0.0, 0.3, (3, head_size)).astype(np.float32)
    tree: Tree = {}
    if "qk_norm" in variant.modifiers:
        tree |= {"query_ln": {"scale": draws[0]}, "key_ln": {"scale": draws[1]}}
    if "per_dim_temp" in variant.modifiers:
        tree |= {"per_dim_temp": {"scale": draws[2]}}
    if variant.is_differential:
        vectors = rng.normal(0.0, 0.1, (4, head_size)).astype(np.float32)
        tree |= {"diff_lambda": dict(zip(LAMBDA_VECTORS, vectors, strict=True))}
        if variant.head_norm:
            scale = rng.normal(0.0, 0.3, 2 * head_size).astype(np.float32)
            tree |= {"head_norm": {"scale": scale}}
    return tree


def compute(
    variant: Variant,
    tree: Mapping[str, Mapping[str, np.ndarray]],
    arrays: list[Any],
    mask: np.ndarray | None,
    depth: int = 0,
) -> Reference:
    """Returns the variant's result for query, key, value [T, H, D] and a cotangent, in float64.

    Raises ValueError as `check`.
    """
    check(variant.name)
    query, key, value, cotangent = (np.asarray(array).astype(np.float64) for array in arrays)
    leaves = {
        module: {name: np.asarray(leaf, np.float64) for name, leaf in group.items()}
        for module, group in tree.items()
    }
    new_query, new_key = query, key
    if "query_ln" in leaves:
        new_query = _normalise(query)[0] * (1 + leaves["query_ln"]["scale"])
        new_key = _normalise(key)[0] * (1 + leaves["key_ln"]["scale"])
    temperature = np.ones(query.shape[-1])
    if "per_dim_temp" in leaves:
        temperature = _softplus(leaves["per_dim_temp"]["scale"]) * INVERSE_SOFTPLUS_OF_ZERO
    scale = query.shape[-1] ** -0.5 / variant.tau
    problem = (new_query * temperature, new_key, value)
    result, learned, sizes = _mix(variant.mixer, problem, cotangent, scale, mask, leaves, depth)
    query_bar, key_bar = result.gradients.query * temperature, result.gradients.key
    if "query_ln" in leaves:
        query_bar = _normalise_backward(query, query_bar * (1 + leaves["query_ln"]["scale"]))
        key_bar = _normalise_backward(key, key_bar * (1 + leaves["key_ln"]["scale"]))
    gradients = oracle.Gradients(query_bar, key_bar, result.gradients.value)
    return Reference(result.output, gradients, learned, sizes)


def _mix(
    mixer: str,
    problem: tuple[Float64, Float64, Float64],
    cotangent: Float64,
    scale: float,
    mask: np.ndarray | None,
    leaves: Tree,
    depth: int,
) -> tuple[oracle.Result, Tree, dict[str, float]]:
    """The mixer with its λ and head norm, differentiated."""
    settings: dict[str, Any] = {"scale": scale, "mask": mask}
    if "diff_lambda" not in leaves:
        return oracle.attend(mixer, *problem, cotangent, **settings), {}, {}
    start = 0.8 - 0.6 * np.exp(-0.3 * depth)
    q1, k1, q2, k2 = (leaves["diff_lambda"][name] for name in LAMBDA_VECTORS)
    first, second = np.exp(q1 @ k1), np.exp(q2 @ k2)
    settings["lambda_"] = first - second + start
    learned: Tree = {}
    output = None
    if "head_norm" in leaves:
        plain = oracle.attend(mixer, *problem, cotangent, **settings).output
        factor = (1 - start) * (1 + leaves["head_norm"]["scale"])
        normal, inverse = _root_mean_square(plain)
        g = cotangent.reshape(normal.shape)
        output = (normal * factor).reshape(plain.shape)
        learned["head_norm"] = {"scale": (1 - start) * (g * normal).sum((0, 1))}
        g = g * factor
        cotangent = inverse * (g - normal * (g * normal).mean(-1, keepdims=True))
        cotangent = cotangent.reshape(plain.shape)
    result = oracle.attend(mixer, *problem, cotangent, **settings)
    jacobian = (first * k1, first * q1, -second * k2, -second * q2)
    bars = (result.lambda_bar * row for row in jacobian)
    learned["diff_lambda"] = dict(zip(LAMBDA_VECTORS, bars, strict=True))
    sizes = {module: _norm(group) for module, group in learned.items()}
    terms = result.lambda_terms * float(np.linalg.norm(jacobian))
    sizes["diff_lambda"] = max(sizes["diff_lambda"], terms)
    return result if output is None else result._replace(output=output), learned, sizes


def _root_mean_square(output: Float64) -> tuple[Float64, Float64]:
    """Returns pairs [T, H/2, 2·D] over their root mean square, and 1/√(mean square + 1e-5)."""
    pairs = output.reshape(len(output), -1, 2 * output.shape[-1])
    inverse = 1 / np.sqrt((pairs**2).mean(-1, keepdims=True) + HEAD_NORM_EPSILON)
    return pairs * inverse, inverse


def _norm(group: Mapping[str, np.ndarray]) -> float:
    return float(np.sqrt(sum((leaf**2).sum() for leaf in group.values())))


def learned_error(gradients: Mapping[str, Mapping[str, Any]], reference: Reference) -> float:
    """Returns the largest ‖ours − reference‖/size over the groups of `reference.learned`."""
    errors = []
    for module, group in reference.learned.items():
        difference = {
            name: np.asarray(gradients[module][name], np.float64) - leaf
            for name, leaf in group.items()
        }
        errors.append(_norm(difference) / reference.sizes[module])
    return max(errors)


def _softplus(array: Float64) -> Float64:
    return np.log1p(np.exp(array))


def _normalise(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (x − mean)/√(var + 1e-6) over the last axis, and 1/√(var + 1e-6)."""
    centred = array - array.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    return centred * inverse, inverse


def _normalise_backward(array: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    normal, inverse = _normalise(array)
    mean = gradient.mean(-1, keepdims=True)
    return inverse * (gradient - mean - normal * (gradient * normal).mean(-1, keepdims=True))
