"""Whether modifiers and hyperparameters of a variant do anything."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from attention import registry, table
from attention.verification import check


def find(name):
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
    problems = []
    for modifier in modifiers:
        rest = "+".join((mixer, *(part for part in modifiers if part != modifier)))
        given = {key: other[key] for key in table.hyperparameters_of(rest)}
        if _same(moved, _output(rest, given)):
            problems.append(f"{name}: modifier {modifier!r} changes nothing")
    for key, one in known.items():
        given = {**other, key: one.default}
        if _same(moved, _output(name, given)):
            problems.append(f"{name}: hyperparameter {key!r} changes nothing")
        if registry.get(name, **given) == registry.get(name, **other):
            problems.append(f"{name}: hyperparameter {key!r} is no part of the variant's identity")
        try:
            one.check(key, object())
            problems.append(f"{name}: hyperparameter {key!r} takes any value: it refuses none")
        except ValueError:
            pass
    return problems


def _output(name, hyperparameters):
    """Returns the output of a small problem, every learned leaf a draw of its own by its path."""
    variant = registry.get(name, **hyperparameters)
    drawn = check.draw(variant, (12, 2, 4))
    arrays = {key: jnp.asarray(v, jnp.float32) for key, v in drawn.items() if key != "cotangent"}
    host = check.Host(variant, check.LAYER)
    shapes = jax.eval_shape(host.init, jax.random.key(0), **arrays).get("params", {})
    params = jax.tree_util.tree_map_with_path(functools.partial(_drawn, 0.5), shapes)
    return np.asarray(host.apply({"params": params}, **arrays))


def _drawn(spread, path, leaf):
    seed = list(jax.tree_util.keystr(path).encode())
    return np.random.default_rng(seed).normal(0.0, spread, leaf.shape).astype(np.float32)


def _same(ours, theirs):
    return ours.shape == theirs.shape and np.allclose(
        ours, theirs, rtol=1e-4, atol=1e-4, equal_nan=True
    )
