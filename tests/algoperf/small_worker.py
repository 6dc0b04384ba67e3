"""`sweeps` with AlgoPerf's models at small sizes: `small_worker.py DIRECTORY ...`.

What follows AlgoPerf's directory goes to `python -m sweeps`.
"""

import functools
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from sweeps import __main__ as command
from tests.algoperf import small_models
from workloads.algoperf import installation, supported

VIT = {"width": 32, "depth": 2, "mlp_dim": 64, "num_heads": 2, "patch_size": (56, 56)}
CONFORMER = {"encoder_dim": 16, "num_attention_heads": 2, "num_encoder_layers": 2}
TRANSFORMER = {
    "emb_dim": 16, "num_heads": 2, "num_layers": 2, "qkv_dim": 16, "mlp_dim": 32, "max_len": 256
}  # fmt: skip


# A decoder block of wmt's has two.
LAYERS = {"imagenet_vit": 2, "imagenet_vit_map": 3, "librispeech_conformer": 2, "wmt": 6}
FULL_SIZE = {"finewebedu_lm": supported.SUPPORTED["finewebedu_lm"].layers}


def small(found):
    """Yields (module, attribute, value) that make the models small; the rest is AlgoPerf's."""
    yield supported, "SUPPORTED", small_models.table(LAYERS | FULL_SIZE)
    module = found.module("algoperf.workloads.imagenet_vit.imagenet_jax.workload")
    yield module, "decode_variant", lambda variant: VIT
    for path, config, sizes in (
        ("librispeech_conformer.librispeech_jax", "ConformerConfig", CONFORMER),
        ("wmt.wmt_jax", "TransformerConfig", TRANSFORMER),
    ):
        models = found.module(f"algoperf.workloads.{path}.models")
        yield models, config, functools.partial(getattr(models, config), **sizes)


if __name__ == "__main__":
    found = installation.find(sys.argv.pop(1))
    of_stand_in = [(supported, "SUPPORTED", small_models.table(small_models.OF_STAND_IN))]
    is_real = found.directory != pathlib.Path(__file__).resolve().parent / "stand_in"
    for change in list(small(found)) if is_real else of_stand_in:
        setattr(*change)
    sys.exit(command.main())
