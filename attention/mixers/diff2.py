"""Differential Transformer V2: A₁·V − σ(x·w)·A₂·V with a second query per head (2026-01).

What it shares with its LASER form is in `attention.mixers.query_pairs`.
"""

from attention.mixers import query_pairs, standard

MIXER = query_pairs.record(standard.weighted_mean, standard.branch)
