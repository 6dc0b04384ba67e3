"""Differential attention: (softmax(Q₁K₁ᵀ/√D) − λ·softmax(Q₂K₂ᵀ/√D))·V (arXiv:2410.05258, eq. 1).

Heads 2i and 2i + 1 are a pair with one value of size 2·Dv; the layout, λ from its learned vectors,
and the norm per pair that follows, are in `attention.mixers.head_pairs`.
"""

from attention.mixers import head_pairs, standard

# (A1 − λ·A2)·V per pair, cut back into heads.
attend = head_pairs.in_heads(standard.weighted_mean)
MIXER = head_pairs.record(standard.weighted_mean, standard.formula)
