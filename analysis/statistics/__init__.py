"""Statistics over seeds: intervals, tests, corrections, power, fits. Numbers in, numbers out."""
