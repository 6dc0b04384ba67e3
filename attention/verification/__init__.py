"""Verification: the float64 oracle, checks, reconstruction, diagnostics."""
