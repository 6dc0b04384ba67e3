"""How a workload's model is computed: precision, layer loop, mesh, a language model's attention.

All options are compiled in. They are part of a trial's identity, except remat, mesh and
loss_chunk_tokens, which change results by rounding alone. Standard library only.
"""

import dataclasses
import math
from collections.abc import Mapping

DTYPES = ("float32", "bfloat16")
POSITIONS = ("sinusoids", "none")
MESH_AXES = ("data", "fsdp", "tensor", "context")
# The name below which scan_layers keeps the parameters of all layers, stacked along axis 0.
STACKED = "layers"


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a model.

    compute_dtype: dtype of activations. param_dtype: dtype of parameters; optimizer moments and the
    factors of variants stay float32. scan_layers: one compiled block runs in a loop over stacked
    parameters. remat: the backward pass computes a block's activations again. mesh: devices along
    the axes (data, fsdp, tensor), or with context at the end; data 0 takes what the others leave.
    loss_chunk_tokens: tokens of a device that have logits at the same time; 0: all. kv_heads: heads
    of keys and values; 0: as many as heads of queries. positions: added to the embeddings, except
    with +rope and +alibi. global_every: one of so many layers ignores +window; 0: none.
    document_mask: a token sees the tokens of its document alone.

    Raises ValueError for an unknown dtype or unknown positions. sweeps/study/keys.py has the ranges
    of the numbers.
    """

    compute_dtype: str = "float32"
    param_dtype: str = "float32"
    scan_layers: bool = False
    remat: bool = False
    mesh: tuple[int, ...] = (0, 1, 1)
    loss_chunk_tokens: int = 0
    kv_heads: int = 0
    positions: str = "sinusoids"
    global_every: int = 0
    document_mask: bool = False

    def __post_init__(self) -> None:
        for name in ("compute_dtype", "param_dtype"):
            dtype = getattr(self, name)
            if dtype not in DTYPES:
                is_half = dtype == "float16"
                why = " (LASER in float16 gives NaN at values of size 4)" if is_half else ""
                raise ValueError(
                    f"{name}={dtype!r} is not available{why}; use {' or '.join(DTYPES)}"
                )
        if self.positions not in POSITIONS:
            raise ValueError(f"positions={self.positions!r}: give {' or '.join(POSITIONS)}")


def mesh_of(sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Returns the sizes of MESH_AXES by name as a tuple, which leaves out a context of 1."""
    mesh = tuple(sizes.get(axis, 1) for axis in MESH_AXES)
    return mesh if mesh[-1] > 1 else mesh[:-1]


def mesh_shape(sizes: tuple[int, ...], devices: int) -> tuple[int, ...]:
    """Returns the sizes of MESH_AXES as they are given; data 0 becomes what the others leave.

    Raises ValueError if the sizes do not multiply to the number of devices.
    """
    data, *others = sizes
    data = data or devices // math.prod(others)
    if data * math.prod(others) != devices:
        raise ValueError(
            f"mesh ({', '.join(MESH_AXES[: len(sizes)])}) = {sizes} does not fit the {devices} "
            "device(s): the sizes must multiply to their number (data 0: all that the others leave)"
        )
    return data, *others


def check_batch(batch_size: int, groups: int, microbatches: int = 1) -> None:
    """Raises ValueError if a batch does not divide over groups of devices and microbatches."""
    if batch_size % (groups * microbatches):
        parts = f" into {microbatches} microbatches" if microbatches > 1 else ""
        over = f" over {groups} devices" if groups > 1 else ""
        raise ValueError(
            f"batch_size {batch_size} cannot be divided{parts}{over}; choose a multiple of "
            f"{groups * microbatches}, or fewer devices or microbatches"
        )
