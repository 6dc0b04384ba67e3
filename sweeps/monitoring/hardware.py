"""Accelerators that a train step can be compiled for without having one: what each is, by name.

Figures are the makers': cloud.google.com/tpu/docs (v4, v5e, v5p, v6e) and NVIDIA's data sheets
(H100 SXM, H200 SXM), without sparsity. `clock_ghz` is what the compiler's cycles are divided by: at
it a chip's matrix units (v4 and v5p 8, v5e 4 of 128², v6e 4 of 256²) reach the published peak.
"""

import dataclasses
import math
import re


@dataclasses.dataclass(frozen=True)
class Hardware:
    """One kind of device, as JAX counts devices.

    platform: 'tpu' or 'cuda'. memory_gb: what a program can have, in 10⁹ bytes. bandwidth_gb: of
    its main memory, 10⁹ bytes a second. peak_tflops: of bfloat16 products. clock_ghz: of the
    compiler's cycles, 0 where it gives none. accelerator_type: what libtpu wants to be told about
    a host of it; dimensions: of a topology's name.
    """

    platform: str
    memory_gb: float
    bandwidth_gb: float
    peak_tflops: float
    clock_ghz: float = 0.0
    accelerator_type: str = ""
    dimensions: int = 3

    def usable_gb(self, memory_gb: float | None = None) -> float:
        """What a program may take of its memory, or of `memory_gb` where that is given."""
        share = GPU_SHARE if self.platform == "cuda" else 1.0
        return share * (memory_gb or self.memory_gb)


# A TPU's memory is that at which its compiler refuses a program ("… of 15.75G hbm").
KINDS = {
    "v4": Hardware("tpu", 31.75 * 1.073741824, 1228, 275, 1.05, "v4-8"),
    "v5e": Hardware("tpu", 15.75 * 1.073741824, 819, 197, 1.5, "v5litepod-4", 2),
    "v5p": Hardware("tpu", 95.74 * 1.073741824, 2765, 459, 1.75, "v5p-8"),
    "v6e": Hardware("tpu", 31.25 * 1.073741824, 1640, 918, 1.75, "v6e-4", 2),
    "h100": Hardware("cuda", 84.942979072, 3352.32, 989),
    "h200": Hardware("cuda", 151.397597184, 4800, 989),
}
# Of a GPU's memory, what XLA leaves to fragments, libraries and the network.
GPU_SHARE = 0.9


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
    def hardware(self) -> Hardware:
        """What its devices are."""
        return KINDS[self.kind]

    @property
    def devices(self) -> int:
        """How many devices it has."""
        return self.slices * math.prod(self.shape)


def topology(text: str) -> Topology:
    """Returns the topology of a name such as 'v5e:8x8', 'v5e:8x8*2', 'v5p:2x2x4' or 'h100:1x1x8'.

    A TPU's numbers are chips along each axis of its network, and after * how many such slices; a
    GPU's are slices, hosts and devices of a host. Raises ValueError for another kind, and for
    numbers that are not a topology's.
    """
    kind, _, rest = text.partition(":")
    several = r"" if kind.startswith("h") else r"(\*[1-9]\d{0,2})?"
    if kind not in KINDS or not re.fullmatch(r"[1-9]\d{0,3}(x[1-9]\d{0,3})*" + several, rest):
        raise ValueError(
            f"topology {text!r}: give KIND:NUMBERS such as v5e:8x8, v5e:8x8*2 (two slices), "
            f"v5p:2x2x4 or h100:1x1x8, of a kind out of {', '.join(KINDS)}"
        )
    numbers, _, slices = rest.partition("*")
    shape = tuple(map(int, numbers.split("x")))
    if len(shape) != KINDS[kind].dimensions:
        raise ValueError(
            f"topology {text!r}: {kind} takes {KINDS[kind].dimensions} numbers, such as {kind}:"
            + "x".join(["1", "1", "8"] if kind.startswith("h") else ["2"] * KINDS[kind].dimensions)
        )
    return Topology(text, kind, shape, int(slices or 1))
