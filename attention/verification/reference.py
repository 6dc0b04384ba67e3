"""The reference of attention variants: their formulas in float64, differentiated by JAX.

The formulas are those of the records (`attention.records`) and share no code with the arithmetic.
This module adds the modifiers in their order, scaled logits, the bias and the mask. Gradients are
jax.vjp of the whole in float64. Learned leaves are a model's parameter tree, so that Flax and the
reference read the same numbers.
"""

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention import records, table
from attention.call import Call, LayerIndex
from attention.variant import Variant

Tree = Mapping[str, Mapping[str, Any]]
# Draws of random signs by which the size of a leaf's gradient is judged.
_DRAWS = 4


class Result(NamedTuple):
    """Output [T, H, Dv] and gradients for the cotangent given, NumPy's float64.

    gradients: by "query", "key", "value", "x" and names of memory. learned: by module and name.
    sizes: what an error in each module of `learned` is measured by. Terms of both signs may cancel
    in a leaf's gradient, which rounding does not: so it is the norm of the gradient or, if that is
    larger, the root mean square of the norms for cotangents of random signs.
    """

    output: np.ndarray
    gradients: dict[str, np.ndarray]
    learned: dict[str, dict[str, np.ndarray]]
    sizes: dict[str, float]


def attend(
    mixer: str,
    query: Any,
    key: Any,
    value: Any,
    cotangent: Any,
    *,
    scale: float | None = None,
    mask: Any = None,
) -> Result:
    """Returns output and gradients of a mixer alone, which learns nothing.

    query [T, H, D], key and value [S, H, D], cotangent [T, H, D]; mask broadcasts to [H, T, S].
    Inputs are taken as they are: pass the rounded bfloat16 values to judge arithmetic, not
    rounding of the inputs. Rows that see nothing return 0.
    """
    arrays = {"query": query, "key": key, "value": value}
    return compute(Variant(mixer), {}, arrays, cotangent, mask, scale=scale)


def compute(
    variant: Variant,
    tree: Tree,
    arrays: Mapping[str, Any],
    cotangent: Any,
    mask: Any = None,
    *,
    layer: int = 0,
    scale: float | None = None,
) -> Result:
    """Returns a variant's result for arrays without a batch, in float64.

    arrays: query [T, H, D], key [S, K, D], value [S, K, Dv], and, if the variant needs them, x
    [T, W] and memory by its names. tree: the parameters of a model of the variant, in which it
    finds its own leaves. mask: as in `attend`. layer: the index.
    """
    with float64():
        wide = {name: jnp.asarray(np.asarray(array), jnp.float64) for name, array in arrays.items()}
        leaves = {
            module: {
                name: jnp.asarray(np.asarray(leaf), jnp.float64) for name, leaf in group.items()
            }
            for module, group in tree.items()
        }
        visible = None if mask is None else jnp.asarray(np.asarray(mask), bool)
        run = _compiled(variant, layer, scale)
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (_DRAWS, *np.shape(cotangent)))
        wide_cotangent = jnp.asarray(np.asarray(cotangent), jnp.float64)
        output, (gradients, learned), sizes = run(wide, leaves, visible, wide_cotangent, signs)
    named = jax.tree.map(np.asarray, learned)
    return Result(
        np.asarray(output),
        {name: np.asarray(gradients[name]) for name in arrays},
        named,
        {module: max(_norm(group), float(sizes[module])) for module, group in named.items()},
    )


def float64() -> Any:
    """Returns the context of float64; JAX 0.7 has it among its experiments."""
    inside = getattr(jax, "enable_x64", None)
    if inside is None:
        experimental: Any = importlib.import_module("jax.experimental")
        return experimental.enable_x64()
    return inside(True)


@functools.lru_cache(256)
def _compiled(variant: Variant, layer: int, scale: float | None) -> Callable[..., Any]:
    def run(arrays: Any, tree: Any, mask: Any, cotangent: jax.Array, signs: jax.Array) -> Any:
        def forward(arrays: Any, tree: Any) -> jax.Array:
            return _output(variant, arrays, tree, mask, layer, scale)

        output, pullback = jax.vjp(forward, arrays, tree)
        squares = jax.lax.map(lambda sign: _squares(pullback(cotangent * sign)[1]), signs)
        sizes = jax.tree.map(lambda draws: jnp.sqrt(draws.mean()), squares)
        return output, pullback(cotangent), sizes

    return jax.jit(run)


