"""`python -m attention reconstruct`: how exactly bfloat16 reconstructs attention's output.

The paper (LASER, ICML 2025, text on bfloat16) runs 4,800 cached q, k, v of shape (1024, 8, 256)
through each method in bfloat16 and prints the mean and sd of ‖out − ref‖/‖ref‖. It does not say
what was rounded. Here the reference sees the inputs as rounded to the dtype, so that the error is
the arithmetic's alone. `bfloat16 products` are float32 arrays, of which every matrix product rounds
its two inputs to bfloat16, as a TPU does with float32 arrays unless told otherwise; no input is
rounded beforehand.

The reference is `reference.output`, float64, from the definition. Rows that see nothing do not
count.
"""

import importlib.metadata
import math
import platform
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention.kernels import core
from attention.masks import Bias, Mask, merged
from attention.mixers import laser, standard
from attention.verification import reference
from attention.verification.cached_tensors import Tensors

Array = jax.Array
# Maps query [T, H, D], key and value [S, H, D] and a mask (bool [H or 1, T or 1, S], or None) to
# the output [T, H, D]; the mask by its name.
Method = Callable[..., Array]

FORMAT = "attnperf-reconstruction-2"
PRODUCTS = "bfloat16 products"
DTYPES = ("bfloat16", PRODUCTS, "float32")
# What the paper prints for each method, mean ± sd: on 4 TPUv5 chips, on 16 A100.
PAPER = {
    "Standard": ("0.0016 ± 0.0001", "0.0018 ± 0.0002"),
    "LASER vanilla": ("0.0018 ± 0.0002", "0.002 ± 0.0003"),
    "LASER+log-weighted-sum-exp": ("0.0017 ± 0.0001", "0.0019 ± 0.0002"),
}
# Logits of one call, 32 MiB in float32: eight heads of the paper's shape.
_LOGITS = 2**23


class ComparedMethod(NamedTuple):
    """A method: its name (the paper's, or ours), the mixer it computes, and two ways to.

    arrays: in the dtype of its inputs; products: of float32 arrays, of which every matrix product
    rounds its two inputs to bfloat16 and sums in float32.
    """

    name: str
    mixer: str
    arrays: Method
    products: Method


def _vanilla(query: Array, key: Array, value: Array, *, mask: Array | None) -> Array:
    """LASER as its equation stands, without any maximum."""
    return jnp.log(jax.nn.dot_product_attention(query, key, jnp.exp(value), mask=mask))


def _standard_products(query: Array, key: Array, value: Array, *, mask: Array | None) -> Array:
    """Our core rounds a float32 value to the queries' dtype and returns its sum in float32."""
    settings = core.CoreSettings(query.shape[-1] ** -0.5)
    narrow = query.astype(jnp.bfloat16), key.astype(jnp.bfloat16)
    return core.weighted_sum(settings, *narrow, value, Bias(), mask, None)


def _vanilla_products(query: Array, key: Array, value: Array, *, mask: Array | None) -> Array:
    return jnp.log(_standard_products(query, key, jnp.exp(value), mask=mask))


def _snippet_products(query: Array, key: Array, value: Array, *, mask: Array | None) -> Array:
    top = jnp.max(value, axis=0, keepdims=True)
    return _vanilla_products(query, key, value - top, mask=mask) + top


def _ours_products(query: Array, key: Array, value: Array, *, mask: Array | None) -> Array:
    return laser.log_mean_exp(
        lambda values: _standard_products(query, key, values, mask=mask),
        value,
        merged(Mask(dense=mask), Bias(), len(query), len(key)),
        dtype=value.dtype,
        span=core.KERNEL.span,
    )


METHODS = (
    ComparedMethod("Standard", "standard", standard.attend, _standard_products),
    ComparedMethod("LASER vanilla", "laser", _vanilla, _vanilla_products),
    ComparedMethod("LASER+log-weighted-sum-exp", "laser", laser.paper_snippet, _snippet_products),
    ComparedMethod("LASER, ours", "laser", laser.attend, _ours_products),
)


class Case(NamedTuple):
    """What a number of the experiment belongs to."""

    method: str
    dtype: str


class Error(NamedTuple):
    """‖out − ref‖/‖ref‖ of one tensor, nan where the output is not finite in `nonfinite` values."""

    value: float
    nonfinite: int


def measure(tensors: Tensors, is_causal: bool = False) -> dict[Case, Error]:
    """Returns the errors of every method and dtype on one example of a layer.

    `is_causal`: query t sees keys 0..t, beside what the tensors' visibility says. Memory: a block
    of heads with at most 2^23 logits, or one head.
    """
    mask = _mask(tensors, is_causal)
    sums: dict[Case, np.ndarray] = {}
    for block in _blocks(tensors, mask):
        for key, squares in _block(*block):
            sums[key] = sums.get(key, np.zeros(3)) + squares
    return {key: _error(*total) for key, total in sums.items()}


def _error(difference: float, size: float, nonfinite: float) -> Error:
    if nonfinite or not size:
        return Error(math.nan, int(nonfinite))
    return Error(math.sqrt(difference / size), 0)


def _mask(tensors: Tensors, is_causal: bool) -> np.ndarray | None:
    if not is_causal:
        return tensors.mask
    future = np.tril(np.ones((1, len(tensors.query), len(tensors.key)), bool))
    return future if tensors.mask is None else future & tensors.mask


