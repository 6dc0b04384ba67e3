"""The `fused` kernel for GPUs: plan, tiles, forward and backward pass."""
