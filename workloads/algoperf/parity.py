"""`python -m workloads algoperf_parity`: our workloads against AlgoPerf's, measured, as a table."""

import argparse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from workloads.algoperf import installation
from workloads.algoperf.installation import Installation

if TYPE_CHECKING:
    from workloads.algoperf.parity_rows import Row

# `models` and `variants` run few layers; `full_size` takes minutes for each model on CPU cores.
PARTS = ("metrics", "inputs", "models", "variants", "full_size")
FULL_SIZE = ("imagenet_vit", "librispeech_conformer")
WORKLOADS = (
    *("imagenet_vit", "imagenet_vit_glu", "imagenet_vit_map"),
    *("librispeech_conformer", "librispeech_conformer_gelu"),
    *("librispeech_conformer_layernorm", "librispeech_conformer_attention_temperature"),
)


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command to the parser of `python -m workloads`."""
    command = commands.add_parser(
        "algoperf_parity",
        help="our workloads against AlgoPerf's own: the table of differences",
        description="Measures every difference anew. Exit status 1 where one is too large.",
    )
    command.add_argument("--algoperf_dir", help="AlgoPerf's checkout; default: the installed one")
    command.add_argument(
        "--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}; default: all"
    )
    command.add_argument(
        "--workloads", default="", help="parts about models: of these workloads alone"
    )
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    try:
        found = prepared(options.algoperf_dir)
        workloads = tuple(options.workloads.split(",")) if options.workloads else ()
        return _print(found, options.parts.split(","), workloads)
    except installation.AlgoPerfMissingError as error:
        raise ValueError(str(error)) from error


def prepared(directory: str | None = None) -> Installation:
    """Returns AlgoPerf ready to be imported, with the flag that its random numbers ask for.

    Raises AlgoPerfMissingError as `installation.find`.
    """
    found = installation.find(directory)
    found.workloads_module()
    _define_framework()
    return found


def _define_framework() -> None:
    """Does for `algoperf.random_utils` what submission_runner.py does: FLAGS.framework."""
    from absl import flags

    if "framework" not in flags.FLAGS:
        flags.DEFINE_string("framework", "jax", "as AlgoPerf's submission_runner.py")
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["attnperf", "--framework=jax"])


def _print(found: Installation, parts: list[str], workloads: tuple[str, ...]) -> int:
    from workloads.algoperf import parity_rows

    version = found.commit[:12] if found.commit else found.version or "of unknown version"
    print(f"AlgoPerf {version}; {parity_rows.versions()}", flush=True)
    header, rule = parity_rows.table(())
    print(f"\n{header}\n{rule}", flush=True)
    failed = total = 0
    for row in rows(found, parts, workloads):
        print(parity_rows.table((row,))[-1], flush=True)
        total, failed = total + 1, failed + (not row.passed)
    print(f"\n{total} quantities, {failed} beyond their tolerance")
    return 1 if failed else 0


def rows(found: Installation, parts: list[str], workloads: tuple[str, ...] = ()) -> Iterator["Row"]:
    """Yields the table's rows as they are measured; of all workloads where none is named.

    Raises ValueError for a part or workload that does not exist.
    """
    makers: dict[str, Callable[[Installation, tuple[str, ...]], Iterator[Row]]] = {
        "metrics": _metrics,
        "inputs": _inputs,
        "models": _models,
        "variants": _variants,
        "full_size": _full_size,
    }
    for part in parts:
        if part not in makers:
            raise ValueError(f"--parts={part}: there is no such part; use {', '.join(makers)}")
    for name in workloads:
        if name not in WORKLOADS:
            raise ValueError(f"--workloads={name}: not compared; use {', '.join(WORKLOADS)}")
    for part in parts:
        yield from makers[part](found, workloads or WORKLOADS)


def _models(found: Installation, names: tuple[str, ...]) -> Iterator["Row"]:
    from workloads.algoperf import parity_models

    if "imagenet_vit" in names:
        yield from parity_models.loss_rows(found)
    for name in names:
        yield from parity_models.shape_rows(name, found)
        yield from parity_models.model_rows(name, found, small=True)


def _full_size(found: Installation, names: tuple[str, ...]) -> Iterator["Row"]:
    from workloads.algoperf import parity_models

    for name in FULL_SIZE:
        if name in names:
            yield from parity_models.model_rows(name, found, small=False)


def _variants(found: Installation, names: tuple[str, ...]) -> Iterator["Row"]:
    from workloads.algoperf import parity_variants

    for name in FULL_SIZE:
        for variant in parity_variants.variants_of(name) if name in names else ():
            yield from parity_variants.variant_rows(name, variant, found)


def _metrics(found: Installation, names: tuple[str, ...]) -> Iterator["Row"]:
    del names
    from workloads.algoperf import parity_metrics

    yield from parity_metrics.accuracy_rows(found)
    yield from parity_metrics.decoding_rows(found)
    yield from parity_metrics.wer_rows(found)


def _inputs(found: Installation, names: tuple[str, ...]) -> Iterator["Row"]:
    del names
    from workloads.algoperf import parity_inputs

    yield from parity_inputs.speech_rows(found)
    yield from parity_inputs.image_rows(found)
    yield from parity_inputs.mixup_rows(found)
