"""Simulations and soaks: sweeps on clusters that fail."""
