"""Differential attention with a given λ, of a variant without the head norm in its first layer."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention import registry


class Layer(nn.Module):
    """A place for learned factors, which shows the variant's output itself."""

    variant: object

    @nn.compact
    def __call__(self, query, key, value, layer=0, **settings):
        return self.variant(query, key, value, layer=layer, **settings)


def attend(mixer, query, key, value, *, lambda_, kernel="xla", **settings):
    """λ = e^(q₁·k₁) − e^(q₂·k₂) + 0.2, each exponent in the first entry of a vector."""
    away = jnp.asarray(lambda_, jnp.float32) - 0.2
    first = jnp.zeros(query.shape[-1]).at[0]
    vectors = {
        "scale_q1": first.set(jnp.log1p(jnp.maximum(away, 0))),
        "scale_k1": first.set(1.0),
        "scale_q2": first.set(jnp.log1p(jnp.maximum(-away, 0))),
        "scale_k2": first.set(1.0),
    }
    variant = registry.get(mixer, kernel=kernel, head_norm=False)
    params = {"params": {"diff_lambda": vectors}}
    return Layer(variant).apply(params, query, key, value, **settings)


def compiled(mixer):
    """Returns `attend` of a mixer, compiled as a whole."""
    names = ("is_causal", "dropout_rate", "broadcast_dropout", "kernel")

    def run(*arrays, **settings):
        return attend(mixer, *arrays, **settings)

    return jax.jit(run, static_argnames=names)
