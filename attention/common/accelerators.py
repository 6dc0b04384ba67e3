"""Accelerators: what each is, by name, and topologies of those that steps are compiled for.

Figures are the makers': cloud.google.com/tpu/docs (v2 to v6e; v2 and v3 have two devices a chip)
and NVIDIA's data sheets, without sparsity. The compiler's cycles are divided by `clock_ghz`: at it
a chip's matrix units (v4 and v5p 8, v5e 4 of 128², v6e 4 of 256²) reach the published peak.
"""

import dataclasses
import math
import re


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """One kind of device, as JAX counts devices.

    platform: 'tpu' or 'cuda'. peak_tflops: of dense bfloat16 products, float16's where there is no
    bfloat16. device_kinds: how JAX's `device_kind` begins. The rest is known of kinds that a step
    can be compiled for. memory_gb: what a program can have, in 10⁹ bytes. bandwidth_gb: of its main
    memory, 10⁹ bytes a second. clock_ghz: of the compiler's cycles, 0 where it gives none.
    accelerator_type: what libtpu calls a host of it; dimensions: of a topology's name.
    """

    platform: str
    peak_tflops: float
    device_kinds: tuple[str, ...]
    memory_gb: float = 0.0
    bandwidth_gb: float = 0.0
    clock_ghz: float = 0.0
    accelerator_type: str = ""
    dimensions: int = 3


_GIB = 1.073741824
# A TPU's memory is that at which its compiler refuses a program ("… of 15.75G hbm").
KINDS = {
    "v2": Accelerator("tpu", 22.5, ("TPU v2",)),
    "v3": Accelerator("tpu", 61.5, ("TPU v3",)),
    "v4": Accelerator("tpu", 275, ("TPU v4",), 31.75 * _GIB, 1228, 1.05, "v4-8"),
    "v5e": Accelerator(
        "tpu", 197, ("TPU v5 lite", "TPU v5e"), 15.75 * _GIB, 819, 1.5, "v5litepod-4", 2
    ),
    "v5p": Accelerator("tpu", 459, ("TPU v5",), 95.74 * _GIB, 2765, 1.75, "v5p-8"),
    "v6e": Accelerator(
        "tpu", 918, ("TPU v6 lite", "TPU v6e"), 31.25 * _GIB, 1640, 1.75, "v6e-4", 2
    ),
    "v100": Accelerator("cuda", 125, ("Tesla V100",)),
    "v100-pcie": Accelerator("cuda", 112, ("Tesla V100-PCIE",)),
    "a100": Accelerator("cuda", 312, ("NVIDIA A100",)),
    "h100": Accelerator("cuda", 989.4, ("NVIDIA H100",), 84.942979072, 3352.32),
    "h100-pcie": Accelerator("cuda", 756, ("NVIDIA H100 PCIe",)),
    "h100-nvl": Accelerator("cuda", 835, ("NVIDIA H100 NVL",)),
    "h200": Accelerator("cuda", 989.4, ("NVIDIA H200",), 151.397597184, 4800),
    "h200-nvl": Accelerator("cuda", 835, ("NVIDIA H200 NVL",)),
    "gh200": Accelerator("cuda", 989.4, ("NVIDIA GH200",)),
    "b200": Accelerator("cuda", 2250, ("NVIDIA B200",)),
}
COMPILED = tuple(name for name, kind in KINDS.items() if kind.memory_gb)
COMPILED_TPUS = tuple(name for name in COMPILED if KINDS[name].platform == "tpu")
# Of a GPU's memory, what XLA leaves to fragments, libraries and the network.
GPU_SHARE = 0.9


def of_device(device_kind: str) -> str | None:
    """Returns the name in KINDS of one of JAX's devices, None where it is not known.

    A part of a GPU (MIG) has not the whole one's figures.
    """
    names = {start: name for name, kind in KINDS.items() for start in kind.device_kinds}
    starts = [start for start in names if device_kind.startswith(start)]
    return names[max(starts, key=len)] if starts and " MIG " not in device_kind else None


@dataclasses.dataclass(frozen=True)
class Topology:
    """So many devices of one kind: `text` is 'v5e:8x8', of `kind` 'v5e'.

    slices: of a TPU, each of `shape`, connected by the data centre's network.
    """

    text: str
    kind: str
    shape: tuple[int, ...]
    slices: int = 1

    @property
    def accelerator(self) -> Accelerator:
        """Its devices."""
        return KINDS[self.kind]

    @property
    def devices(self) -> int:
        """How many devices it has."""
        return self.slices * math.prod(self.shape)


def smallest(kind: str) -> Topology:
    """Returns the four chips of a host of a kind of TPU."""
    return topology(f"{kind}:2x2" + "x1" * (KINDS[kind].dimensions - 2))


def topology(text: str) -> Topology:
    """Returns the topology of a name such as 'v5e:8x8', 'v5e:8x8*2', 'v5p:2x2x4' or 'h100:1x1x8'.

    A TPU's numbers are chips along each axis of its network, and after * how many such slices; a
    GPU's are slices, hosts and devices of a host. Raises ValueError for another kind, and for
    numbers that are not a topology's.
    """
    kind, _, rest = text.partition(":")
    dimensions = KINDS[kind].dimensions if kind in COMPILED else 0
    numbers = r"[1-9]\d{0,3}" + r"x[1-9]\d{0,3}" * (dimensions - 1)
    if dimensions and KINDS[kind].platform == "tpu":
        numbers += r"(\*[1-9]\d{0,2})?"
    if not dimensions or not re.fullmatch(numbers, rest):
        raise ValueError(
            f"topology {text!r}: give KIND:NUMBERS such as v5e:8x8, v5e:8x8*2 (two slices), "
            f"v5p:2x2x4 or h100:1x1x8, of a kind out of {', '.join(COMPILED)}"
        )
    chips, _, count = rest.partition("*")
    return Topology(text, kind, tuple(map(int, chips.split("x"))), int(count or 1))
