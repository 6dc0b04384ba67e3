"""A Transformer over tokens, decoder-only or bidirectional: the language models' network.

What the paper gives: pre-LN, an MLP of two matrices, no biases, one embedding for input and output,
a head size free of the width. Where it is silent, this is our choice:

- Norms are RMSNorm (arXiv:1910.07467), ε 1e-6, with one factor per channel, stored as 1 + scale
  so that weight decay pulls it to 1. The totals that the paper names leave room for no bias, and
  RMSNorm is the norm without one in praxis (which the paper trained with), T5, PaLM's heirs, LLaMA.
- Positions are not learned: sines and cosines (arXiv:1706.03762), added to the embeddings times
  √width, as praxis does by default. options.positions 'none' leaves them out, and so do variants
  with positions of their own (+rope, +alibi).
- The activation is GELU, tanh form. Dropout, where its rate is above 0, falls on the embeddings
  and on each branch before it joins the residual; attention weights are never dropped.
- Initial values: every projection normal with variance 1/fan-in, the embedding normal with
  variance 1/width, norms 1. At the start inputs have variance 1 and 1/2 (token, position), logits
  variance 1, and the loss is close to ln(vocabulary) + 1/2.

Axes: B batch, L length, W width, H heads, D head size, V vocabulary.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import NamedSharding, PartitionSpec

from attention import registry
from attention.call import LayerIndex, Memory
from attention.kernels.inputs import make_call
from attention.masks import Mask
from workloads.base.dropout import Dropout, Rate
from workloads.base.options import STACKED, Options
from workloads.base.sharding import token_axes
from workloads.storage import tokenizer
from workloads.text.text_specs import TransformerSize

# Mesh axes of the parameters' dimensions, from the last one backwards
# (workloads/base/sharding.py): heads, MLP and vocabulary over 'tensor', width over 'fsdp'. Norms
# and what variants add are small.
PARAMETER_RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"(^|/)embedding$", ("fsdp", "tensor")),
    (r"attention/(query|key|value)/kernel$", (None, "tensor", "fsdp")),
    (r"attention/out/kernel$", ("fsdp", None, "tensor")),
    (r"mlp/up/kernel$", ("tensor", "fsdp")),
    (r"mlp/down/kernel$", ("fsdp", "tensor")),
)

_FAN_IN = nn.initializers.variance_scaling(1.0, "fan_in", "normal")


def positions(length: int, width: int, longest: float = 1e4) -> jax.Array:
    """Returns fixed positions [L, W] float32: W/2 sines, then as many cosines.

    Wavelengths run geometrically from 2π to 2π·`longest`. The width is even, and 4 or more.
    """
    fraction = jnp.arange(width // 2, dtype=jnp.float32) / (width // 2 - 1)
    angles = jnp.arange(length, dtype=jnp.float32)[:, None] * longest**-fraction
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


class RMSNorm(nn.Module):
    """x / √(mean x² + ε) · (1 + scale) over the last axis; statistics float32, dtype kept."""

    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.zeros, (inputs.shape[-1],), self.param_dtype)
        wide = inputs.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        normal = wide * jax.lax.rsqrt(mean_square + 1e-6)
        return (normal * (1.0 + scale.astype(jnp.float32))).astype(inputs.dtype)


class SelfAttention(nn.Module):
    """Projections around a variant, which is called here so that its leaves lie beside them."""

    size: TransformerSize
    variant: Any
    is_causal: bool
    options: Options
    devices: Any = None

    @nn.compact
    def __call__(
        self, inputs: jax.Array, index: int | jax.Array, memory: Memory, documents: jax.Array | None
    ) -> tuple[jax.Array, Memory]:
        """Returns [B, L, W] for [B, L, W], and the memory for the next layer.

        index: of the layer, from 0, may be traced. documents: as `document_numbers`, or None.
        """
        settings = _dense(self.options)
        heads, key_heads = self.size.heads, self.options.kv_heads or self.size.heads
        query, key, value = (
            _constrain(
                self.devices,
                nn.DenseGeneral((count, self.size.head_size), name=name, **settings)(inputs),
                -2,
            )
            for name, count in (("query", heads), ("key", key_heads), ("value", key_heads))
        )
        call = make_call(
            query,
            key,
            value,
            x=inputs,
            layer=LayerIndex(index, self.size.layers),
            memory=memory,
            mask=None if documents is None else Mask(segments=(documents, documents)),
            is_causal=self.is_causal,
        )
        output, memory = self.variant.attend(call)
        out = nn.DenseGeneral(self.size.width, axis=(-2, -1), name="out", **settings)
        return out(output), memory


class FeedForward(nn.Module):
    """Two matrices with GELU between them."""

    size: TransformerSize
    options: Options
    devices: Any = None

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        settings = _dense(self.options)
        hidden = nn.Dense(self.size.mlp_width, name="up", **settings)(inputs)
        hidden = nn.gelu(_constrain(self.devices, hidden, -1))
        return nn.Dense(self.size.width, name="down", **settings)(hidden)


class Block(nn.Module):
    """One layer: norm and attention, norm and MLP, each added to the residual."""

    size: TransformerSize
    variant: Any
    is_causal: bool
    options: Options
    train: bool = False
    devices: Any = None

    @nn.compact
    def __call__(
        self,
        carry: tuple[jax.Array, Memory],
        index: int | jax.Array,
        dropout_rate: Rate,
        documents: jax.Array | None,
    ) -> tuple[jax.Array, Memory]:
        """Returns the residual [B, L, W] and the memory after the layer, from those before it."""
        hidden, memory = carry
        param_dtype = jnp.dtype(self.options.param_dtype)
        attention = SelfAttention(
            self.size, self.variant, self.is_causal, self.options, self.devices, name="attention"
        )
        mlp = FeedForward(self.size, self.options, self.devices, name="mlp")

        def drop(branch: jax.Array) -> jax.Array:
            return Dropout()(branch, dropout_rate, not self.train)

        normed = RMSNorm(param_dtype, name="attention_norm")(hidden)
        branch, memory = attention(normed, index, memory, documents)
        hidden = _constrain(self.devices, hidden + drop(branch))
        branch = mlp(RMSNorm(param_dtype, name="mlp_norm")(hidden))
        return _constrain(self.devices, hidden + drop(branch)), memory


class Transformer(nn.Module):
    """Embedding, blocks, norm, and logits by the transposed embedding.

    options: dtypes, scan_layers (leaves of all layers stacked under 'layers' instead of
    'layer_0' …), remat, kv_heads, positions, global_every, document_mask. devices:
    `sharding.Devices` to whose mesh activations are pinned, or None. variant: from
    `attention.registry.get`; None is standard attention.
    """

    size: TransformerSize
    variant: Any = None
    is_causal: bool = True
    options: Options = Options()
    devices: Any = None

    @nn.compact
    def __call__(
        self,
        tokens: jax.Array,
        *,
        at: jax.Array | None = None,
        train: bool = False,
        dropout_rate: Rate = 0.0,
        to_logits: bool = True,
    ) -> jax.Array:
        """Returns logits float32 [B, L, V] for tokens [B, L] int.

        `at`, int [B, K], asks for those positions alone: [B, K, V]. `dropout_rate` may be traced.
        Without `to_logits` it returns what the transposed embedding makes logits of, [B, L, W] in
        the compute dtype.
        """
        options, width = self.options, self.size.width
        embedding = self.param(
            "embedding",
            nn.initializers.normal(width**-0.5),
            (self.size.vocabulary, width),
            jnp.dtype(options.param_dtype),
        )
        modifiers = () if self.variant is None else self.variant.modifiers
        has_sinusoids = options.positions == "sinusoids" and not {"rope", "alibi"} & {*modifiers}
        hidden = _embedded(
            self.devices, embedding, tokens, jnp.dtype(options.compute_dtype), has_sinusoids
        )
        hidden = _constrain(self.devices, hidden)
        hidden = Dropout()(hidden, dropout_rate, not train)
        documents = document_numbers(tokens, self.is_causal) if options.document_mask else None
        hidden = self._blocks(hidden, dropout_rate, documents, train)
        if at is not None:
            hidden = jnp.take_along_axis(hidden, at[..., None], axis=-2)
        hidden = RMSNorm(jnp.dtype(options.param_dtype), name="final_norm")(hidden)
        if not to_logits:
            return _constrain(self.devices, hidden)
        return _constrain(self.devices, logits(hidden, embedding.astype(options.compute_dtype)), -1)

    def _blocks(
        self, hidden: jax.Array, dropout_rate: Rate, documents: jax.Array | None, train: bool
    ) -> jax.Array:
        options, layers = self.options, self.size.layers
        variant = registry.get("standard") if self.variant is None else self.variant
        period = options.global_every or 1
        # Of every period the last layer is global.
        variants = [variant] * (period - 1) + [
            _without_window(variant) if options.global_every else variant
        ]
        make: Any = Block
        if options.remat:
            # Inside scan's loop XLA cannot merge the second computation with the first.
            make = nn.remat(Block, prevent_cse=not options.scan_layers)

        def block(variant: Any, **name: Any) -> Any:
            return make(self.size, variant, self.is_causal, options, train, self.devices, **name)

        shape = (*hidden.shape[:-1], options.kv_heads or self.size.heads, self.size.head_size)
        carry = hidden, variant.empty_memory(jnp.zeros(shape, hidden.dtype))
        if not options.scan_layers:
            for index in range(layers):
                layer = block(variants[index % period], name=f"layer_{index}")
                carry = layer(carry, index, dropout_rate, documents)
            return carry[0]
        same = dropout_rate, documents
        if period > 1 and not self.is_initializing():
            return self._periods(carry, [block(variant, parent=None) for variant in variants], same)
        run = nn.scan(
            lambda layer, carry, index, *same: (layer(carry, index, *same), None),
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=(0, nn.broadcast, nn.broadcast),
            length=layers,
        )
        (hidden, _), _ = run(block(variant, name=STACKED), carry, jnp.arange(layers), *same)
        return hidden

    def _periods(
        self,
        carry: tuple[jax.Array, Memory],
        blocks: list[Any],
        same: tuple[Rate, jax.Array | None],
    ) -> jax.Array:
        """Returns the residual after all layers, scanned by periods of `blocks`.

        The parameters stay stacked by layer, as a scan of equal layers has them. same: what all
        layers are given, the dropout rate and the documents.
        """
        keys = jax.random.split(
            self.make_rng("dropout") if self.has_rng("dropout") else jax.random.key(0),
            self.size.layers,
        )
        of_layers = (self.variables["params"][STACKED], jnp.arange(self.size.layers), keys)
        # Of each block's layers by themselves: slices of slices are copied in the loop.
        of_blocks = [
            jax.tree.map(lambda leaf, first=first: leaf[first :: len(blocks)], of_layers)
            for first in range(len(blocks))
        ]

        def run(
            carry: tuple[jax.Array, Memory], period: Any
        ) -> tuple[tuple[jax.Array, Memory], None]:
            for block, (params, index, key) in zip(blocks, period, strict=True):
                carry = block.apply({"params": params}, carry, index, *same, rngs={"dropout": key})
            return carry, None

        (hidden, _), _ = jax.lax.scan(run, carry, of_blocks)
        return hidden


def document_numbers(tokens: jax.Array, is_causal: bool) -> jax.Array:
    """Returns the document of each token, int32 [B, L], of tokens with separators between.

    A separator is the last token of its document, but a decoder's first: there it asks for the next
    document's first token.
    """
    separators = (tokens == tokenizer.EOS).astype(jnp.int32)
    return jnp.cumsum(separators, axis=-1) - (0 if is_causal else separators)


def _without_window(variant: Any) -> Any:
    """Returns the variant whose queries see all keys again."""
    settings = tuple(pair for pair in variant.settings if pair[0] != "width")
    modifiers = tuple(name for name in variant.modifiers if name != "window")
    return dataclasses.replace(variant, modifiers=modifiers, settings=settings)


def unstacked(params: Any) -> Any:
    """Returns parameters without scan_layers ('layer_0', …) from those with it ('layers')."""
    params = dict(params)
    stack = params.pop(STACKED)
    layers = len(jax.tree.leaves(stack)[0])
    split = {
        f"layer_{index}": jax.tree.map(lambda leaf, index=index: leaf[index], stack)
        for index in range(layers)
    }
    return params | split


def _embedded(
    devices: Any, embedding: jax.Array, tokens: jax.Array, dtype: Any, has_sinusoids: bool
) -> jax.Array:
    """Returns tokens' rows times √W, plus positions where they are sinusoids, [B, L, W] in `dtype`.

    Rows are looked up in float32: the gradient of a frequent token is a sum of many thousand rows,
    which bfloat16 would stop adding up after a few hundred. Where 'fsdp' or 'tensor' divide the
    table each device looks up its own part of it, for its tokens of all sequences of its group, and
    the devices exchange results; so gradients are summed where they stay. Left to the partitioner
    the whole float32 table is gathered and its gradient reduced over all devices ("involuntary full
    rematerialization").
    """
    width = embedding.shape[-1]
    places = positions(tokens.shape[-1], width)
    places = places if has_sinusoids else jnp.zeros_like(places)
    if devices is None or devices.mesh.shape["fsdp"] * devices.mesh.shape["tensor"] == 1:
        return (embedding.astype(jnp.float32)[tokens] * width**0.5 + places).astype(dtype)

    def own_part(table: jax.Array, tokens: jax.Array, places: jax.Array) -> jax.Array:
        tokens = jax.lax.all_gather(tokens, "fsdp", axis=0, tiled=True)
        entries = tokens - jax.lax.axis_index("tensor") * len(table)
        is_here = (entries >= 0) & (entries < len(table))
        rows = table.astype(jnp.float32)[jnp.clip(entries, 0, len(table) - 1)]
        rows = jax.lax.psum(jnp.where(is_here[..., None], rows, 0.0), "tensor")
        hidden = (rows * width**0.5 + places).astype(dtype)
        return jax.lax.all_to_all(hidden, "fsdp", split_axis=0, concat_axis=2, tiled=True)

    batch = token_axes(devices.mesh, tokens.shape[-1])
    return jax.shard_map(
        own_part,
        mesh=devices.mesh,
        in_specs=(PartitionSpec("tensor", "fsdp"), batch, PartitionSpec(batch[1], "fsdp")),
        out_specs=batch,
    )(embedding, tokens, places)


def _dense(options: Options) -> dict[str, Any]:
    return {
        "use_bias": False,
        "dtype": jnp.dtype(options.compute_dtype),
        "param_dtype": jnp.dtype(options.param_dtype),
        "kernel_init": _FAN_IN,
    }


def _constrain(devices: Any, array: jax.Array, tensor_axis: int | None = None) -> jax.Array:
    """Returns the array divided over the mesh: its batch axis, and one axis over 'tensor'.

    Left to itself the partitioner may divide activations by width, as the parameters are, and
    gather them again and again.
    """
    if devices is None or devices.mesh.size == 1:
        return array
    axes: list[Any] = [*token_axes(devices.mesh, array.shape[1]), *[None] * (array.ndim - 2)]
    if tensor_axis is not None:
        axes[tensor_axis] = "tensor"
    return jax.lax.with_sharding_constraint(
        array, NamedSharding(devices.mesh, PartitionSpec(*axes))
    )


@jax.custom_vjp
def logits(hidden: jax.Array, embedding: jax.Array) -> jax.Array:
    """Returns hidden·embeddingᵀ in float32, [..., V]; products and gradients in the inputs' dtype.

    Without a rule of its own the backward pass would multiply float32 by bfloat16 matrices, at the
    speed of float32.
    """
    return jnp.einsum("...w,vw->...v", hidden, embedding, preferred_element_type=jnp.float32)


def _logits_forward(
    hidden: jax.Array, embedding: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return logits(hidden, embedding), (hidden, embedding)


def _logits_backward(
    saved: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    hidden, embedding = saved
    cotangent = cotangent.astype(hidden.dtype)
    return (
        jnp.einsum("...v,vw->...w", cotangent, embedding),
        jnp.einsum("...v,...w->vw", cotangent, hidden),
    )


logits.defvjp(_logits_forward, _logits_backward)
