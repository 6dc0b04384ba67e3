"""AlgoPerf 1.0's language model: `finewebedu_lm`, and `pydoc_finewebedu`, the same model, small.

Facts from algoperf/workloads/finewebedu_lm/finewebedu_lm_jax/models.py at 4c37f2a: the same
modules, names and initial values. Pre-norm blocks with RMSNorm (ε 1e-6), rotary positions (base
500,000) on queries and keys, which are then divided by their length + 1e-6, the queries times a
learned scale; an MLP gated by the sigmoid of its second half; no biases, one embedding for input
and output. AlgoPerf's logits are bfloat16 where it computes in bfloat16; ours are float32.

`finewebedu_lm`: 12 layers, width 1024, 8 heads of 128, 50,257 tokens, 252,815,372 parameters;
AlgoPerf's target is a validation perplexity of 22.2995 after 72,000 steps of 64 sequences of 1,024.

`pydoc_finewebedu`: 2 layers of width 64 on Python's own documentation. With AdamW (rate 0.01,
weight decay 0.1, batch 8) one seed of standard attention ends at a perplexity of 56.6 after 3,000
steps. Axes: B batch, L length, W width, H heads, D head size, V vocabulary.
"""

import math
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from attention import registry
from attention.call import LayerIndex, Memory
from attention.kernels.inputs import make_call
from attention.modifiers.rope import rotated
from workloads.base import sources, spec
from workloads.base.options import Options
from workloads.base.workload import Sizes
from workloads.base.workload_spec import WorkloadSpec
from workloads.text import transformer
from workloads.text.corpora import fineweb_data
from workloads.text.corpora.pydoc_text import PYDOC_FINEWEBEDU
from workloads.text.language_models import LMWorkload
from workloads.text.text_specs import TransformerSize

_BASE, _EPSILON = 500_000.0, 1e-6
_NORMAL = nn.initializers.normal(0.02)


class CausalAttn(nn.Module):
    """Projections around a variant, whose queries and keys are rotated and of length 1."""

    size: TransformerSize
    variant: Any
    dtype: Any

    @nn.compact
    def __call__(self, inputs: Array, index: int, memory: Memory) -> tuple[Array, Memory]:
        """Returns [B, L, W] for [B, L, W], and the memory for the next layer."""
        size = self.size
        query, key, value = (
            nn.DenseGeneral(
                (size.heads, size.head_size),
                use_bias=False,
                dtype=self.dtype,
                kernel_init=_NORMAL,
                name=name,
            )(inputs)
            for name in ("query", "key", "value")
        )
        start = jnp.log2(size.context**2 - size.context)
        # AlgoPerf creates it in the compute dtype: 20.0 in bfloat16.
        scale = self.param("attn_scale", lambda _: start.astype(self.dtype).astype(jnp.float32))
        query, key = (_of_length_1(rotated(heads, _BASE)) for heads in (query, key))
        call = make_call(
            query * scale.astype(self.dtype),
            key,
            value,
            x=inputs,
            layer=LayerIndex(index, size.layers),
            memory=memory,
            is_causal=True,
        )
        heads, memory = self.variant.attend(call, scale=1.0)
        out = _output(size, self.dtype, name="attn_out_proj")
        return out(heads.reshape(inputs.shape)), memory


def _of_length_1(heads: Array) -> Array:
    return heads / (jnp.linalg.norm(heads, axis=-1, keepdims=True) + _EPSILON)


def _output(size: TransformerSize, dtype: Any, **name: str) -> nn.Dense:
    """Returns a projection onto the residual, whose start is smaller with more layers."""
    start = nn.initializers.normal(0.02 / math.sqrt(2 * size.layers))
    return nn.Dense(size.width, use_bias=False, dtype=dtype, kernel_init=start, **name)


class Mlp(nn.Module):
    """One projection to twice the width, its first half times the sigmoid of the second."""

    size: TransformerSize
    dtype: Any

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        width = 2 * self.size.mlp_width
        hidden = nn.Dense(width, use_bias=False, dtype=self.dtype, kernel_init=_NORMAL)(inputs)
        return _output(self.size, self.dtype)(nn.glu(hidden))


