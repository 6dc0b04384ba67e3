"""Random-access sources of examples: subsets, and a cache in memory."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from workloads.base.errors import DataError


class Source(Protocol):
    """`source[i]` is a record, a dict, such as `{"image": bytes, "label": int}`."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> dict[str, Any]: ...


class Subset:
    """The examples of `source` at `indices`, in that order."""

    def __init__(self, source: Source, indices: Sequence[int] | np.ndarray) -> None:
        self.source = source
        self.indices = np.asarray(indices, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Returns the example at `indices[number]`. Raises IndexError beyond the end."""
        return self.source[int(self.indices[number])]

    def __str__(self) -> str:
        return f"{len(self)} examples of {self.source}"


def fixed_subset(source: Source, num_examples: int) -> Subset:
    """Returns the same `num_examples` examples in every run, whatever the trial's seed.

    They are the first ones of a fixed permutation, because directories may be sorted by class.
    Raises DataError if there are fewer.
    """
    check_size(source, num_examples)
    # RandomState's stream is frozen by NumPy's policy (NEP 19): the same with every version.
    order = np.random.RandomState(0).permutation(len(source))
    return Subset(source, order[:num_examples])


def evenly_spaced(source: Source, num_examples: int) -> Subset:
    """Returns every n-th example, the same in every run; no permutation of up to 10^8 examples.

    Raises DataError if there are fewer.
    """
    check_size(source, num_examples)
    return Subset(source, np.arange(num_examples) * (len(source) // num_examples))


def check_size(source: Source, num_examples: int) -> None:
    """Raises DataError if a source has fewer examples than `num_examples`, or if that is 0."""
    if not 0 < num_examples <= len(source):
        raise DataError(
            f"{source} has {len(source)} examples; {num_examples} are needed",
            "prepare the data again, or give a directory with as many",
        )


class CachedSource(list[dict[str, Any]]):
    """A small source read once, each record changed by `prepare`, and kept in memory.

    The records' arrays must not be changed.
    """

    def __init__(self, source: Source, prepare: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        super().__init__(prepare(source[number]) for number in range(len(source)))
        self._name = str(source)

    def __str__(self) -> str:
        return f"{self._name} (in memory)"
