"""Which AlgoPerf workloads take our attention, and where their layers are. Loads no JAX."""

import dataclasses
import difflib
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


def _vit_depth(path: str) -> int:
    # imagenet_vit_map pools with a thirteenth attention layer, as our own ViT counts it too.
    return 12 if "MAPHead" in path else layer_index(r"encoderblock_(\d+)", path)


_lm_depth = functools.partial(layer_index, r"blocks_(\d+)")
_conformer_depth = functools.partial(layer_index, r"ConformerBlock_(\d+)")
# Encoder and decoder count from 0 each; a decoder block's cross-attention has its block's index.
_wmt_depth = functools.partial(layer_index, r"encoder(?:decoder)?block_(\d+)")


@dataclasses.dataclass(frozen=True)
class InjectionPoint:
    """Where a variant enters one workload's model.

    `layers`: how many attention modules the model has at full size. `depth`: the layer's index by
    the path of its attention module. `traced`: methods beside
    `init_model_fn` and `model_fn` that call the model at every call. `jitted`: methods under
    `jax.jit`, which call it only while they are traced. `own_attention`: the model is not built on
    flax's attention module (`workloads.algoperf.causal_attention`). What the model can take:
    `workloads.algoperf_specs`.
    """

    class_name: str
    layers: int
    depth: Callable[[str], int]
    traced: tuple[str, ...] = ()
    jitted: tuple[str, ...] = ()
    own_attention: bool = False


def _wmt(class_name: str) -> InjectionPoint:
    # These call their models themselves, not through model_fn (wmt_jax/workload.py). Six encoder
    # blocks with one attention, six decoder blocks with two.
    return InjectionPoint(
        class_name, 18, _wmt_depth, ("predict_step",), ("eval_step", "initialize_cache")
    )


# Class names: algoperf/workloads/workloads.py. Module names: …_jax/models.py.
SUPPORTED: dict[str, InjectionPoint] = {
    "imagenet_vit": InjectionPoint("ImagenetVitWorkload", 12, _vit_depth),
    "imagenet_vit_glu": InjectionPoint("ImagenetVitGluWorkload", 12, _vit_depth),
    "imagenet_vit_map": InjectionPoint("ImagenetVitMapWorkload", 13, _vit_depth),
    "librispeech_conformer": InjectionPoint("LibriSpeechConformerWorkload", 4, _conformer_depth),
    "librispeech_conformer_attention_temperature": InjectionPoint(
        "LibriSpeechConformerAttentionTemperatureWorkload", 4, _conformer_depth
    ),
    "librispeech_conformer_layernorm": InjectionPoint(
        "LibriSpeechConformerLayerNormWorkload", 4, _conformer_depth
    ),
    "librispeech_conformer_gelu": InjectionPoint(
        "LibriSpeechConformerGeluWorkload", 4, _conformer_depth
    ),
    "wmt": _wmt("WmtWorkload"),
    "wmt_post_ln": _wmt("WmtWorkloadPostLN"),
    "wmt_attention_temp": _wmt("WmtWorkloadAttentionTemp"),
    "wmt_glu_tanh": _wmt("WmtWorkloadGLUTanH"),
    "finewebedu_lm": InjectionPoint("LmWorkload", 12, _lm_depth, own_attention=True),
}

_REFUSED: dict[str, str] = {
    "imagenet_vit_post_ln": (
        "AlgoPerf itself cannot run it at 2c90454: Encoder1DBlock calls the output of its second "
        "Dropout, `Dropout(rate)(y, train)(rate=rate)`, and an array cannot be called "
        "(imagenet_vit/imagenet_jax/models.py)"
    ),
}
# By the start of their names.
_WITHOUT_ATTENTION = (
    "cifar",
    "criteo1tb",
    "fastmri",
    "imagenet_resnet",
    "librispeech_deepspeech",
    "mnist",
    "ogbg",
)


def injection_point(name: str) -> InjectionPoint:
    """Returns where a variant enters the workload `name`.

    Raises ValueError with the reason, and what works, for one that cannot be.
    """
    if name in SUPPORTED:
        return SUPPORTED[name]
    if name in _REFUSED:
        reason = _REFUSED[name]
    elif name.startswith(_WITHOUT_ATTENTION):
        reason = "its model has no attention"
    else:
        near = difflib.get_close_matches(name, SUPPORTED, n=1)
        reason = "it is not known" + (f" (did you mean {near[0]!r}?)" if near else "")
    raise ValueError(
        f"workload {name!r} does not take --attention: {reason}. These do: {', '.join(SUPPORTED)}"
    )


def name_of_class(class_name: str) -> str:
    """Returns the workload's name for its class. Raises ValueError for another class."""
    names = {entry.class_name: name for name, entry in SUPPORTED.items()}
    if class_name not in names:
        raise ValueError(
            f"workload class {class_name!r} does not take an attention variant. These do: "
            + ", ".join(f"{name} ({known})" for known, name in names.items())
        )
    return names[class_name]
