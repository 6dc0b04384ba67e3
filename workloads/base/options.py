"""How a workload's model is computed: precision, layer loop, its place on the devices, and what a
language model's attention is given.

All of it is compiled in, and but for remat, mesh and loss_chunk_tokens, by which results differ in
rounding alone, part of a trial's identity. Standard library only.
"""

import dataclasses

DTYPES = ("float32", "bfloat16")
POSITIONS = ("sinusoids", "none")
MESH_AXES = ("data", "fsdp", "tensor")
# The name below which scan_layers keeps the parameters of all layers, stacked along axis 0.
STACKED = "layers"


@dataclasses.dataclass(frozen=True)
class Options:
    """What a workload's factory is given beside its name and variant.

    compute_dtype: of activations; param_dtype: of parameters (optimizer moments and
    the variants' own factors stay float32). scan_layers: one compiled block run in a loop over
    stacked parameters. remat: activations of a block are
    computed again in the backward pass instead of kept. mesh: devices along the axes
    (data, fsdp, tensor); data 0 is all that the other two leave. loss_chunk_tokens: so many of a
    device's tokens at a time have logits; 0: all. kv_heads: heads of keys and values, each serving
    as many heads of queries; 0: as many as queries have. positions: what is added to the embeddings
    ('none' with +rope and +alibi anyway). global_every: every so many layers one ignores +window;
    0: none does. document_mask: a token sees its own document's tokens alone.

    Raises ValueError for a dtype or positions that do not exist. Ranges of numbers are those of a
    study's keys (sweeps/study/keys.py).
    """

    compute_dtype: str = "float32"
    param_dtype: str = "float32"
    scan_layers: bool = False
    remat: bool = False
    mesh: tuple[int, int, int] = (0, 1, 1)
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


def mesh_shape(sizes: tuple[int, int, int], devices: int) -> tuple[int, int, int]:
    """Returns (data, fsdp, tensor), data 0 replaced by what the others leave of the devices.

    Raises ValueError where the sizes do not multiply to the number of devices.
    """
    data, fsdp, tensor = sizes
    data = data or devices // (fsdp * tensor)
    if data * fsdp * tensor != devices:
        raise ValueError(
            f"mesh (data, fsdp, tensor) = {sizes} does not fit the {devices} device(s): the sizes "
            "must multiply to their number (data 0: all that the others leave)"
        )
    return data, fsdp, tensor


def check_batch(batch_size: int, groups: int, microbatches: int = 1) -> None:
    """Raises ValueError where a batch cannot be divided over groups of devices, in microbatches."""
    if batch_size % (groups * microbatches):
        parts = f" into {microbatches} microbatches" if microbatches > 1 else ""
        over = f" over {groups} devices" if groups > 1 else ""
        raise ValueError(
            f"batch_size {batch_size} cannot be divided{parts}{over}; choose a multiple of "
            f"{groups * microbatches}, or fewer devices or microbatches"
        )
