"""Which trials may share a pack: computed as one by vmap, on one device. Standard library only."""

import itertools
from collections.abc import Sequence
from typing import Any

from attention import table as variants_table
from sweeps.study.trial import Trial

# cudnn is one fused call with its own layout rules, whose batching over members nobody has checked.
KERNELS = ("xla", "jax_xla")


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError for a study's settings that cannot be packed, naming what can be."""
    pack, kernel, mesh = settings["pack"], settings["kernel"], settings["mesh"]
    if pack < 1:
        raise ValueError(f"pack is {pack}; give 1 (each trial by itself) or more")
    if pack == 1:
        return
    if kernel not in KERNELS:
        known = variants_table.unknown("kernel", kernel, KERNELS)
        raise ValueError(f"pack={pack}: {known} Or set --config.pack=1")
    if mesh["data"] > 1 or mesh["fsdp"] > 1 or mesh["tensor"] > 1:
        sizes = ", ".join(f"mesh.{axis}={size}" for axis, size in mesh.items())
        raise ValueError(
            f"pack={pack} puts several trials on one device, and {sizes} divides one trial over "
            "several; set --config.pack=1, or every mesh size to 1"
        )


def group(trials: Sequence[Trial], size: int) -> list[tuple[Trial, ...]]:
    """Returns packs of at most `size` trials, in the trials' order.

    Members share program, steps, and when they evaluate, log and save; seed, hyperparameters and
    the schedule's horizon are traced and may differ. Packs are as even as can be: 12 trials in
    packs of 8 are two of 6, which share one compilation, where 8 and 4 would need two. Raises
    ValueError for a size below 1.
    """
    if size < 1:
        raise ValueError(f"a pack of {size} trials; give 1 or more")
    alike: dict[Any, list[Trial]] = {}
    for trial in trials:
        alike.setdefault(_shared(trial), []).append(trial)
    return [pack for members in alike.values() for pack in _evenly(members, size)]


def _shared(trial: Trial) -> tuple[Any, ...]:
    """Returns what members of a pack have in common."""
    moments = (trial.steps, trial.eval_every, trial.log_every, trial.checkpoint_every)
    return (*trial.program, *moments)


def _evenly(members: list[Trial], size: int) -> list[tuple[Trial, ...]]:
    count = -(-len(members) // size)
    bounds = [len(members) * index // count for index in range(count + 1)]
    return [tuple(members[a:b]) for a, b in itertools.pairwise(bounds)]
