"""What is compared: attention variants, their numerics, and how they enter a Flax model."""
