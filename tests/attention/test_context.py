"""Queries divided over devices, keys gathered: outputs and gradients are those of one device."""

import json

import pytest

from tests.python_processes import start_python

DIVIDED = """
import functools, json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from attention.flex import Mask, Weighting, flex
from tests.attention.interpreted import interpreted
platform, length, *names = sys.argv[1:]
kernel = "xla" if platform == "xla" else interpreted(platform)
mesh = Mesh(np.array(jax.devices()).reshape(1, 8, 1), ("data", "context", "tensor"))
heads = NamedSharding(mesh, P("data", "context", "tensor", None))
rng = np.random.default_rng(0)
def normal(*shape):
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)
def score(l, i, j, c):
    return l + 5 / T * c["slope"] * (i - j) + c["row"] * c["column"] + 0.15 / T * (i + 2 * j)
T = int(length)
S = T + 4
leaves = {"slope": ("head", normal(2)), "row": ("row", normal(2, 2, T))}
leaves["column"] = ("column", normal(2, 2, T))
by_score = dict(score=score, leaves=leaves)
ids = jnp.asarray(np.sort(rng.integers(0, 3, (2, T)), -1))
keys = jnp.asarray(rng.random((2, T)) < 0.7).at[:, 0].set(True)
laser = dict(value_function=lambda v, c: jnp.exp(v), output_function=lambda r, c: jnp.log(r))
cases = {
    "causal": dict(mask="causal"),
    "score": dict(mask="causal", **by_score),
    "window and score": dict(mask=Mask(causal=True, width=11), **by_score),
    "all keys and score": dict(**by_score),
    "strict": dict(mask=Mask(strict=True)),
    "two-sided window": dict(mask=Mask(width=20)),
    "segments": dict(mask=Mask(causal=True, segments=(ids, ids))),
    "segments and window": dict(mask=Mask(causal=True, width=9, segments=(ids, ids))),
    "keys": dict(mask=Mask(causal=True, keys=keys)),
    "keys and window": dict(mask=Mask(causal=True, width=9, keys=keys)),
    "dense": dict(mask=jnp.asarray(rng.random((2, 1, T, T)) < 0.5)),
    "lower": dict(mask=Mask(causal=True, lower=jnp.maximum(jnp.arange(T)[None] - 20 * ids, 0))),
    "function": dict(mask=Mask(causal=True) & Mask.of(lambda i, j: (i + j) % 5 > 1)),
    "values and outputs": dict(mask=Mask(causal=True, width=30), **laser),
    "softpick": dict(mask="causal", weighting="softpick"),
    "more keys": dict(mask="causal"),
    "lse": dict(mask="causal", return_lse=True),
}
worst = {}
for name in names or cases:
    settings = dict(cases[name])
    of_keys = S if name == "more keys" else T  # so many cannot be divided among eight
    arrays = [normal(2, T, 2, 8), normal(2, of_keys, 1, 8), normal(2, of_keys, 1, 8)]
    weights = {leaf: array for leaf, (_, array) in settings.pop("leaves", {}).items()}
    def loss(kernel, sharding, arrays, weights):
        named = {leaf: (leaves[leaf][0], array) for leaf, array in weights.items()}
        results = flex(
            *arrays, **settings, leaves=named, kernel=kernel, sharding=sharding
        )
        parts = jax.tree.leaves(results)
        return sum(jnp.sum(jnp.sin(part)) for part in parts), parts
    def run(*place):
        graded = jax.value_and_grad(functools.partial(loss, *place), (0, 1), has_aux=True)
        return jax.jit(graded)(arrays, weights)
    (_, (output, *lse)), gradients = run(kernel, heads)
    assert len(lse) == (name == "lse")
    assert output.sharding.is_equivalent_to(heads, 4), output.sharding
    (_, expected), expected_gradients = run("xla", None)
    references = expected, expected_gradients
    results = jax.tree.leaves(([output, *lse], gradients)), jax.tree.leaves(references)
    worst[name] = max(
        float(np.linalg.norm(np.asarray(ours) - theirs) / np.linalg.norm(theirs))
        for ours, theirs in zip(*results, strict=True)
    )
causal = dict(mask="causal", sharding=heads)
for settings in (dict(kernel="splash"), dict(kernel="cudnn")):
    try:
        flex(*arrays, **causal, **settings)
    except ValueError as error:
        assert "queries divided over devices" in str(error), error
    else:
        raise AssertionError(settings)
print(json.dumps(worst))
"""


def _errors(*arguments):
    output, errors = start_python(DIVIDED, 8, *arguments).communicate()
    assert output, errors[-3000:]
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize(("platform", "length"), [("xla", "48"), ("tpu", "2048")])
def test_causal_scores_and_lse_of_divided_queries(platform, length):
    assert max(_errors(platform, length, "score", "lse").values()) <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["tpu", pytest.param("gpu", marks=pytest.mark.nightly)])
def test_masks_where_devices_exchange_halves(platform):
    """Each half has 128 rows."""
    names = "causal", "strict", "segments", "keys and window", "lower", "function", "dense"
    assert max(_errors(platform, "2048", *names).values()) <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["xla", "tpu", pytest.param("gpu", marks=pytest.mark.nightly)])
def test_all_that_queries_may_be_divided_with(platform):
    """A device has six rows, which are no tile."""
    errors = _errors(platform, "48")
    assert len(errors) == 17
    assert max(errors.values()) <= 1e-6, errors
