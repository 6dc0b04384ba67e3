"""AlgoPerf's commands with models that tests make small: other numbers of attention layers.

`python -m tests.algoperf.small_models MODULE ...` is `python -m MODULE ...` with the stand-in's.
"""

import dataclasses
import functools
import runpy
import sys

from workloads import algoperf_specs

# By the start of a workload's name; the longest counts.
OF_STAND_IN = {
    "imagenet_vit": 2,
    "imagenet_vit_map": 3,
    "librispeech_conformer": 2,
    "wmt": 2,
    "finewebedu_lm": 2,
}

VIT = {"width": 32, "depth": 2, "mlp_dim": 64, "num_heads": 2, "patch_size": (56, 56)}
CONFORMER = {"encoder_dim": 16, "num_attention_heads": 2, "num_encoder_layers": 2}
TRANSFORMER = {
    "emb_dim": 16, "num_heads": 2, "num_layers": 2, "qkv_dim": 16, "mlp_dim": 32, "max_len": 256
}  # fmt: skip
# A decoder block of wmt's has two.
LAYERS = {"imagenet_vit": 2, "imagenet_vit_map": 3, "librispeech_conformer": 2, "wmt": 6}
FULL_SIZE = {"finewebedu_lm": algoperf_specs.INJECTION_POINTS["finewebedu_lm"].layers}


def table(layers):
    """`algoperf_specs.INJECTION_POINTS` with other numbers of layers."""

    def of(name):
        return layers[max((start for start in layers if name.startswith(start)), key=len)]

    return {
        name: dataclasses.replace(entry, layers=of(name))
        for name, entry in algoperf_specs.INJECTION_POINTS.items()
    }


def small(installation):
    """Yields (module, attribute, value) that make the models small; the rest is AlgoPerf's."""
    yield algoperf_specs, "INJECTION_POINTS", table(LAYERS | FULL_SIZE)
    module = installation.module("algoperf.workloads.imagenet_vit.imagenet_jax.workload")
    yield module, "decode_variant", lambda variant: VIT
    for path, config, sizes in (
        ("librispeech_conformer.librispeech_jax", "ConformerConfig", CONFORMER),
        ("wmt.wmt_jax", "TransformerConfig", TRANSFORMER),
    ):
        models = installation.module(f"algoperf.workloads.{path}.models")
        yield models, config, functools.partial(getattr(models, config), **sizes)


if __name__ == "__main__":
    algoperf_specs.INJECTION_POINTS = table(OF_STAND_IN)
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
