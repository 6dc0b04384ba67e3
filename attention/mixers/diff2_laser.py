"""LASER in both branches of `attention.mixers.diff2`: log(A₁·exp V) − σ(x·w)·log(A₂·exp V)."""

from attention.mixers import laser, laser_shift, query_pairs

MIXER = query_pairs.record(laser.log_mean_exp, laser.branch, laser_shift.transform)
