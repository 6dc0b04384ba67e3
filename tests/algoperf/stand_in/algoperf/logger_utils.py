"""The files of a trial."""

import collections
import csv
import json
import os


def write_json(name, log_dict):
    with open(name, "w") as file:
        json.dump(log_dict, file)


def get_meta_data(workload, rng_seed=None):
    values = {
        f"workload.{name}": getattr(workload, name)
        for name in dir(workload)
        if not name.startswith("_") and name not in ("param_shapes", "model_params_types")
    }
    plain = {name: value for name, value in values.items() if isinstance(value, (float, int, str))}
    return {"rng_seed": rng_seed, **plain}


class MetricLogger:
    """measurements.csv with every row, eval_measurements.csv with the evaluations' rows."""

    def __init__(self, train_dir):
        self._rows = collections.defaultdict(list)
        self._directory = train_dir

    def append_scalar_metrics(self, metrics, global_step, preemption_count=None, is_eval=False):
        metrics["global_step"] = global_step
        if preemption_count is not None:
            metrics["preemption_count"] = preemption_count
        self._write("measurements.csv", metrics)
        if is_eval:
            self._write("eval_measurements.csv", metrics)

    def _write(self, name, metrics):
        rows = self._rows[name]
        rows.append({key: str(value) for key, value in sorted(metrics.items())})
        with open(os.path.join(self._directory, name), "w", newline="") as file:
            columns = dict.fromkeys(key for row in rows for key in row)
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)

    def finish(self):
        self._rows.clear()


def set_up_loggers(train_dir, configs, hyperparameters):
    return MetricLogger(train_dir)
