"""Directories of studies, ours and AlgoPerf's: runs, problems by name, what validation chooses."""
