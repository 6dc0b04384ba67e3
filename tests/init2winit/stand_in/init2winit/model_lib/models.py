"""Its registry of models, each in one layer: where init2winit's own meet a variant."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from ml_collections import config_dict

from init2winit.model_lib import attention


def dot_product_attention(query, key, value, mask=None, temperature=1.0):
    weights = nn.dot_product_attention_weights(query, key, mask=mask)
    return jnp.einsum("...hqk,...khd->...qhd", weights, value) * temperature


class ViT(nn.Module):
    """With a mask of floats, as the Conformers."""

    num_heads: int

    @nn.compact
    def __call__(self, x, *, train=False):
        function = functools.partial(dot_product_attention, temperature=0.5)
        mask = nn.make_attention_mask(*[jnp.ones(x.shape[:2])] * 2)
        x = nn.MultiHeadDotProductAttention(
            self.num_heads, attention_fn=function, name="encoderblock_0"
        )(x, mask=mask)
        return nn.Dense(3, name="head")(x.mean(axis=-2))


class Transformer(nn.Module):
    num_heads: int

    @nn.compact
    def __call__(self, x, *, train=False):
        mask = nn.make_causal_mask(x[..., 0])
        x = attention.SelfAttention(self.num_heads, attn_temp=1.5, name="Block_0")(x, mask)
        return nn.Dense(3, name="head")(x.mean(axis=-2))


class CausalAttn(nn.Module):
    @nn.compact
    def __call__(self, x):
        query, key, value = (
            nn.DenseGeneral((2, x.shape[-1] // 2), use_bias=False, name=name)(x)
            for name in ("query", "key", "value")
        )
        query /= query.shape[-1] ** 0.5
        logits = jnp.einsum("...qhd,...khd->...hqk", query, key)
        length = x.shape[-2]
        mask = jnp.tril(jnp.ones((1, 1, length, length), dtype=bool))
        weights = jax.nn.softmax(jnp.where(mask, logits, jnp.finfo(jnp.float32).min))
        mixed = jnp.einsum("...hqk,...khd->...qhd", weights, value)
        return nn.DenseGeneral(x.shape[-1], axis=(-2, -1), use_bias=False, name="out")(mixed)


class Nanodo(nn.Module):
    @nn.compact
    def __call__(self, x, *, train=False):
        return nn.Dense(3, name="head")(CausalAttn(name="blocks_0")(x).mean(axis=-2))


class Model:
    module = None

    def __init__(self, hps):
        self.hps = hps
        self.flax_module = self.build_flax_module()

    def build_flax_module(self):
        fields = {"num_heads"} & set(self.module.__dataclass_fields__)
        return self.module(**{name: self.hps[name] for name in fields})


def _entry(module):
    defaults = {"num_heads": 4, "rng_seed": 0}
    model = type(f"{module.__name__}Model", (Model,), {"module": module})
    return model, config_dict.ConfigDict(defaults)


_ALL_MODELS = {
    "vit": _entry(ViT),
    "conformer": _entry(ViT),
    "mlcommons_conformer": _entry(ViT),
    "transformer": _entry(Transformer),
    "nanodo": _entry(Nanodo),
    "rope_nanodo": _entry(Nanodo),
}
