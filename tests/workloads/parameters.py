"""Parameters of models that are not at their initial values."""

import jax
import numpy as np


def drawn(tree, deviation=0.3):
    """Returns normal values of the tree's shapes; NumPy draws them, so nothing is compiled."""
    random = np.random.RandomState(0)
    leaves, structure = jax.tree.flatten(tree)
    values = [random.standard_normal(leaf.shape).astype(np.float32) for leaf in leaves]
    return jax.tree.unflatten(structure, [np.float32(deviation) * value for value in values])


def moved(parameters, deviation):
    """Returns the parameters plus normal values."""
    draws = drawn(parameters, deviation)
    return jax.tree.map(lambda leaf, draw: leaf + draw.astype(leaf.dtype), parameters, draws)
