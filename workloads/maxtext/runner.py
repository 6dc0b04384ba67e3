"""MaxText's own training with our attention: `python -m workloads maxtext`.

MaxText's `train` is executed unmodified; four methods of its classes are replaced, in memory
(`substituted`). Their sources: maxtext/layers/{attentions,attention_op}.py and
maxtext/models/models.py of MaxText 0.2.5. A record of the run lies beside its `metrics_file`, for
`analysis`.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import importlib.util
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import jax
from flax import nnx

from attention import registry, table
from attention.adapters.injection import check_normalised, example_call
from attention.common import files
from attention.kernels import inputs
from attention.masks import Mask
from attention.variant import Variant

RECORD = "maxtext.json"
# What MaxText does not give a variant, and why.
LACKS = {
    "layer": "does not tell an attention operator its layer's index",
    "memory": "hands nothing on from layer to layer",
    "rope": "rotates its queries and keys itself",
}
# What tells runs of one hyperparameter point apart.
_OF_A_RUN = (
    *("run_name", "metrics_file", "base_output_directory"),
    *("init_weights_seed", "data_shuffle_seed"),
)

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
# MaxText's kinds of attention (common_types.AttentionType): causal or not, with a window or not,
# and what they do not give a variant.
KINDS: Mapping[str, tuple[bool, bool, Mapping[str, str]]] = {
    "global": (True, False, {}),
    "local_sliding": (True, True, {}),
    "full": (False, False, {"causal": "attends to both sides"}),
}


def run(variant: str, tau: float | None, arguments: Sequence[str]) -> None:
    """Runs MaxText's training with the variant; returns when it has ended.

    arguments: a configuration file and key=value, as MaxText takes them. Raises ValueError for a
    variant or a setting that cannot be used together, and without MaxText.
    """
    hyperparameters: dict[str, Any] = {} if tau is None else {"tau": tau}
    chosen = registry.get(variant, **hyperparameters)
    table.check_model(variant, LACKS, "MaxText")
    if not arguments or "=" in arguments[0]:
        raise ValueError(
            "no configuration of MaxText's; give its file and settings after `--`: "
            "... -- CONFIG.yml run_name=NAME steps=100"
        )
    if importlib.util.find_spec("maxtext") is None:
        raise ValueError(
            f"MaxText is not installed in this Python {sys.version_info[0]}.{sys.version_info[1]}; "
            f"it needs Python 3.12 or newer: pip install 'maxtext[tpu]==0.2.5' (docs/maxtext.md)"
        )
    from absl import logging
    from maxtext.trainers.pre_train import train

    # As absl's app.run does, which MaxText starts by: its lines of steps are shown.
    logging.use_absl_handler()
    logging.set_verbosity(logging.INFO)
    original = train.initialize

    def initialize(argv: Sequence[str]) -> Any:
        config, recorder = original(argv)
        check_config(config, chosen)
        if config.metrics_file:
            _write_record(config, chosen.name, tau, arguments)
        return config, recorder

    with (
        mock.patch.object(train, "initialize", initialize),
        substituted(chosen) as substitution,
    ):
        train.main(["maxtext", *arguments])
    print(
        f"python -m workloads maxtext: {chosen.name!r} ran in all {substitution.layers} layers",
        file=sys.stderr,
    )


def _write_record(config: Any, variant: str, tau: float | None, arguments: Sequence[str]) -> None:
    """Writes which variant trains beside the run's metrics file.

    Raises ValueError if a run with another metrics file has its record there.
    """
    metrics = pathlib.Path(config.metrics_file)
    path = metrics.parent / RECORD
    if (
        path.is_file()
        and json.loads(path.read_text(encoding="utf-8"))["metrics_file"] != metrics.name
    ):
        raise ValueError(
            f"{path} is another run's; give each run a folder: metrics_file=RUN/m.jsonl"
        )
    metrics.parent.mkdir(parents=True, exist_ok=True)
    settings = dict(argument.split("=", 1) for argument in arguments[1:])
    record = {
        "attention": variant,
        "attention_tau": tau,
        "workload": f"maxtext:{config.model_name}_{config.dataset_type.value}",
        "rng_seed": config.init_weights_seed,
        "num_train_steps": config.steps,
        "metrics_file": metrics.name,
        "hyperparameters": {key: value for key, value in settings.items() if key not in _OF_A_RUN},
        "versions": {name: importlib.metadata.version(name) for name in ("maxtext", "jax", "flax")},
    }
    files.write(path, json.dumps(record, indent=1) + "\n")


def check_config(config: Any, variant: Variant) -> None:
    """Raises ValueError for settings of MaxText's that would change attention beside a variant."""
    for name, allowed in SETTINGS.items():
        value = getattr(config, name, allowed[0])
        if value not in allowed:
            raise ValueError(
                f"{name}={value!r} changes MaxText's own attention, which {variant.name!r} "
                f"replaces; give {name}={allowed[-1]!r}"
            )
    check_normalised(config.use_qk_norm, variant)


