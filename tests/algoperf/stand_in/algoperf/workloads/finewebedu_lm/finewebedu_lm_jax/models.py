"""A decoder whose attention is its own: by two einsums, or by jax.nn's function."""

import jax
import jax.numpy as jnp
from flax import linen as nn

WIDTH = 16
HEADS = 2
LAYERS = 2
CLASSES = 6


class CausalAttn(nn.Module):
    # AlgoPerf 1.0 has the einsums; its mixed precision, before and after, the function.
    by_function: bool = False

    def setup(self):
        shape = (HEADS, WIDTH // HEADS)
        self.multilinear_query = nn.DenseGeneral(shape, use_bias=False, name="query")
        self.multilinear_key = nn.DenseGeneral(shape, use_bias=False, name="key")
        self.multilinear_value = nn.DenseGeneral(shape, use_bias=False, name="value")
        self.attn_scale = self.param("attn_scale", nn.initializers.constant(3.0), ())
        self.output_projection = nn.DenseGeneral(WIDTH, use_bias=False, name="attn_out_proj")

    def __call__(self, hidden):
        query, key = self.multilinear_query(hidden), self.multilinear_key(hidden)
        value = self.multilinear_value(hidden)
        query, key = (x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-6) for x in (query, key))
        attend = self._by_function if self.by_function else self._by_einsums
        return self.output_projection(attend(query, key, value).reshape(hidden.shape))

    def _by_function(self, query, key, value):
        return jax.nn.dot_product_attention(
            query=query * self.attn_scale,
            key=key,
            value=value,
            is_causal=True,
            scale=1.0,
            implementation=None,
        )

    def _by_einsums(self, query, key, value):
        length = query.shape[1]
        logits = jnp.einsum("...qhd,...khd->...hqk", query, key)
        visible = jnp.tril(jnp.ones((1, 1, length, length), bool))
        logits = self.attn_scale * jnp.where(visible, logits, jnp.finfo(jnp.float32).min)
        weights = jax.nn.softmax(logits, axis=-1)
        return jnp.einsum("...hqk,...khd->...qhd", weights, value)


class TBlock(nn.Module):
    @nn.compact
    def __call__(self, hidden):
        return hidden + CausalAttn()(nn.RMSNorm()(hidden))


class TransformerDo(nn.Module):
    def setup(self):
        self.embed = nn.Embed(CLASSES, WIDTH)
        self.blocks = [TBlock() for _ in range(LAYERS)]

    def __call__(self, tokens):
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.embed.attend(hidden)
