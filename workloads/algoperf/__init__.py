"""The plugin: AlgoPerf, unmodified, with our attention. Importing this loads nothing of it."""
