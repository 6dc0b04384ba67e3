"""Differential LASER: log(A1·exp V) − λ·log(A2·exp V) per pair of heads (LASER, ICML 2025).

The logarithm is taken in each branch, so that values moved by c move the output by (1 − λ)·c.
Heads are paired as in `attention.mixers.diff`. Each branch is computed as in
`attention.mixers.laser`, over the keys that its head sees.
"""

from attention.mixers import head_pairs, laser, laser_shift

MIXER = head_pairs.record(laser.log_mean_exp, laser.branch, laser_shift.transform)
