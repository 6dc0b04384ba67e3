"""Differential LASER: log(A1·exp V) − λ·log(A2·exp V) per pair of heads (LASER, ICML 2025).

The logarithm is taken in each branch, so that values moved by c move the output by (1 − λ)·c.
Pairs are those of `attention.mixers.diff`, each branch's arithmetic that of
`attention.mixers.laser`, and exact as far as that is, over the keys its own head sees.
"""

from attention.mixers import head_pairs, laser, laser_functions

MIXER = head_pairs.record(laser.log_mean_exp, laser.branch, laser_functions.transform)
