"""The table of attention backends: what each offers, and where it runs. Standard library only."""

import types
from collections.abc import Iterable, Mapping
from typing import NamedTuple

# What a mixer or modifier needs of a backend, and how a message names it.
KERNEL_NEEDS = {
    "weighting": "weights other than the softmax's",
    "running_sum": "a running sum along keys",
    "bias": "a bias",
    "bias_vectors": "a bias of rows and columns",
    "mask_by_query": "a mask that differs by query or head",
    "segments": "segments",
    "mask_function": "a mask that is a function",
    "lower_bounds": "lower bounds of the keys that a query sees",
    "strict": "queries that do not see their own key",
    "window": "a window",
    "sink": "a sink",
    "softcap": "soft-capped logits",
    "score": "functions of the logits other than softcap",
    "dropout": "attention dropout",
    "precision": "a matmul precision of its own",
    "context": "queries divided over devices",
    "lse": "a logarithm of each row's mass",
}


class KernelEntry(NamedTuple):
    """The line of an attention backend.

    record: where its code is; empty limits are none. offers: of KERNEL_NEEDS. head_sizes: of Q and
    V, by platform; one_head_size: that of V must be that of Q and K.
    follows_precision: its products are made as jax.default_matmul_precision says. observed_by: the
    backend that takes its place where diagnostics look. remark: what its user must know.
    """

    record: str
    offers: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    head_sizes: Mapping[str, range] = types.MappingProxyType({})
    one_head_size: bool = False
    follows_precision: bool = False
    observed_by: str = ""
    remark: str = ""


# What jax.nn.dot_product_attention can be given, whoever computes it.
_OF_JAX = (
    *("bias", "bias_vectors", "mask_by_query", "segments", "mask_function", "lower_bounds"),
    *("strict", "window"),
)
# `xla` is our core; jax_xla and cudnn go through jax.nn.dot_product_attention, splash through
# jax.experimental's Pallas kernel for TPUs: the limits are theirs.
KERNELS: dict[str, KernelEntry] = {
    "xla": KernelEntry(
        "attention.kernels.core:KERNEL", offers=tuple(KERNEL_NEEDS), follows_precision=True
    ),
    "jax_xla": KernelEntry(
        "attention.kernels.library:JAX_XLA",
        offers=(*_OF_JAX, "context"),
        one_head_size=True,
        follows_precision=True,
    ),
    "cudnn": KernelEntry(
        "attention.kernels.library:CUDNN",
        offers=_OF_JAX,
        platforms=("gpu",),
        dtypes=("bfloat16", "float16"),
        head_sizes={"gpu": range(8, 257, 8)},
        one_head_size=True,
        observed_by="jax_xla",
    ),
    "splash": KernelEntry(
        "attention.kernels.splash:KERNEL",
        offers=("softcap", "window"),
        platforms=("tpu",),
        dtypes=("bfloat16", "float32"),
        observed_by="xla",
    ),
    "fused": KernelEntry(
        "attention.kernels.fused:KERNEL",
        offers=(
            *("weighting", "bias_vectors", "mask_by_query", "segments", "mask_function"),
            *("lower_bounds", "strict", "window", "sink", "softcap", "score", "dropout"),
            *("context", "lse"),
        ),
        platforms=("tpu", "gpu"),
        dtypes=("bfloat16", "float32"),
        head_sizes={"gpu": range(1, 513)},
        observed_by="xla",
        remark="compiled, never yet run on a TPU or GPU",
    ),
}

_DEVICES = {"gpu": "an NVIDIA GPU", "tpu": "a TPU", "cpu": "a CPU"}


def check_needs(kernel: str, needs: Iterable[str], where: str = "this call") -> None:
    """Raises ValueError if a backend does not offer what a call needs; `needs` of KERNEL_NEEDS.

    Names of MODEL_NEEDS among them are passed over.
    """
    for need in needs:
        if need in KERNEL_NEEDS and need not in KERNELS[kernel].offers:
            able = " or ".join(
                f"kernel={name!r}" for name, entry in KERNELS.items() if need in entry.offers
            )
            raise ValueError(
                f"kernel={kernel!r} has no {KERNEL_NEEDS[need].removeprefix('a ')}, so it cannot "
                f"compute {where}; use {able}"
            )


def check_kernel(
    kernel: str, *, platform: str, dtype: str, head_size: int, value_size: int | None = None
) -> None:
    """Raises ValueError if a kernel cannot run: on this platform, dtype or head size.

    platform: 'cpu', 'gpu' or 'tpu'. `value_size` is the head size of V if it is not that of Q
    and K: `value_size(variant, head_size)`.
    """
    limits = KERNELS[kernel]
    if limits.one_head_size and value_size not in (None, head_size):
        raise ValueError(
            f"kernel={kernel!r} wants the head size of V ({value_size}) to be that of Q and K "
            f"({head_size}); use kernel='xla'. Differential attention gives a pair of heads one "
            "value of twice the size"
        )
    if limits.platforms and platform not in limits.platforms:
        anywhere = " or ".join(repr(name) for name, entry in KERNELS.items() if not entry.platforms)
        needed = " or ".join(_DEVICES[name] for name in limits.platforms)
        raise ValueError(
            f"kernel={kernel!r} needs {needed} and JAX runs on {platform!r} here; "
            f"use kernel={anywhere}"
        )
    if limits.dtypes and dtype not in limits.dtypes:
        raise ValueError(
            f"kernel={kernel!r} computes in {' or '.join(limits.dtypes)}, not {dtype}; cast the "
            f"inputs (compute_dtype={limits.dtypes[0]!r}) or use kernel='xla'"
        )
    sizes = limits.head_sizes.get(platform)
    for size in (head_size, value_size or head_size):
        if sizes is not None and size not in sizes:
            raise ValueError(
                f"kernel={kernel!r} cannot do head size {size} on {_DEVICES[platform]}: it must be "
                f"a multiple of {sizes.step}, at most {sizes[-1]}; use kernel='xla'"
            )


def check_precision(kernel: str, matmul_precision: str) -> None:
    """Raises ValueError if a kernel has a matmul precision of its own and another is asked for.

    matmul_precision: of `attention.common.precision`.
    """
    if matmul_precision != "default" and not KERNELS[kernel].follows_precision:
        able = " or ".join(repr(name) for name, entry in KERNELS.items() if entry.follows_precision)
        raise ValueError(
            f"kernel={kernel!r} takes no matmul precision, and matmul_precision="
            f"{matmul_precision!r} would hold for the rest of the model alone; use kernel={able}, "
            "or matmul_precision='default'"
        )
