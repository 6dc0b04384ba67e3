"""init2winit's own attention module: as flax's, without being one, and with `attn_temp`."""

from collections.abc import Callable

import flax.linen as nn


def dot_product_attention(query, key, value, *, mask=None, attn_temp=1.0, **settings):
    return nn.dot_product_attention(query * attn_temp, key, value, mask=mask, **settings)


class MultiHeadDotProductAttention(nn.Module):
    num_heads: int
    attention_fn: Callable = dot_product_attention
    normalize_attention: bool = False
    attn_temp: float = 1.0

    @nn.compact
    def __call__(self, inputs_q, inputs_kv, mask=None):
        head = inputs_q.shape[-1] // self.num_heads
        query, key, value = (
            nn.DenseGeneral((self.num_heads, head), use_bias=False, name=name)(inputs)
            for name, inputs in (("query", inputs_q), ("key", inputs_kv), ("value", inputs_kv))
        )
        mixed = self.attention_fn(query, key, value, mask=mask, attn_temp=self.attn_temp)
        return nn.DenseGeneral(inputs_q.shape[-1], axis=(-2, -1), use_bias=False, name="out")(mixed)


class SelfAttention(MultiHeadDotProductAttention):
    @nn.compact
    def __call__(self, inputs_q, mask=None):
        return super().__call__(inputs_q, inputs_q, mask)
