"""Statistics over seeds: intervals, tests, corrections. Numbers in, numbers out."""