@dataclasses.dataclass
class Substitution:
    """A variant in MaxText's attention operators.

    x [B, T, W]: the input of the attention layer that runs. calls: of operators, in the model that
    runs. layers: how many layers ran the variant, None before a model was traced.
    """

    variant: Variant
    x: jax.Array | None = None
    calls: int = 0
    layers: int | None = None

    def make(
        self, operator: Any, original: Callable[..., None], *args: Any, rngs: Any, **named: Any
    ) -> None:
        """Makes an operator, with the variant's learned leaves as parameters, float32.

        They are drawn without advancing `rngs`, so that all variants start with the same model.
        """
        original(operator, *args, rngs=rngs, **named)
        width = operator.config.emb_dim
        call = example_call(
            self.variant,
            operator.num_query_heads,
            operator.num_kv_heads,
            operator.config.head_dim,
            width,
        )
        key = jax.random.fold_in(rngs.params.key.get_value(), rngs.params.count.get_value())
        # The number sets leaves apart from MaxText's parameters; any would do.
        leaves = self.variant.leaves(call, jax.random.fold_in(key, 1_297_365_332))
        operator.leaf_paths = tuple(leaves)
        if leaves:
            operator.leaves = nnx.Dict(
                {
                    path.replace("/", "_"): nnx.Param(leaf, out_sharding=_axes(leaf, width))
                    for path, leaf in leaves.items()
                }
            )

    def attend(
        self,
        operator: Any,
        original: Callable[..., jax.Array],
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        decoder_segment_ids: jax.Array | None,
        inputs_positions: jax.Array | None,
        model_mode: str,
        *args: Any,
        **named: Any,
    ) -> jax.Array:
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
        kind, segments = operator.attention_type.value, decoder_segment_ids
        if kind not in KINDS:
            raise ValueError(
                f"attention_type={kind!r} of MaxText: {self.variant.name!r} runs in "
                f"{', '.join(KINDS)}; choose another model, or train without --attention"
            )
        is_causal, is_local, lacks = KINDS[kind]
        table.check_model(self.variant.name, lacks, f"MaxText's attention_type={kind!r}")
        mask = Mask(
            width=operator.sliding_window_size if is_local else None,
            segments=None if segments is None else (segments, segments),
            keys=None if segments is None else segments >= 0,
        )
        call = inputs.make_call(query, key, value, x=self.x, mask=mask, is_causal=is_causal)
        # After a norm the size of a query is no longer what its projection starts with, √(1/D)
        # times its input's: the logits are divided by √D.
        is_normalised = not {"qk_norm", "qk_rms_norm"}.isdisjoint(self.variant.modifiers)
        return self.variant.attend(
            call,
            leaves={
                path: operator.leaves[path.replace("/", "_")].get_value()
                for path in operator.leaf_paths
            },
            scale=query.shape[-1] ** -0.5 if is_normalised else 1.0,
            precision=operator.config.matmul_precision,
        )[0]

    def run_layer(
        self,
        layer: Any,
        original: Callable[..., Any],
        inputs_q: jax.Array,
        *args: Any,
        **named: Any,
    ) -> Any:
        """Runs an attention layer, whose input the operator in it gets."""
        self.x = inputs_q
        output = original(layer, inputs_q, *args, **named)
        self.x = None
        return output

    def run_model(self, model: Any, original: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Runs a model. Raises ValueError unless every decoder layer ran the variant."""
        self.calls = 0
        output = original(model, *args, **named)
        kernels = [
            module.out.kernel.get_value()
            for _, module in nnx.iter_graph(model.decoder)
            if hasattr(module, "attention_op")
        ]
        # How many layers each operator stands for: those scanned.
        axis, expected = model.config.param_scan_axis, model.config.num_decoder_layers
        stacks = [kernel.shape[axis] if kernel.ndim > 3 else 1 for kernel in kernels]
        # A scanned layer is traced once or more often.
        most = len(stacks) if set(stacks) <= {1} else self.calls
        if sum(stacks) != expected or not len(stacks) <= self.calls <= most:
            raise ValueError(
                f"{self.variant.name!r} ran in {self.calls} calls of {len(stacks)} attention "
                f"operators, which serve {sum(stacks)} layers, and MaxText's model has {expected} "
                "decoder layers: some attend in another way. Choose a decoder whose layers all "
                "have MaxText's AttentionOp"
            )
        self.layers = expected
        return output


def _axes(leaf: jax.Array, width: int) -> tuple[str | None, ...]:
    """Returns the names of a leaf's axes for MaxText's rules, which divide [W, …] over devices."""
    others = (None,) * (leaf.ndim - 1)
    return ("embed" if others and leaf.shape[0] == width else None, *others)[: leaf.ndim]


@contextlib.contextmanager
def substituted(variant: Variant) -> Iterator[Substitution]:
    """Puts a variant into every attention operator that MaxText makes and calls inside.

    Raises ValueError for what a variant cannot serve, and on a clean exit if no model ran.
    """
    from maxtext.layers import attentions
    from maxtext.models import models

    substitution = Substitution(variant)
    replaced: tuple[tuple[type, str, Callable[..., Any]], ...] = (
        (attentions.AttentionOp, "__init__", substitution.make),
        (attentions.AttentionOp, "__call__", substitution.attend),
        (attentions.Attention, "__call__", substitution.run_layer),
        (models.Transformer, "__call__", substitution.run_model),
    )
    with contextlib.ExitStack() as stack:
        for owner, name, function in replaced:
            stack.enter_context(
                mock.patch.object(owner, name, _method(function, getattr(owner, name)))
            )
        yield substitution
    if substitution.layers is None:
        raise ValueError(f"MaxText ended without running a model, so {variant.name!r} never ran")


def _method(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that gives `function` the original method after its object."""
    return functools.wraps(original)(
        lambda self, *args, **named: function(self, original, *args, **named)
    )
