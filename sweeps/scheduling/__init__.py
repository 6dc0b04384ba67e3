"""Scheduling: from a study's points to its last trial, whatever dies on the way."""
