"""Stand-in for AlgoPerf's package."""
