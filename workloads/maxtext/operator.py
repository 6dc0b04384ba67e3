"""MaxText's attention operator with a variant.

Sources: maxtext/layers/{attentions,attention_op}.py and maxtext/models/models.py of MaxText 0.2.5.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from attention import table
from attention.call import Call
from attention.kernels import inputs
from attention.masks import Mask
from attention.variant import Variant

Array = jax.Array

# Settings of MaxText that change attention itself: the values that are allowed.
SETTINGS: Mapping[str, tuple[Any, ...]] = {
    "attention_sink": (False,),
    "attn_logits_soft_cap": (None, 0.0),
    "moba": (False,),
    "mtp_num_layers": (0,),
    "quantize_kvcache": (False,),
    "use_indexer": (False,),
    "use_qk_clip": (False,),
    "use_ragged_attention": (False,),
    "using_pipeline_parallelism": (False,),
    "context_parallel_size": (1,),
}
# MaxText's kinds of attention (common_types.AttentionType): causal or not, with a window or not.
KINDS = {"global": (True, False), "local_sliding": (True, True), "full": (False, False)}
# After these the size of a query is no longer what its projection starts with, √(1/D) times its
# input's: the logits are divided by √D.
_NORMS = {"qk_norm", "qk_rms_norm"}
# Sets the random numbers of leaves apart from those of MaxText's parameters; any number would do.
_LEAVES = 1_297_365_332


def check_config(config: Any, variant: str) -> None:
    """Raises ValueError for settings of MaxText's that would change attention beside a variant."""
    for name, allowed in SETTINGS.items():
        value = getattr(config, name, allowed[0])
        if value not in allowed:
            raise ValueError(
                f"{name}={value!r} changes MaxText's own attention, which {variant!r} replaces; "
                f"give {name}={allowed[-1]!r}"
            )
    if config.use_qk_norm and _NORMS & {*table.modifiers(variant)}:
        raise ValueError(
            f"use_qk_norm=True: MaxText normalises queries and keys itself, and {variant!r} would "
            "do it twice; drop the modifier, or give use_qk_norm=False"
        )