def _squares(tree: Any) -> dict[str, jax.Array]:
    return {
        module: sum((jnp.sum(leaf**2) for leaf in group.values()), jnp.zeros(()))
        for module, group in tree.items()
    }


def _output(
    variant: Variant, arrays: Any, tree: Any, mask: Any, layer: int, scale: float | None
) -> jax.Array:
    """Returns the output [T, H, Dv] of a variant's formulas."""
    memory = dict(arrays)
    query, key, value, x = (memory.pop(name, None) for name in ("query", "key", "value", "x"))
    (queries, heads, size), keys = query.shape, len(key)
    mixer = records.mixer(variant.mixer)
    options = variant.settings_of(table.MIXERS[variant.mixer])
    shape = (heads, queries, keys)
    visible = jnp.broadcast_to(True if mask is None else mask, shape)
    for part in mixer.mask.parts(queries, keys):
        visible = visible & part
    start = Call(
        query, key, value, x, LayerIndex(layer), memory, jnp.zeros(shape, query.dtype), visible
    )
    leaves = _leaves(mixer, start, options, tree)
    call = start if mixer.formula_inputs is None else mixer.formula_inputs(start, leaves)
    acting = {kind: list(variant.modifiers_on(kind)) for kind in ("inputs", "score", "output")}
    for modifier, given in acting["inputs"]:
        call = modifier.formula(call, _leaves(modifier, call, given, tree), **given)
    factor = (size**-0.5 if scale is None else scale) / call.temperature

    def logits(query: jax.Array, key: jax.Array) -> jax.Array:
        scores = factor * jnp.einsum("thd,shd->hts", query, key)
        known = scores[..., :keys]
        for modifier, given in acting["score"]:
            known = modifier.formula(known, _leaves(modifier, call, given, tree), **given)
        return scores.at[..., :keys].set(known) + call.bias

    whole = _with_heads(call, call.query.shape[1])
    output: jax.Array = mixer.formula(whole, leaves, logits, **options)
    call = call._replace(query=query, key=call.key[:keys], value=call.value[:keys])
    whole = _with_heads(call, heads)
    for modifier, given in acting["output"]:
        output = modifier.formula(output, whole, _leaves(modifier, whole, given, tree), **given)
    return output


def _with_heads(call: Call, heads: int) -> Call:
    """Returns the call with so many heads of keys and values."""
    times = heads // call.key.shape[1]
    return call._replace(
        key=jnp.repeat(call.key, times, axis=1), value=jnp.repeat(call.value, times, axis=1)
    )


def _leaves(part: Any, call: Call, settings: Mapping[str, Any], tree: Tree) -> records.Leaves:
    """Returns a part's leaves from a parameter tree, and its constants."""

    def value(leaf: records.Leaf) -> jax.Array:
        if not leaf.is_learned:
            return leaf.start(None, leaf.shape, jnp.float64)
        module, name = leaf.path.split("/")
        return tree[module][name]

    return {leaf.path: value(leaf) for leaf in part.leaves(call, **settings)}


def _norm(group: Mapping[str, Any]) -> float:
    return float(np.sqrt(sum((np.asarray(leaf) ** 2).sum() for leaf in group.values())))


def learned_error(gradients: Tree, reference: Result) -> float:
    """Returns the largest ‖ours − reference‖/size over the modules of `reference.learned`.

    NaN if one of them is.
    """
    errors = []
    for module, group in reference.learned.items():
        difference = {
            name: np.asarray(gradients[module][name], np.float64) - leaf
            for name, leaf in group.items()
        }
        errors.append(_norm(difference) / max(reference.sizes[module], np.finfo(float).tiny))
    return float(np.max(errors))


def relative_error(measured: object, reference: np.ndarray) -> float:
    """Returns ‖measured − reference‖ / ‖reference‖ (Frobenius), computed in float64."""
    difference = np.asarray(measured).astype(np.float64) - reference
    return float(np.linalg.norm(difference) / np.linalg.norm(reference))
