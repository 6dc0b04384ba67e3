"""ViT as AlgoPerf trains it: the same modules, names and initial values.

Facts from algoperf/workloads/imagenet_vit/imagenet_jax/models.py (itself after init2winit and
big_vision): pre-LN blocks, sincos2d positions, mean pooling or an attention head (`use_map`),
a tanh pre-logits layer, a zero-initialised head. Attention is a variant's, given as `variant`; None
is flax's own function. Axes: B batch, T tokens, W width.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from attention.call import Memory
from attention.inject import AttentionFunction
from workloads.base.dropout import Dropout, Rate


def sincos2d_positions(height: int, width: int, size: int, temperature: float = 1e4) -> Array:
    """Returns fixed 2-D sine and cosine positions, [1, height·width, size] float32 (MoCo v3).

    `size` is a multiple of 4 above 4.
    """
    rows, columns = jnp.mgrid[:height, :width]
    omega = jnp.arange(size // 4) / (size // 4 - 1)
    omega = 1.0 / (temperature**omega)
    y = jnp.einsum("m,d->md", rows.flatten(), omega)
    x = jnp.einsum("m,d->md", columns.flatten(), omega)
    parts = [jnp.sin(x), jnp.cos(x), jnp.sin(y), jnp.cos(y)]
    return jnp.concatenate(parts, axis=1)[None].astype(jnp.float32)


class MlpBlock(nn.Module):
    """Feed-forward block; with `use_glu` the activation is gated by a second projection."""

    mlp_dim: int
    use_glu: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, inputs: Array, dropout_rate: Rate, deterministic: bool) -> Array:
        settings: dict[str, Any] = {
            "kernel_init": nn.initializers.xavier_uniform(),
            "bias_init": nn.initializers.normal(stddev=1e-6),
            "dtype": self.dtype,
        }
        hidden = nn.gelu(nn.Dense(self.mlp_dim, **settings)(inputs))
        if self.use_glu:
            hidden = hidden * nn.Dense(self.mlp_dim, **settings)(hidden)
        hidden = Dropout()(hidden, dropout_rate, deterministic)
        return nn.Dense(inputs.shape[-1], **settings)(hidden)


class EncoderBlock(nn.Module):
    """Self-attention and MLP with residuals; layer norm before them, or after (`post_norm`)."""

    num_heads: int
    mlp_dim: int
    variant: Any
    depth: int
    use_glu: bool = False
    post_norm: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, inputs: Array, memory: Memory, dropout_rate: Rate, deterministic: bool
    ) -> tuple[Array, Memory]:
        """Returns tokens [B, T, W] and what attention leaves for later layers."""
        # Names are given, not counted, so that both norm positions share AlgoPerf's tree.
        mlp = MlpBlock(self.mlp_dim, self.use_glu, self.dtype, name="MlpBlock_3")
        attention_norm = nn.LayerNorm(dtype=self.dtype, name="LayerNorm_0")
        mlp_norm = nn.LayerNorm(dtype=self.dtype, name="LayerNorm_2")

        def drop(branch: Array) -> Array:
            return Dropout()(branch, dropout_rate, deterministic)

        tokens = inputs if self.post_norm else attention_norm(inputs)
        function = AttentionFunction(self.variant, self.depth, tokens, memory)
        attention = nn.MultiHeadDotProductAttention(
            num_heads=self.num_heads,
            kernel_init=nn.initializers.xavier_uniform(),
            deterministic=deterministic,
            dtype=self.dtype,
            attention_fn=nn.dot_product_attention if self.variant is None else function,
            name="MultiHeadDotProductAttention_1",
        )
        if self.post_norm:
            hidden = attention_norm(inputs + drop(attention(tokens)))
            hidden = mlp_norm(hidden + drop(mlp(hidden, dropout_rate, deterministic)))
        else:
            hidden = inputs + drop(attention(tokens))
            hidden = hidden + drop(mlp(mlp_norm(hidden), dropout_rate, deterministic))
        return hidden, function.memory or {}


class Encoder(nn.Module):
    """`depth` blocks, made by `block`, then a layer norm unless blocks end with one."""

    depth: int
    block: Callable[..., EncoderBlock]
    post_norm: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, inputs: Array, dropout_rate: Rate, deterministic: bool) -> Array:
        hidden: Array = inputs
        memory: Memory = {}
        for layer in range(self.depth):
            block = self.block(depth=layer, name=f"encoderblock_{layer}")
            hidden, memory = block(hidden, memory, dropout_rate, deterministic)
        if self.post_norm:
            return hidden
        return nn.LayerNorm(dtype=self.dtype, name="encoder_layernorm")(hidden)


class MAPHead(nn.Module):
    """Pools tokens by attention from a learned probe: [B, T, W] to [B, W].

    For variants it is one layer more, behind all blocks.
    """

    num_heads: int
    mlp_dim: int
    variant: Any
    depth: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        batch, _, width = tokens.shape
        probe = self.param("probe", nn.initializers.xavier_uniform(), (1, 1, width), jnp.float32)
        probes = jnp.tile(probe, [batch, 1, 1])
        function = AttentionFunction(self.variant, self.depth, probes, {}, is_cross=True)
        pooled = nn.MultiHeadDotProductAttention(
            num_heads=self.num_heads,
            kernel_init=nn.initializers.xavier_uniform(),
            dtype=self.dtype,
            attention_fn=nn.dot_product_attention if self.variant is None else function,
        )(probes, tokens)
        hidden = nn.LayerNorm(dtype=self.dtype)(pooled)
        # AlgoPerf's pooling MLP never drops: its `train` argument means deterministic.
        mlp = MlpBlock(self.mlp_dim, dtype=self.dtype)
        return (pooled + mlp(hidden, 0.0, True))[:, 0]


class ViT(nn.Module):
    """Vision Transformer for classification; parameters float32, compute in `dtype`.

    variant: from `attention.registry.get`, or None for flax's own attention.
    """

    num_classes: int
    patch_size: int
    width: int
    depth: int
    mlp_dim: int
    num_heads: int
    use_glu: bool = False
    use_post_layer_norm: bool = False
    use_map: bool = False
    variant: Any = None
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, images: Array, *, train: bool = False, dropout_rate: Rate = 0.0) -> Array:
        """Returns logits [B, num_classes] float32 for images [B, H, W, 3].

        `dropout_rate` (residual and MLP dropout; attention weights are never dropped) may be
        traced.
        """
        patch = (self.patch_size, self.patch_size)
        patches = nn.Conv(
            self.width,
            patch,
            strides=patch,
            padding="VALID",
            dtype=self.dtype,
            name="conv_patch_extract",
        )(images)
        batch, height, width, size = patches.shape
        tokens = patches.reshape(batch, height * width, size)
        tokens = tokens + sincos2d_positions(height, width, size).astype(tokens.dtype)
        tokens = Dropout()(tokens, dropout_rate, not train)
        block = functools.partial(
            EncoderBlock,
            self.num_heads,
            self.mlp_dim,
            self.variant,
            use_glu=self.use_glu,
            post_norm=self.use_post_layer_norm,
            dtype=self.dtype,
        )
        encoder = Encoder(
            self.depth,
            block,
            self.use_post_layer_norm,
            self.dtype,
            name="Transformer",
        )
        tokens = encoder(tokens, dropout_rate, not train)
        if self.use_map:
            pool = MAPHead(
                self.num_heads, self.mlp_dim, self.variant, self.depth, self.dtype, name="MAPHead_0"
            )
            pooled = pool(tokens)
        else:
            pooled = jnp.mean(tokens, axis=1)
        hidden = nn.tanh(nn.Dense(self.width, dtype=self.dtype, name="pre_logits")(pooled))
        logits = nn.Dense(
            self.num_classes,
            kernel_init=nn.initializers.zeros,
            dtype=self.dtype,
            name="head",
        )(hidden)
        return logits.astype(jnp.float32)