class TBlock(nn.Module):
    """Attention and MLP behind norms, each added to the residual."""

    size: TransformerSize
    variant: Any
    dtype: Any

    @nn.compact
    def __call__(self, hidden: Array, index: int, memory: Memory) -> tuple[Array, Memory]:
        """Returns the residual [B, L, W] and the memory after the layer."""
        normed = nn.RMSNorm(epsilon=_EPSILON, dtype=self.dtype)(hidden)
        branch, memory = CausalAttn(self.size, self.variant, self.dtype)(normed, index, memory)
        hidden = hidden + branch
        normed = nn.RMSNorm(epsilon=_EPSILON, dtype=self.dtype)(hidden)
        return hidden + Mlp(self.size, self.dtype)(normed), memory


class Decoder(nn.Module):
    """The whole model. variant: from `attention.registry.get`; None is standard attention."""

    size: TransformerSize
    variant: Any = None
    options: Options = Options()
    devices: Any = None

    @nn.compact
    def __call__(
        self,
        tokens: Array,
        *,
        at: Array | None = None,
        train: bool = False,
        dropout_rate: Any = 0.0,
        to_logits: bool = True,
    ) -> Array:
        """Returns logits float32 [B, L, V] for tokens [B, L] int, as `transformer.Transformer`.

        It has no dropout.
        """
        dtype = jnp.dtype(self.options.compute_dtype)
        variant = registry.get("standard") if self.variant is None else self.variant
        embed = nn.Embed(
            self.size.vocabulary, self.size.width, dtype=dtype, embedding_init=_NORMAL, name="embed"
        )
        hidden: Array = embed(tokens)
        memory: Memory = {}
        for index in range(self.size.layers):
            block = TBlock(self.size, variant, dtype, name=f"blocks_{index}")
            hidden, memory = block(hidden, index, memory)
        if at is not None:
            hidden = jnp.take_along_axis(hidden, at[..., None], axis=-2)
        hidden = nn.RMSNorm(epsilon=_EPSILON, dtype=dtype, name="out_ln")(hidden)
        return transformer.logits(hidden, embed.embedding.astype(dtype)) if to_logits else hidden


class FinewebeduWorkload(LMWorkload):
    """Next-token prediction. Metrics: loss (nats per token) and ppl, its exponential.

    Batches: inputs int32 [B, L] and targets int32 [B, L], the next token of each; in evaluations
    weights float32 [B], 0 for sequences that fill up a batch.
    """

    parameter_rules = ()
    _is_pinned = False
    _perplexity = "ppl"
    _more_tokens = 1
    _lowest_token = 0

    def __init__(
        self, row: WorkloadSpec, variant: Any, options: Options, size: TransformerSize, sizes: Sizes
    ) -> None:
        super().__init__(row, variant, options, size, sizes)
        self._model = Decoder(size, variant, options)

    def is_output_params(self, param_key: str) -> bool:
        return param_key == "embed"

    def _embedding(self, params: spec.Parameters) -> Array:
        return params["embed"]["embedding"]

    def _open(self, split: str, data_dir: str) -> sources.Source:
        if self._row.embedded:
            return super()._open(split, data_dir)
        return fineweb_data.open_split(data_dir, split)

    def _eval_train(self, source: sources.Source) -> sources.Source:
        """The first ones, as AlgoPerf takes them."""
        return source

    def _finish(self, batch: spec.Batch, key: Array | None, step: Any) -> spec.Batch:
        tokens = batch.pop("tokens")
        return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], **batch}


# algoperf/workloads/finewebedu_lm/workload.py.
_FULL = Sizes(8_749_870, 10_000, 100_000, 0, eval_batch_size=64)
_SMALL = Sizes(
    PYDOC_FINEWEBEDU.sizes["train"],
    400,
    PYDOC_FINEWEBEDU.sizes["validation"],
    0,
    eval_batch_size=16,
)


def make(row: WorkloadSpec, variant: Any, options: Options) -> FinewebeduWorkload:
    """Returns AlgoPerf's workload, or the small one; use `workloads.registry.make`."""
    return FinewebeduWorkload(row, variant, options, row.model, _SMALL if row.embedded else _FULL)
