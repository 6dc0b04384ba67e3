"""What lies on disk, read: studies, ours and AlgoPerf's, their runs and problems by name, metrics,
what validation chooses; the paper's figures."""
