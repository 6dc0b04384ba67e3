"""`flex` under each transformation of JAX, by each kernel, with each feature.

A cell is held to attention written out in float64, or is refused by name. `make test` runs each
pair of a transformation, a kernel and a feature once, the slow tests every cell on more blocks.
"""

import functools
import pathlib
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from attention.flex import Mask, flex
from attention.verification import reference
from tests.attention.interpreted import HAS_TRITON, PLATFORMS, interpreted, needs_triton
from tests.python_processes import start_python

BATCH, HEADS, SIZE = 2, 2, 16


class Feature(NamedTuple):
    """What a feature gives flex, and the same by hand; of arrays by name, with or without a batch.

    settings: arguments of flex. seen: bool, broadcasts to [..., H, T, S]. reads: names of arrays
    beside the query, key and value.
    """

    settings: Callable[[Any], dict[str, Any]]
    seen: Callable[[Any], Any] = lambda arrays: _distance(arrays) >= 0
    scored: Callable[[Any, Any], Any] = lambda logits, arrays: logits
    value: Callable[[Any], Any] = lambda value: value
    output: Callable[[Any], Any] = lambda output: output
    key_heads: int = HEADS
    reads: tuple[str, ...] = ()


def _distance(arrays):
    places = jnp.arange(arrays["query"].shape[-3])
    return places[:, None] - places


def _prefix(query_index, key_index):
    return (query_index >= key_index) | (key_index < 5)


def _from_bounds(arrays):
    return jnp.arange(arrays["key"].shape[-3]) >= arrays["lower"][..., None, :, None]


FEATURES = {
    "causal": Feature(lambda arrays: {"mask": "causal"}),
    "window": Feature(
        lambda arrays: {"mask": Mask(causal=True, width=9)},
        lambda arrays: (_distance(arrays) >= 0) & (_distance(arrays) < 9),
    ),
    "segments": Feature(
        lambda arrays: {"mask": Mask(segments=(arrays["documents"],) * 2)},
        lambda arrays: (
            arrays["documents"][..., None, :, None] == arrays["documents"][..., None, None, :]
        ),
        reads=("documents",),
    ),
    "function_mask": Feature(
        lambda arrays: {"mask": _prefix},
        lambda arrays: (_distance(arrays) >= 0) | (jnp.arange(arrays["key"].shape[-3]) < 5),
    ),
    "lower_bounds": Feature(
        lambda arrays: {"mask": Mask(causal=True, lower=arrays["lower"])},
        lambda arrays: (_distance(arrays) >= 0) & _from_bounds(arrays),
        reads=("lower",),
    ),
    "lse": Feature(lambda arrays: {"mask": "causal", "return_lse": True}),
    "grouped_heads": Feature(lambda arrays: {"mask": "causal"}, key_heads=1),
    "row_leaf": Feature(
        lambda arrays: {
            "mask": "causal",
            "score": lambda logits, i, j, leaves: logits * leaves["row"],
            "leaves": {"row": ("row", arrays["row"])},
        },
        scored=lambda logits, arrays: logits * arrays["row"][..., None],
        reads=("row",),
    ),
    "value_and_output_functions": Feature(
        lambda arrays: {
            "mask": "causal",
            "value_function": lambda value, leaves: jnp.exp(value),
            "output_function": lambda output, leaves: jnp.log(output),
        },
        value=jnp.exp,
        output=jnp.log,
    ),
}


