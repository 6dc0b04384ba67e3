"""Conformer (arXiv:2005.08100) as AlgoPerf trains it: the same modules, names, initial values.

Facts from algoperf/workloads/librispeech_conformer/librispeech_jax/models.py. A block is
x + ½·FF, + attention, + convolution, + ½·FF, layer norm. Axes: B batch, N samples, T frames (40 ms
after subsampling), C encoder_dim, V vocabulary, H heads, D head dimension. Paddings are float32, 1
beyond the end.
"""

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from attention import backends
from attention.call import Memory
from attention.modifiers import per_dim_temp
from attention.variant import AttentionFunction
from workloads.base.dropout import Dropout, Rate
from workloads.speech import spectrogram
from workloads.speech.conformer_layers import BatchNorm, LayerNorm, SpecAug, SpecAugMasks, Subsample

ACTIVATIONS = {"swish": nn.swish, "gelu": nn.gelu}
_ALGOPERF_MASKS = SpecAugMasks()
_Dense = functools.partial(nn.Dense, kernel_init=nn.initializers.xavier_uniform())


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes and choices; the defaults are AlgoPerf's.

    attention_temperature multiplies the attention's output. subsampling_channels: of the two
    strided convolutions, None for encoder_dim. masks: SpecAugment's, None for none.
    dtype: of activations; front end, norms' statistics and logits are float32 always.
    """

    vocab_size: int = 1024
    encoder_dim: int = 512
    num_heads: int = 8
    num_layers: int = 4
    kernel_size: int = 5
    feed_forward_factor: int = 4
    batch_norm_momentum: float = 0.999
    attention_temperature: float = 1.0
    activation: str = "swish"
    use_post_layer_norm: bool = True
    subsampling_channels: int | None = None
    masks: SpecAugMasks | None = _ALGOPERF_MASKS
    dtype: Any = jnp.float32


class FeedForwardModule(nn.Module):
    """Layer norm, expansion, activation, projection."""

    config: Config

    @nn.compact
    def __call__(self, inputs: Array, valid: Array, dropout_rate: Rate, train: bool) -> Array:
        """Returns [B, T, C] for inputs [B, T, C] and valid [B, T, 1]."""
        config = self.config
        hidden = LayerNorm(config.dtype)(inputs)
        hidden = _Dense(config.encoder_dim * config.feed_forward_factor, dtype=config.dtype)(hidden)
        hidden = ACTIVATIONS[config.activation](hidden)
        hidden = Dropout()(hidden, dropout_rate, not train) * valid
        hidden = _Dense(config.encoder_dim, dtype=config.dtype)(hidden) * valid
        return Dropout()(hidden, dropout_rate, not train)


class QueryScaler(nn.Module):
    """Multiplies each dimension of the query by softplus(scale)/softplus(0): 1 at the start."""

    @nn.compact
    def __call__(self, query: Array) -> Array:
        """Returns query [..., D] scaled by parameters [D]."""
        scale = self.param("scale", nn.initializers.zeros, (query.shape[-1],))
        return query * per_dim_temp.factor(scale).astype(query.dtype)


class QueryScaledAttention(AttentionFunction):
    """Attention of a query with a learned scale per dimension, times `temperature`.

    A function of flax's signature, for nn.MultiHeadDotProductAttention, among whose parameters the
    scale lies: [B, T, H, D] from query [B, T, H, D], key and value [B, S, H, D]. The scale is
    applied after the variant's modifiers of the query (`qk_norm`), the temperature to its output.
    Without a variant it is AlgoPerf's own function. `layer`: arguments of `AttentionFunction`.
    """

    def __init__(self, temperature: float, *layer: Any) -> None:
        super().__init__(*layer)
        self.temperature = temperature

    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None = None,
        mask: Array | None = None,
        is_causal: bool = False,
        **given: Any,
    ) -> Array:
        settings = {name: given.get(name) for name in ("dtype", "precision")}
        settings |= {"bias": bias, "mask": mask, "deterministic": True}
        if self.variant is None:
            output = nn.dot_product_attention(QueryScaler()(query), key, value, **settings)
            return output * self.temperature
        offers = backends.KERNELS[self.variant.kernel].offers
        rows = None
        if mask is not None and "mask_by_query" not in offers:
            # Frames that may not look give 0 by our core; these kernels mask keys alone.
            rows = jnp.swapaxes(jnp.any(mask, axis=-1, keepdims=True), -3, -2)
            settings["mask"] = jnp.any(mask, axis=-2, keepdims=True)
        output = super().__call__(
            query, key, value, is_causal=is_causal, scale_query=QueryScaler(), **settings
        )
        output = output if rows is None else jnp.where(rows, output, 0)
        return output * self.temperature


class MultiHeadedSelfAttention(nn.Module):
    """Layer norm and self-attention over the valid frames."""

    config: Config
    variant: Any
    depth: int

    @nn.compact
    def __call__(
        self,
        inputs: Array,
        memory: Memory,
        paddings: Array,
        dropout_rate: Rate,
        train: bool,
    ) -> tuple[Array, Memory]:
        """Returns [B, T, C] for inputs [B, T, C], and what attention leaves for later layers.

        Padded frames neither look nor are seen.
        """
        config = self.config
        valid = paddings == 0
        frames = LayerNorm(config.dtype)(inputs)
        function = QueryScaledAttention(
            config.attention_temperature, self.variant, self.depth, frames, memory
        )
        hidden = nn.MultiHeadDotProductAttention(
            num_heads=config.num_heads,
            qkv_features=config.encoder_dim,
            dtype=config.dtype,
            kernel_init=nn.initializers.xavier_uniform(),
            broadcast_dropout=False,
            dropout_rate=0.0,
            deterministic=True,
            attention_fn=function,
        )(frames, mask=nn.make_attention_mask(valid, valid, dtype=bool))
        return Dropout()(hidden, dropout_rate, not train), function.memory or {}


class DepthwiseConv(nn.Module):
    """Convolution over time, each channel by itself, zeros beyond the ends.

    A sum of shifted products: XLA's grouped convolution takes many times as long on a CPU.
    """

    size: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """Returns [B, T, C] for inputs [B, T, C]."""
        shape = (self.size, 1, inputs.shape[-1])
        kernel = self.param("kernel", nn.initializers.xavier_uniform(), shape).astype(self.dtype)
        before = (self.size - 1) // 2
        padded = jnp.pad(inputs, ((0, 0), (before, self.size - 1 - before), (0, 0)))
        length = inputs.shape[1]
        return sum(padded[:, at : at + length] * kernel[at, 0] for at in range(self.size))


class ConvolutionBlock(nn.Module):
    """Layer norm, gated projection, depthwise convolution, batch norm, activation, projection."""

    config: Config

    @nn.compact
    def __call__(
        self,
        inputs: Array,
        paddings: Array,
        dropout_rate: Rate,
        train: bool,
        batch_norm: tuple[bool, bool],
    ) -> Array:
        """Returns [B, T, C] for inputs [B, T, C]; `batch_norm` as in `Conformer`."""
        config = self.config
        hidden = LayerNorm(config.dtype)(inputs)
        opened = _Dense(config.encoder_dim, dtype=config.dtype)(hidden)
        gate = _Dense(config.encoder_dim, dtype=config.dtype)(hidden)
        hidden = opened * nn.sigmoid(gate) * (1 - paddings[..., None]).astype(config.dtype)
        hidden = DepthwiseConv(config.kernel_size, config.dtype, name="Conv_0")(hidden)
        norm = BatchNorm(config.batch_norm_momentum, dtype=config.dtype)
        hidden = ACTIVATIONS[config.activation](norm(hidden, paddings, *batch_norm))
        hidden = _Dense(config.encoder_dim, dtype=config.dtype)(hidden)
        return Dropout()(hidden, dropout_rate, not train)


class ConformerBlock(nn.Module):
    """One encoder layer."""

    config: Config
    variant: Any
    depth: int

    @nn.compact
    def __call__(
        self,
        inputs: Array,
        memory: Memory,
        paddings: Array,
        dropout_rate: Rate,
        train: bool,
        batch_norm: tuple[bool, bool],
    ) -> tuple[Array, Memory]:
        """Returns [B, T, C] for inputs [B, T, C], and the memory.

        `batch_norm` as in `Conformer`.
        """
        config = self.config
        valid = (1 - paddings[..., None]).astype(config.dtype)
        hidden = inputs + 0.5 * FeedForwardModule(config)(inputs, valid, dropout_rate, train)
        attention = MultiHeadedSelfAttention(config, self.variant, self.depth)
        branch, memory = attention(hidden, memory, paddings, dropout_rate, train)
        hidden = hidden + branch
        convolution = ConvolutionBlock(config)
        hidden = hidden + convolution(hidden, paddings, dropout_rate, train, batch_norm)
        hidden = hidden + 0.5 * FeedForwardModule(config)(hidden, valid, dropout_rate, train)
        hidden = LayerNorm(config.dtype)(hidden) if config.use_post_layer_norm else hidden
        return hidden, memory


class Conformer(nn.Module):
    """Audio to CTC logits; running averages lie in the collection `batch_stats`.

    variant: from `attention.registry.get`, or None for flax's own attention, both behind the
    model's learned scale of the query.
    """

    config: Config = Config()
    variant: Any = None

    @nn.compact
    def __call__(
        self,
        audio: Array,
        paddings: Array,
        *,
        train: bool = False,
        dropout_rate: Rate = 0.0,
        update_batch_norm: bool = False,
        use_running_average: bool = True,
    ) -> tuple[Array, Array]:
        """Returns logits float32 [B, T, V] and their paddings [B, T].

        audio [B, N]: 16-bit samples as numbers; paddings [B, N]. `train` turns on SpecAugment and
        dropout, whose rate may be traced. update_batch_norm moves the running averages;
        use_running_average normalises by them.
        """
        config = self.config
        batch_norm = update_batch_norm, use_running_average
        hidden, paddings = spectrogram.log_mel(audio, paddings)
        if train and config.masks is not None:
            hidden = SpecAug(config.masks, name="specaug")(hidden, paddings)
        subsample = Subsample(
            config.encoder_dim, config.subsampling_channels or config.encoder_dim, config.dtype
        )
        hidden, paddings = subsample(hidden, paddings, dropout_rate, train)
        memory: Memory = {}
        for depth in range(config.num_layers):
            block = ConformerBlock(config, self.variant, depth)
            hidden, memory = block(hidden, memory, paddings, dropout_rate, train, batch_norm)
        hidden = LayerNorm(config.dtype)(hidden)
        logits = _Dense(config.vocab_size, dtype=config.dtype)(hidden)
        return logits.astype(jnp.float32), paddings
