"""Kernels: who computes the softmax-weighted sum, and which positions count."""
