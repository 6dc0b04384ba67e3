"""How: search spaces, studies, trials, launchers, training. Run `python -m sweeps --help`."""
