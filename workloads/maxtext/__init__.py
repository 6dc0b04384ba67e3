"""MaxText's own training with our attention: `python -m workloads maxtext` (docs/maxtext.md)."""
