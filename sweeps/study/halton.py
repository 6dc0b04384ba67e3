"""Halton points as AlgoPerf draws them, in their natural order.

Each dimension is a scrambled, shifted Van der Corput sequence in a prime base; the first 100
points are skipped (algoperf/halton.py, after arXiv:1706.03200). AlgoPerf then shuffles the list
with an unseeded generator, so that its first n points differ between processes; here the order is
the sequence's own, and `sequence(d, 8) == sequence(d, 50)[:8]`.
"""

import math

import numpy as np

SKIP = 100


def sequence(num_dims: int, num_points: int) -> list[tuple[float, ...]]:
    """Returns `num_points` points in [0, 1)^num_dims."""
    dimensions = [_van_der_corput(base, num_points) for base in bases(num_dims)]
    return list(zip(*dimensions, strict=True))


def bases(num_dims: int) -> list[int]:
    """Returns AlgoPerf's bases: the largest odd primes below 1000 but for the very largest."""
    is_prime = np.ones(1000, bool)
    is_prime[:3] = False  # the odd ones
    for number in range(2, 32):
        is_prime[number * number :: number] = False
    primes: list[int] = np.flatnonzero(is_prime).tolist()
    return primes[-num_dims - 1 : -1]


def _van_der_corput(base: int, num_points: int) -> list[float]:
    """Returns points 101 … 100 + n of the base's sequence, digits permuted and all shifted.

    Permutation and shift come from RandomState(base) in AlgoPerf's order of draws.
    """
    generator = np.random.RandomState(base)
    digits = list(range(1, base))
    generator.shuffle(digits)
    permutation = [0, *digits]
    shift = generator.random_sample()
    return [
        math.fmod(_radical_inverse(index, base, permutation) + shift, 1.0)
        for index in range(SKIP + 1, SKIP + num_points + 1)
    ]


def _radical_inverse(index: int, base: int, permutation: list[int]) -> float:
    value, denominator = 0.0, base
    while index:
        value += permutation[index % base] / denominator
        denominator *= base
        index //= base
    return value
