"""Differential attention: (softmax(Q₁K₁ᵀ/√D) − λ·softmax(Q₂K₂ᵀ/√D))·V (arXiv:2410.05258, eq. 1).

Heads 2i and 2i + 1 are a pair with one value of size 2·Dv; the layout, λ from its learned vectors,
and the norm per pair that follows, are in `attention.mixers.head_pairs`. A map whose query sees no
key, or lost all of them to dropout, counts as 0.

Attention dropout falls on the weights of all H maps as elsewhere: with `broadcast_dropout` (flax's
default) both maps of a pair lose the same keys, which is dropout on A1 − λ·A2; without it every map
draws its own.
"""

from attention.mixers import head_pairs, standard

MIXER = head_pairs.record(standard.weighted_mean, standard.branch)
