"""What came out: runs, selection, statistics, tables and plots. `python -m analysis --help`."""
