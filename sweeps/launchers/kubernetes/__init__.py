"""Kubernetes: a JobSet per job, queued by Kueue."""