@dataclasses.dataclass
class Substitution:
    """A variant in MaxText's attention operators.

    x [B, T, W]: the input of the attention layer that runs. calls: of operators, in the model that
    runs. layers: how many layers ran the variant, None before a model was traced.
    """

    variant: Variant
    x: Array | None = None
    calls: int = 0
    layers: int | None = None

    def make_leaves(self, operator: Any, rngs: Any) -> None:
        """Gives an operator the variant's learned leaves as parameters, float32.

        They are drawn without advancing `rngs`, so that all variants start with the same model.
        """
        heads, width = operator.num_query_heads, operator.config.emb_dim
        size = operator.config.head_dim

        query, keys = (jnp.zeros((1, 2, n, size)) for n in (heads, operator.num_kv_heads))
        x = jnp.zeros((1, 2, width))
        call = inputs.make_call(query, keys, keys, x=x, is_causal=True)
        stream = rngs.params
        key = jax.random.fold_in(stream.key.get_value(), stream.count.get_value())
        leaves = self.variant.leaves(call, jax.random.fold_in(key, _LEAVES))
        if leaves:
            operator.leaves = nnx.Dict(
                {
                    path.replace("/", "_"): nnx.Param(leaf, out_sharding=(None,) * leaf.ndim)
                    for path, leaf in leaves.items()
                }
            )
            operator.leaf_paths = tuple(leaves)

    def make(self, original: Callable[..., None], operator: Any, *args: Any, **named: Any) -> None:
        """Makes an operator, with the variant's leaves."""
        original(operator, *args, **named)
        self.make_leaves(operator, named["rngs"])

    def attend(
        self,
        original: Callable[..., Array],
        operator: Any,
        query: Array,
        key: Array,
        value: Array,
        decoder_segment_ids: Array | None,
        inputs_positions: Array | None,
        model_mode: str,
        *args: Any,
        **named: Any,
    ) -> Array:
        """Returns the output [B, T, H, D] of an operator, in place of `original`.

        query [B, T, H, D]; key, value [B, T, K, D]; decoder_segment_ids: int [B, T], negative where
        nothing lies; inputs_positions: MaxText has rotated by them. Other arguments are those of
        decoding, sinks, images and sparse attention. Raises ValueError for them.
        """
        extra = [x for x in jax.tree.leaves((args, named)) if not isinstance(x, int) or x]
        if extra or model_mode != "train":
            raise ValueError(
                f"MaxText asks its attention for more than training does (mode {model_mode!r}: "
                "decoding, sinks, images or sparse attention), which "
                f"{self.variant.name!r} does not have; train a decoder of text without them"
            )
        self.calls += 1
        call = self._call(operator, query, key, value, decoder_segment_ids)
        paths = getattr(operator, "leaf_paths", ())
        leaves = {path: operator.leaves[path.replace("/", "_")].get_value() for path in paths}
        scale = query.shape[-1] ** -0.5 if _NORMS & {*self.variant.modifiers} else 1.0
        precision = operator.config.matmul_precision
        return self.variant.attend(call, leaves=leaves, scale=scale, precision=precision)[0]

    def run_layer(
        self, original: Callable[..., Any], layer: Any, inputs_q: Array, *args: Any, **named: Any
    ) -> Any:
        """Runs an attention layer, whose input the operator in it gets."""
        outer, self.x = self.x, inputs_q
        try:
            return original(layer, inputs_q, *args, **named)
        finally:
            self.x = outer

    def run_model(self, original: Callable[..., Any], model: Any, *args: Any, **named: Any) -> Any:
        """Runs a model, and checks that all its layers ran the variant."""
        self.calls = 0
        output = original(model, *args, **named)
        self._check_layers(model)
        return output

    def _call(
        self, operator: Any, query: Array, key: Array, value: Array, segments: Array | None
    ) -> Call:
        kind = operator.attention_type.value
        if kind not in KINDS:
            raise ValueError(
                f"attention_type={kind!r} of MaxText: {self.variant.name!r} runs in "
                f"{', '.join(KINDS)}; choose another model, or train without --attention"
            )
        is_causal, is_local = KINDS[kind]
        if not is_causal:
            lacks = {"causal": "attends to both sides"}
            table.check_model(self.variant.name, lacks, f"MaxText's attention_type={kind!r}")
        mask = Mask(
            width=operator.sliding_window_size if is_local else None,
            segments=None if segments is None else (segments, segments),
            keys=None if segments is None else segments >= 0,
        )
        return inputs.make_call(query, key, value, x=self.x, mask=mask, is_causal=is_causal)

    def _check_layers(self, model: Any) -> None:
        """Raises ValueError unless every decoder layer of a model that just ran ran the variant."""
        stacks = [
            _layers_of(module, model.config)
            for _, module in nnx.iter_graph(model.decoder)
            if hasattr(module, "attention_op")
        ]
        expected, is_exact = model.config.num_decoder_layers, set(stacks) <= {1}
        # A scanned layer is traced once or more often.
        ran_all = self.calls == len(stacks) if is_exact else self.calls >= len(stacks)
        if sum(stacks) != expected or not ran_all:
            raise ValueError(
                f"{self.variant.name!r} ran in {self.calls} calls of {len(stacks)} attention "
                f"operators, which serve {sum(stacks)} layers, and MaxText's model has {expected} "
                "decoder layers: some attend in another way. Choose a decoder whose layers all "
                "have MaxText's AttentionOp"
            )
        self.layers = expected


def _layers_of(module: Any, config: Any) -> int:
    """Returns how many layers a module with an attention operator stands for: those scanned."""
    shape = module.out.kernel.get_value().shape
    return shape[config.param_scan_axis] if len(shape) > 3 else 1


@contextlib.contextmanager
def substituted(variant: Variant) -> Iterator[Substitution]:
    """Puts a variant into every attention operator that MaxText makes and calls inside.

    Raises ValueError for what a variant cannot serve, and on a clean exit if no model ran.
    """
    from maxtext.layers import attention_op, attentions
    from maxtext.models import models

    substitution = Substitution(variant)

    replaced = (
        (attention_op.AttentionOp, "__init__", substitution.make),
        (attention_op.AttentionOp, "__call__", substitution.attend),
        (attentions.Attention, "__call__", substitution.run_layer),
        (models.Transformer, "__call__", substitution.run_model),
    )
    with contextlib.ExitStack() as stack:
        for owner, name, function in replaced:
            original = getattr(owner, name)
            stack.callback(setattr, owner, name, original)
            setattr(owner, name, _method(function, original))
        yield substitution
    if substitution.layers is None:
        raise ValueError(f"MaxText ended without running a model, so {variant.name!r} never ran")


def _method(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that calls `function` with the original method before its arguments."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **named: Any) -> Any:
        return function(original, self, *args, **named)

    return method
