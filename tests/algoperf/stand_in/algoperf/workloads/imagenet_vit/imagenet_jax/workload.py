"""A ViT of two layers on vectors, its modules named as AlgoPerf's."""

import jax.numpy as jnp
from flax import linen as nn

from algoperf.workloads.base import CLASSES, TinyWorkload


class Encoder1DBlock(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        hidden = nn.LayerNorm(name="LayerNorm_0")(tokens)
        attend = nn.MultiHeadDotProductAttention(num_heads=2, name="MultiHeadDotProductAttention_1")
        return tokens + attend(hidden)


class Encoder(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        for layer in range(2):
            tokens = Encoder1DBlock(name=f"encoderblock_{layer}")(tokens)
        return tokens


class MAPHead(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        return nn.MultiHeadDotProductAttention(num_heads=2)(tokens[:, :1], tokens)[:, 0]


class ViT(nn.Module):
    use_map: bool = False

    @nn.compact
    def __call__(self, tokens):
        tokens = Encoder(name="Transformer")(tokens)
        pooled = MAPHead()(tokens) if self.use_map else jnp.mean(tokens, axis=1)
        return nn.Dense(CLASSES, name="head")(pooled)


class ImagenetVitWorkload(TinyWorkload):
    use_map = False

    def make_model(self):
        return ViT(self.use_map)


class ImagenetVitMapWorkload(ImagenetVitWorkload):
    use_map = True