def _blocks(
    tensors: Tensors, mask: np.ndarray | None
) -> Iterator[tuple[list[np.ndarray], np.ndarray | None]]:
    """Yields ([query, key, value], mask) of some heads each.

    A channel of V is computed by itself, so that wider values come in parts of the head size, which
    library kernels want them to have.
    """
    query, key, value = tensors.query, tensors.key, tensors.value
    width = query.shape[-1]
    parts = [value[..., part : part + width] for part in range(0, value.shape[-1], width)]
    size = max(1, _LOGITS // (len(query) * len(key)))
    for start in range(0, query.shape[1], size):
        heads = slice(start, start + size)
        own = mask if mask is None or len(mask) == 1 else mask[heads]
        for part in parts:
            yield [array[:, heads] for array in (query, key, part)], own


def _block(arrays: list[np.ndarray], mask: np.ndarray | None) -> Iterator[tuple[Case, np.ndarray]]:
    """Yields [‖out − ref‖², ‖ref‖², non-finite values] for every key."""
    sees = None if mask is None else np.any(mask, axis=-1).T[..., None]
    for dtype in DTYPES:
        inputs = [jnp.asarray(a, jnp.bfloat16 if dtype == "bfloat16" else None) for a in arrays]
        exact = {
            mixer: reference.output(mixer, *(np.float64(array) for array in inputs), mask=mask)
            for mixer in dict.fromkeys(row.mixer for row in METHODS)
        }
        for row in METHODS:
            method = row.products if dtype == PRODUCTS else row.arrays
            output = np.asarray(jax.jit(method)(*inputs, mask=mask)).astype(np.float64)
            yield Case(row.name, dtype), _squares(output, exact[row.mixer], sees)


def _squares(output: np.ndarray, exact: np.ndarray, sees: np.ndarray | None) -> np.ndarray:
    if sees is not None:
        output, exact = np.where(sees, output, 0), np.where(sees, exact, 0)
    finite = np.isfinite(output)
    difference = np.where(finite, output, exact) - exact
    return np.array([np.sum(difference**2), np.sum(exact**2), np.sum(~finite)])


def rows(tensors: Iterable[Tensors], is_causal: bool) -> list[dict[str, Any]]:
    """Returns the experiment's rows: over all tensors (`layer` null), then layer by layer.

    mean, sd (n − 1) and worst are over the `n` tensors whose output is finite, null where there are
    too few; `nonfinite` counts the other tensors and `nonfinite_values` the values in them.
    Raises ValueError where there is no tensor.
    """
    found: dict[tuple[str, Case], list[Error]] = {}
    for one in tensors:
        for key, error in measure(one, is_causal).items():
            found.setdefault((one.layer, key), []).append(error)
    if not found:
        raise ValueError("no cached tensors were given")
    layers = list(dict.fromkeys(layer for layer, _ in found))
    keys = list(dict.fromkeys(key for _, key in found))
    whole = [_row(key, None, [e for la in layers for e in found[la, key]]) for key in keys]
    return whole + [_row(key, layer, found[layer, key]) for layer in layers for key in keys]


def _row(key: Case, layer: str | None, errors: list[Error]) -> dict[str, Any]:
    finite = [error.value for error in errors if not math.isnan(error.value)]
    return {
        **key._asdict(),
        "mean": float(np.mean(finite)) if finite else None,
        "sd": float(np.std(finite, ddof=1)) if len(finite) > 1 else None,
        "worst": max(finite, default=None),
        "n": len(finite),
        "nonfinite": len(errors) - len(finite),
        "nonfinite_values": sum(error.nonfinite for error in errors),
        "layer": layer,
    }


def document(tensors: Iterable[Tensors], source: str, is_causal: bool) -> dict[str, Any]:
    """Returns the experiment as written to its file; `shape` is that of the queries, (N, H, D),
    null where it varies."""
    shapes: set[tuple[int, ...]] = set()

    def noted() -> Iterator[Tensors]:
        for one in tensors:
            shapes.add(one.query.shape)
            yield one

    measured = rows(noted(), is_causal)
    device = jax.devices()[0]
    return {
        "format": FORMAT,
        "source": source,
        "shape": list(shapes.pop()) if len(shapes) == 1 else None,
        "causal": is_causal,
        "device": f"{device.platform}: {device.device_kind}",
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy")},
        },
        "rows": measured,
    }


def text(record: dict[str, Any], by_layer: bool) -> str:
    """Returns the rows as lines to print: those of each layer, or those over all; beside those of
    bfloat16 stand the paper's figures."""
    lines = [f"{'method':<27} {'dtype':<18} {'mean':>8} {'sd':>8} {'worst':>8} n"]
    for row in (row for row in record["rows"] if (row["layer"] is not None) == by_layer):
        numbers = (row[name] for name in ("mean", "sd", "worst"))
        cells = " ".join("       -" if x is None else f"{x:8.1e}" for x in numbers)
        names = f"{row['method']:<27} {row['dtype']:<18}"
        lost = f", {row['nonfinite']} NOT FINITE" if row["nonfinite"] else ""
        printed = PAPER.get(row["method"]) if row["dtype"].startswith("bfloat16") else None
        paper = f"  paper: {printed[0]} TPUv5, {printed[1]} A100" if printed else ""
        lines.append(f"{names} {cells} {row['n']}{lost}  {row['layer'] or 'all'}{paper}")
    lines.append(
        "error: norm of (output - reference) / norm of reference, the reference in float64"
    )
    return "\n".join(lines)
