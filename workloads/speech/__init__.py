"""Speech: the Conformer, its front end, loss and metrics."""
