"""The files of a trial."""

import csv
import json
import os


def write_json(name, log_dict):
    with open(name, "w") as file:
        json.dump(log_dict, file)


def get_meta_data(workload, rng_seed=None):
    names = (name for name in dir(workload) if name != "param_shapes")
    values = {f"workload.{name}": getattr(workload, name) for name in names}
    return {name: value for name, value in values.items() if isinstance(value, float | int | str)}


class MetricLogger:
    """eval_measurements.csv, written anew with every evaluation."""

    def __init__(self, train_dir):
        self._rows = []
        self._path = os.path.join(train_dir, "eval_measurements.csv")

    def append_scalar_metrics(self, metrics, global_step):
        self._rows.append({**metrics, "global_step": global_step})
        with open(self._path, "w", newline="") as file:
            writer = csv.DictWriter(file, self._rows[0])
            writer.writeheader()
            writer.writerows(self._rows)
