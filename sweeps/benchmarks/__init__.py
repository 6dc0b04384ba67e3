"""Benchmarks: what the parts of a sweep cost here."""
