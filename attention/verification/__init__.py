"""Verification: the float64 reference, checks, diagnostics."""
