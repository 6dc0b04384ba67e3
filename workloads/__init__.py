"""Where: model + data + loss + metric, at full size and small. `python -m workloads --help`."""
