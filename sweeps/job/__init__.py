"""A job: the process that claims trials of a batch and trains them, one after the other."""
