"""Trials of init2winit's workloads: its own trainer, in a process that a job follows."""
