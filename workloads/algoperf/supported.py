"""Where the attention layers of AlgoPerf's workloads are. Loads no JAX.

Which workloads take a variant, and which variants: `workloads.algoperf_specs`.
"""

import dataclasses
import functools
import re
from collections.abc import Callable


def layer_index(pattern: str, path: str) -> int:
    """Returns the layer's index from 0 that `pattern` finds in an attention module's path.

    Raises ValueError where the model's names are not those that `pattern` was written for.
    """
    match = re.search(pattern, path)
    if match is None:
        raise ValueError(
            f"no {pattern!r} in {path!r}: AlgoPerf's model has other names than 2c90454"
        )
    return int(match[1])


def _vit_layer(path: str) -> int:
    # imagenet_vit_map pools with a thirteenth attention layer, as our own ViT counts it too.
    return 12 if "MAPHead" in path else layer_index(r"encoderblock_(\d+)", path)


_lm_layer = functools.partial(layer_index, r"blocks_(\d+)")
_conformer_layer = functools.partial(layer_index, r"ConformerBlock_(\d+)")
# Encoder and decoder count from 0 each; a decoder block's cross-attention has its block's index.
_wmt_layer = functools.partial(layer_index, r"encoder(?:decoder)?block_(\d+)")


@dataclasses.dataclass(frozen=True)
class InjectionPoint:
    """Where a variant enters one workload's model.

    `layers`: how many attention modules the model has at full size. `layer`: the layer's index by
    the path of its attention module. `traced`: methods beside
    `init_model_fn` and `model_fn` that call the model at every call. `jitted`: methods under
    `jax.jit`, which call it only while they are traced. `causal`: the model is not built on
    flax's attention module (`workloads.algoperf.causal_attention`).
    """

    layers: int
    layer: Callable[[str], int]
    traced: tuple[str, ...] = ()
    jitted: tuple[str, ...] = ()
    causal: bool = False


_CONFORMER = InjectionPoint(4, _conformer_layer)
# WMT's methods call their models themselves, not through model_fn (wmt_jax/workload.py). Six
# encoder blocks with one attention, six decoder blocks with two.
_WMT = InjectionPoint(18, _wmt_layer, ("predict_step",), ("eval_step", "initialize_cache"))

# By AlgoPerf's names of workloads. Names of modules: …_jax/models.py.
SUPPORTED: dict[str, InjectionPoint] = {
    "imagenet_vit": InjectionPoint(12, _vit_layer),
    "imagenet_vit_glu": InjectionPoint(12, _vit_layer),
    "imagenet_vit_map": InjectionPoint(13, _vit_layer),
    "librispeech_conformer": _CONFORMER,
    "librispeech_conformer_attention_temperature": _CONFORMER,
    "librispeech_conformer_layernorm": _CONFORMER,
    "librispeech_conformer_gelu": _CONFORMER,
    "wmt": _WMT,
    "wmt_post_ln": _WMT,
    "wmt_attention_temp": _WMT,
    "wmt_glu_tanh": _WMT,
    "finewebedu_lm": InjectionPoint(12, _lm_layer, causal=True),
}
