"""Our workloads against AlgoPerf's, measured, part by part: the rows of the parity table.

The command that prints it is `sweeps.algoperf.parity`, which adds what lies above workloads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from workloads.algoperf import installation
from workloads.algoperf.installation import Installation

if TYPE_CHECKING:
    from workloads.algoperf.parity.rows import Row

# From AlgoPerf and the names of workloads, for the parts that are about models, to the rows.
Maker = Callable[[Installation, Sequence[str]], Iterator["Row"]]

FULL_SIZE = ("imagenet_vit", "librispeech_conformer")
CONFORMERS = (
    *("librispeech_conformer", "librispeech_conformer_gelu"),
    *("librispeech_conformer_layernorm", "librispeech_conformer_attention_temperature"),
)
WORKLOADS = (*("imagenet_vit", "imagenet_vit_glu", "imagenet_vit_map"), *CONFORMERS)


def prepared(directory: str | None = None) -> Installation:
    """Returns AlgoPerf ready to be imported, with the flag that its random numbers ask for.

    Raises AlgoPerfMissingError as `installation.find`.
    """
    found = installation.find(directory)
    found.workloads_module()
    installation.define_framework()
    return found


def rows(
    found: Installation,
    parts: Sequence[str],
    workloads: Sequence[str] = (),
    makers: Mapping[str, Maker] | None = None,
) -> Iterator["Row"]:
    """Yields the rows of the named parts as they are measured.

    workloads: for the parts that are about models; all where none is named. makers: the parts
    there are, by name; default: PARTS. Raises ValueError for a part or workload that is not there.
    """
    makers = makers or PARTS
    for part in parts:
        if part not in makers:
            raise ValueError(f"--parts={part}: there is no such part; use {', '.join(makers)}")
    for name in workloads:
        if name not in WORKLOADS:
            raise ValueError(f"--workloads={name}: not compared; use {', '.join(WORKLOADS)}")
    for part in parts:
        yield from makers[part](found, workloads or WORKLOADS)


def _models(found: Installation, names: Sequence[str]) -> Iterator["Row"]:
    from workloads.algoperf.parity import models

    if "imagenet_vit" in names:
        yield from models.loss_rows(found)
    for name in names:
        yield from models.shape_rows(name, found)
        yield from models.model_rows(name, found, small=True)


def _full_size(found: Installation, names: Sequence[str]) -> Iterator["Row"]:
    from workloads.algoperf.parity import models

    for name in FULL_SIZE:
        if name in names:
            yield from models.model_rows(name, found, small=False)


def _variants(found: Installation, names: Sequence[str]) -> Iterator["Row"]:
    from workloads.algoperf.parity import variants as parity_variants

    for name in FULL_SIZE:
        for variant in parity_variants.variants_of(name) if name in names else ():
            yield from parity_variants.variant_rows(name, variant, found)


def _double(found: Installation, names: Sequence[str]) -> Iterator["Row"]:
    from workloads.algoperf.parity import models

    for name in CONFORMERS:
        variants = models.DOUBLE_VARIANTS if name in FULL_SIZE else ("standard",)
        for variant in variants if name in names else ():
            yield from models.double_rows(name, variant, found)


def _metrics(found: Installation, names: Sequence[str]) -> Iterator["Row"]:
    del names
    from workloads.algoperf.parity import metrics

    yield from metrics.accuracy_rows(found)
    yield from metrics.decoding_rows(found)
    yield from metrics.wer_rows(found)


def _inputs(found: Installation, names: Sequence[str]) -> Iterator["Row"]:
    del names
    from workloads.algoperf.parity import inputs

    yield from inputs.speech_rows(found)
    yield from inputs.image_rows(found)
    yield from inputs.mixup_rows(found)


# `models`, `variants` and `double` run few layers; `full_size` takes minutes for each model on CPU
# cores.
PARTS: Mapping[str, Maker] = {
    "metrics": _metrics,
    "inputs": _inputs,
    "models": _models,
    "variants": _variants,
    "double": _double,
    "full_size": _full_size,
}
