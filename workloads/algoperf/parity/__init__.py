"""Parity: our workloads against AlgoPerf's own, part by part."""
