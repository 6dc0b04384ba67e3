"""LASER in both branches of `attention.mixers.diff2`: log(A₁·exp V) − σ(x·w)·log(A₂·exp V)."""

from attention.kernels import fused_values
from attention.mixers import laser, query_pairs

MIXER = query_pairs.record(laser.log_mean_exp, laser.branch, fused_values.transform)
