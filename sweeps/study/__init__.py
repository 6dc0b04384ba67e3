"""A study: its configuration, search space, trials and selection."""
