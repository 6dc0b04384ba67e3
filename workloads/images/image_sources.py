"""Random-access sources of labelled images: a subset, and a cache of decoded images."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from workloads.images import images

# A permutation for choosing subsets. RandomState's stream is frozen by NumPy's policy (NEP 19), so
# the subset is the same with every version; it does not depend on any trial's seed.
_SUBSET_SEED = 0


class ImageSource(Protocol):
    """`source[i]` is `{"image": encoded bytes or uint8 [H, W, 3], "label": int}`."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> dict[str, Any]: ...


class Subset:
    """The examples of `source` at `indices`, in that order."""

    def __init__(self, source: ImageSource, indices: Sequence[int] | np.ndarray) -> None:
        self.source = source
        self.indices = np.asarray(indices, dtype=np.int64)
        wrong = self.indices[(self.indices < 0) | (self.indices >= len(source))]
        if wrong.size:
            raise ValueError(
                f"{source}: a subset asks for example {wrong[0]}, there are {len(source)}"
            )

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """The example at `indices[number]`; IndexError beyond the end."""
        return self.source[int(self.indices[number])]

    def __str__(self) -> str:
        return f"{len(self)} examples of {self.source}"


def fixed_subset(source: ImageSource, num_examples: int) -> Subset:
    """The same `num_examples` examples in every run, whatever the trial's seed.

    They are the first ones of a fixed permutation: directories may hold their examples in an
    order that says something about the class.
    """
    if not 0 < num_examples <= len(source):
        raise ValueError(
            f"{source}: a subset of {num_examples} examples was asked; 1 to {len(source)} are "
            "allowed"
        )
    order = np.random.RandomState(_SUBSET_SEED).permutation(len(source))
    return Subset(source, order[:num_examples])


class CachedSource:
    """A small source with its images decoded once and kept in memory.

    Transforms take decoded images as they take encoded ones, so batches are the same. Raises
    ValueError if the images need more than `max_bytes`.
    """

    def __init__(self, source: ImageSource, max_bytes: int = 2**30) -> None:
        self._name = str(source)
        self._images: list[np.ndarray] = []
        self._labels: list[int] = []
        size = 0
        for number in range(len(source)):
            record = source[number]
            self._images.append(images.decode(record["image"]))
            self._labels.append(record["label"])
            size += self._images[-1].nbytes
            if size > max_bytes:
                raise ValueError(
                    f"{source}: the first {number + 1} of {len(source)} images need {size} bytes "
                    f"in memory, {max_bytes} are allowed; read this source without the cache"
                )

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """`{"image": uint8 [H, W, 3], "label": int}`; the array must not be changed."""
        return {"image": self._images[number], "label": self._labels[number]}

    def __str__(self) -> str:
        return f"{self._name} (decoded, in memory)"
