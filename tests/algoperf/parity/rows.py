"""One line of the parity table: a quantity of ours beside AlgoPerf's, with its tolerance."""

import dataclasses
from typing import Any

import jax
import numpy as np

# Greatest difference of a forward pass, relative to the greatest value where that is above 1, and
# of a gradient, as a ratio of norms. float32 has 6e-8; a dozen layers add up to some 1e-6.
CLOSE = 1e-5
# AlgoPerf's own Conformer changes its gradient by 0.7e-5 to 1.3e-5 (small model, three draws, jax
# 0.10.2) when every parameter moves by one rounding, 6e-8 of itself: four times that. Formulas are
# told apart in float64, where ours and AlgoPerf's gradients agree to 1e-14 (`double`).
SPEECH_GRADIENT = 5e-5
# In float64, which has 1.1e-16, the same sums leave some 1e-14.
DOUBLE = 1e-11


@dataclasses.dataclass(frozen=True)
class Row:
    """`difference` passes where it is at most `tolerance`; a NaN does not.

    subject: workload, or what else is compared; quantity: what of it; remark: what the two numbers
    mean where that is not a difference of values.
    """

    subject: str
    quantity: str
    difference: float
    tolerance: float
    remark: str = ""

    def __str__(self) -> str:
        verdict = "pass" if self.passed else "**FAIL**"
        quantity = f"{self.quantity}; {self.remark}" if self.remark else self.quantity
        figures = f"{self.difference:.2g} | {self.tolerance:.2g}"
        return f"| {self.subject} | {quantity} | {figures} | {verdict} |"

    @property
    def passed(self) -> bool:
        return self.difference <= self.tolerance


def largest(ours: Any, theirs: Any) -> float:
    """Returns the greatest |ours - theirs| over two trees, over the greatest |theirs| above 1.

    Raises ValueError where trees or shapes differ: nothing may be broadcast away.
    """
    pairs = list(zip(*_leaves(ours, theirs), strict=True))
    # NumPy's maxima, which are NaN where anything is; Python's would lose it.
    difference = np.max([np.max(np.abs(a - b), initial=0.0) for a, b in pairs])
    return float(difference / np.max([1.0, *(np.max(np.abs(b), initial=0.0) for _, b in pairs)]))


def norm_ratio(ours: Any, theirs: Any) -> float:
    """Returns ‖ours - theirs‖ / ‖theirs‖ over two trees. Raises ValueError as `largest`."""
    pairs = list(zip(*_leaves(ours, theirs), strict=True))
    difference = sum(float(np.sum(np.square(a - b))) for a, b in pairs)
    return float(np.sqrt(difference / sum(float(np.sum(np.square(b))) for _, b in pairs)))


def _leaves(ours: Any, theirs: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    trees = [str(jax.tree.structure(tree)) for tree in (ours, theirs)]
    if trees[0] != trees[1]:
        raise ValueError(f"trees differ: {trees[0]}, {trees[1]}")
    leaves = [
        [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)] for tree in (ours, theirs)
    ]
    first, second = ([leaf.shape for leaf in side] for side in leaves)
    if first != second:
        raise ValueError(f"shapes differ: {first}, {second}")
    return leaves[0], leaves[1]
