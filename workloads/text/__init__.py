"""Text: the Transformers, their losses and workloads."""
