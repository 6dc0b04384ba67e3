"""Where the attention layers of AlgoPerf's workloads are. Loads no JAX.

Which workloads take a variant, and which variants: `workloads.algoperf_specs`.
"""

import dataclasses
import re


def layer_index(path: str, layers: int) -> int:
    """Returns a layer's index from 0, by the path of its attention module: 'encoderblock_3/…',
    'ConformerBlock_0/…', 'blocks_1/…'; a pooling layer comes behind all `layers`.

    Encoder and decoder count from 0 each; a decoder block's cross-attention has its block's index.
    Raises ValueError where the path has no such name.
    """
    if "MAPHead" in path:
        return layers
    match = re.search(r"blocks?_(\d+)", path, re.IGNORECASE)
    if match is None:
        raise ValueError(
            f"no layer number in {path!r}, and the variant needs one: the model has other names "
            "than the tested versions"
        )
    return int(match[1])


@dataclasses.dataclass(frozen=True)
class InjectionPoint:
    """Where a variant enters one workload's model.

    `layers`: how many attention modules the model has at full size. `traced`: methods beside
    `init_model_fn` and `model_fn` that call the model at every call. `jitted`: methods under
    `jax.jit`, which call it only while they are traced. `causal`: the model is not built on
    flax's attention module (`workloads.algoperf.causal_attention`).
    """

    layers: int
    traced: tuple[str, ...] = ()
    jitted: tuple[str, ...] = ()
    causal: bool = False

    def layer(self, path: str) -> int:
        """Returns the index of a layer; imagenet_vit_map pools with a thirteenth, the last."""
        return layer_index(path, self.layers - 1)


_CONFORMER = InjectionPoint(4)
# WMT's methods call their models themselves, not through model_fn (wmt_jax/workload.py). Six
# encoder blocks with one attention, six decoder blocks with two.
_WMT = InjectionPoint(18, ("predict_step",), ("eval_step", "initialize_cache"))

# By AlgoPerf's names of workloads. Names of modules: …_jax/models.py.
SUPPORTED: dict[str, InjectionPoint] = {
    "imagenet_vit": InjectionPoint(12),
    "imagenet_vit_glu": InjectionPoint(12),
    "imagenet_vit_map": InjectionPoint(13),
    "librispeech_conformer": _CONFORMER,
    "librispeech_conformer_attention_temperature": _CONFORMER,
    "librispeech_conformer_layernorm": _CONFORMER,
    "librispeech_conformer_gelu": _CONFORMER,
    "wmt": _WMT,
    "wmt_post_ln": _WMT,
    "wmt_attention_temp": _WMT,
    "wmt_glu_tanh": _WMT,
    "finewebedu_lm": InjectionPoint(12, causal=True),
}
