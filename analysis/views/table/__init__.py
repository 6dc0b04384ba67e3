"""The error table laid out: its grids and notes, the same as CSV, and `table`."""
