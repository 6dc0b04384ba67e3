"""Several processes that train one trial together."""
