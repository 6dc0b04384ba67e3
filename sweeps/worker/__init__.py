"""A worker: a process that claims trials and trains them."""