def _arrays(feature, length):
    """Returns what a feature reads, one entry of the batch along each first axis."""
    rng, places = np.random.default_rng(0), np.arange(length)
    shape = (BATCH, length, HEADS, SIZE)
    arrays = {name: rng.normal(size=shape) for name in ("query", "key", "value")}
    arrays |= {name: arrays[name][:, :, : feature.key_heads] for name in ("key", "value")}
    others = {
        "row": rng.normal(size=(BATCH, HEADS, length)),
        "documents": places // np.array([[length // 4], [length // 2]]),
        # Documents in one entry, a window in the other.
        "lower": np.stack([places // 9 * 9, np.maximum(places - 6, 0)]),
    }
    return jax.tree.map(jnp.asarray, arrays | {name: others[name] for name in feature.reads})


def _by_hand(feature, arrays):
    """Returns [..., T, H, D] by the formula."""
    key, value = (
        jnp.repeat(arrays[name], HEADS // feature.key_heads, -2) for name in ("key", "value")
    )
    logits = jnp.einsum("...thd,...shd->...hts", arrays["query"], key) * SIZE**-0.5
    logits = jnp.where(feature.seen(arrays), feature.scored(logits, arrays), -jnp.inf)
    means = jnp.einsum("...hts,...shd->...thd", jax.nn.softmax(logits), feature.value(value))
    if "return_lse" in feature.settings(arrays):
        return _joined(means, jax.nn.logsumexp(logits, -1))
    return feature.output(means)


def _joined(output, lse):
    return output + jnp.swapaxes(lse, -2, -1)[..., None]


def _output(attend, arrays):
    return {"output": attend(arrays)}


def _gradient(attend, arrays):
    """Returns the gradient of a sum of sines by each array of floating-point numbers."""
    gradient = jax.grad(lambda arrays: jnp.sin(attend(arrays)).sum(), allow_int=True)(arrays)
    return {name: bar for name, bar in gradient.items() if bar.dtype != jax.dtypes.float0}


def _through_layers(scan, attend, arrays):
    """Returns the gradient through two layers; the second has the arrays of the other entries."""

    def layer(query, arrays):
        return attend(arrays | {"query": query}), None

    def layers(arrays):
        stacked = jax.tree.map(lambda array: jnp.stack([array, array[::-1]]), arrays)
        return scan(layer, arrays["query"], stacked)[0]

    return _gradient(layers, arrays)


def _curvature(attend, arrays):
    """Returns the second derivative of a sum of sines by a factor of the query."""

    def of_factor(factor):
        return jnp.sin(attend(arrays | {"query": factor * arrays["query"]})).sum()

    return {"factor": jax.hessian(of_factor)(jnp.ones((), arrays["query"].dtype))}


def _rematerialized(attend, arrays):
    names = jax.checkpoint_policies.save_only_these_names("attnperf_output", "attnperf_lse")
    return _gradient(jax.checkpoint(attend, policy=names), arrays)


def _divided(attend, arrays):
    """Returns the gradient by a program that gives each device one entry of the batch."""
    mesh, of_batch = Mesh(np.array(jax.devices()), ("batch",)), PartitionSpec("batch")
    layout: Any = {"in_specs": of_batch, "out_specs": of_batch, "check_vma": False}
    return _gradient(jax.shard_map(attend, mesh=mesh, **layout), arrays)


def _exported(attend, arrays):
    """Returns the gradient by a program that was exported for batches of any size."""
    (batch,) = jax.export.symbolic_shape("batch")
    shapes = {
        name: jax.ShapeDtypeStruct((batch, *array.shape[1:]), array.dtype)
        for name, array in arrays.items()
    }
    return jax.export.export(jax.jit(functools.partial(_gradient, attend)))(shapes).call(arrays)


# By name: what is computed with flex, and the same by hand.
TRANSFORMATIONS = {
    "jit": (_output, _output),
    "vmap": (lambda attend, arrays: _output(jax.vmap(attend), arrays), _output),
    "grad": (_gradient, _gradient),
    "grad_of_vmap": (lambda attend, arrays: _gradient(jax.vmap(attend), arrays), _gradient),
    "remat_with_policy": (_rematerialized, _gradient),
    "scan": (
        functools.partial(_through_layers, jax.lax.scan),
        functools.partial(_through_layers, functools.partial(jax.lax.scan, unroll=2)),
    ),
    "shard_map": (_divided, _gradient),
    "export": (_exported, _gradient),
    "hessian": (_curvature, _curvature),
}


_TILE = {"queries": 128, "keys": 128}
KERNELS = {
    "xla": {"kernel": "xla"},
    "fused_tpu": {
        "kernel": interpreted("tpu"),
        "tiles": {"forward": _TILE, "backward": _TILE},
    },
    "fused_gpu": {"kernel": interpreted("gpu")},
}


def _computed(transformation, kernel, feature, length):
    """Returns the arrays of a cell, by name, in float32."""
    made = FEATURES[feature]

    def attend(arrays):
        qkv = (arrays[name] for name in ("query", "key", "value"))
        result = flex(*qkv, **made.settings(arrays), **KERNELS[kernel])
        return _joined(*result) if isinstance(result, tuple) else result

    compute = functools.partial(TRANSFORMATIONS[transformation][0], attend)
    compiled = compute if transformation == "export" else jax.jit(compute)
    return jax.tree.map(np.asarray, compiled(_arrays(made, length)))


@functools.cache
def _exact(compute, feature, length):
    """Returns the same in float64, by hand."""
    by_hand = functools.partial(_by_hand, FEATURES[feature])
    with reference.float64():
        compiled = jax.jit(functools.partial(compute, by_hand))
        return jax.tree.map(np.asarray, compiled(_arrays(FEATURES[feature], length)))


def save_computed(path, *names):
    """Saves the arrays of cells under their names: the program of a process of two devices."""
    computed = {}
    for name in names:
        *cell, length = name.split("-")
        computed[name] = _computed(*cell, int(length))
    pathlib.Path(path).write_bytes(pickle.dumps(computed))


@pytest.fixture(scope="session")
def on_two_devices(request, tmp_path_factory):
    """The arrays of all cells of this session that need two devices, by name."""
    names = [item.name for item in request.session.items if "[shard_map-" in item.name]
    names = [name.partition("[")[2].strip("]") for name in names if HAS_TRITON or "gpu" not in name]
    path = tmp_path_factory.mktemp("matrix") / "computed"
    code = "import sys; from tests.attention import test_flex_matrix as matrix\n"
    code += "matrix.save_computed(*sys.argv[1:])"
    _, errors = start_python(code, 2, str(path), *names).communicate()
    assert path.exists(), errors[-1500:]
    return pickle.loads(path.read_bytes())


def _cells():
    """Yields all cells, as parameters with marks."""
    for row, transformation in enumerate(TRANSFORMATIONS):
        for column, feature in enumerate(FEATURES):
            for place, kernel in enumerate(KERNELS):
                marks = [pytest.mark.xdist_group("matrix")] * (transformation == "shard_map")
                marks += [needs_triton] * (kernel == "fused_gpu")
                cell = (transformation, kernel, feature)
                # Each pair of a transformation and a feature has one of the kernels, in turn.
                if (row + column) % len(KERNELS) == place:
                    yield pytest.param(*cell, 24, id="-".join((*cell, "24")), marks=marks)
                slow = [*marks, pytest.mark.slow]
                yield pytest.param(*cell, 140, id="-".join((*cell, "140")), marks=slow)


@pytest.mark.parametrize(("transformation", "kernel", "feature", "length"), [*_cells()])
def test_a_cell_is_exact_or_refused_by_name(transformation, kernel, feature, length, request):
    cell = transformation, kernel, feature, length
    if transformation == "hessian" and kernel != "xla":
        with pytest.raises(ValueError, match="kernel='xla'"):
            _computed(*cell)
        return
    if transformation == "shard_map":
        computed = request.getfixturevalue("on_two_devices")["-".join(map(str, cell))]
    else:
        computed = _computed(*cell)
    exact = _exact(TRANSFORMATIONS[transformation][1], feature, length)
    assert computed.keys() == exact.keys()
    for name, array in exact.items():
        limit = 5e-6 if transformation == "hessian" else 2e-6
        assert reference.relative_error(computed[name], array) <= limit, name


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_kernel_inside_a_shard_map_that_checks_axes_is_refused(platform):
    query = jnp.ones((1, 16, 2, 16))
    program = jax.shard_map(
        lambda query: flex(query, query, query, kernel=interpreted(platform)),
        mesh=Mesh(np.array(jax.devices()[:1]), ("batch",)),
        in_specs=PartitionSpec("batch"),
        out_specs=PartitionSpec("batch"),
    )
    with pytest.raises(ValueError, match="kernel=.fused.*check_vma=False"):
        program(query)


@needs_triton
def test_a_mask_of_an_unknown_number_of_pairs_is_refused_on_a_gpu():
    (batch,) = jax.export.symbolic_shape("batch")
    query = jax.ShapeDtypeStruct((batch, 16, 2, 16), jnp.float32)
    mask = jax.ShapeDtypeStruct((batch, 1, 16, 16), bool)

    def attend(query, mask):
        return flex(query, query, query, mask=mask, kernel=interpreted("gpu"))

    with pytest.raises(ValueError, match="give segments"):
        jax.export.export(jax.jit(attend))(query, mask)
