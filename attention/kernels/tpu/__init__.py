"""The `fused` kernel for TPUs: plan, tiles, blocks, forward and backward pass."""
