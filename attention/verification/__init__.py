"""Verification: the float64 reference, checks, reconstruction, diagnostics."""
