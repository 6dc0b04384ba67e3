"""Mixers: how each attends, one file each."""
