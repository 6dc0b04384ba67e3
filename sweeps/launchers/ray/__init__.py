"""Ray: one Ray job per job of a batch."""
