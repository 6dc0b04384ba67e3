"""The files of a trial."""

import collections
import csv
import json
import os
import shutil


def get_log_dir(experiment_dir, workload, framework, experiment_name, resume_last_run, overwrite):
    path = os.path.join(
        os.path.expanduser(experiment_dir), experiment_name, f"{workload}_{framework}"
    )
    if os.path.exists(path) and overwrite:
        shutil.rmtree(path)
    elif os.path.exists(path) and not resume_last_run:
        raise SystemExit(input(f"{path} exists. Resume? [y/N]:"))
    os.makedirs(path, exist_ok=True)
    return path


def write_json(name, log_dict, indent=2):
    with open(name, "w") as file:
        json.dump(log_dict, file, indent=indent)


def write_hparams(hparams, tuning_dir):
    write_json(os.path.join(tuning_dir, "hparams.json"), hparams._asdict())
    return hparams


def get_meta_data(workload, rng_seed=None):
    found = {"rng_seed": rng_seed}
    for name in dir(workload):
        if name.startswith("_") or name in ("param_shapes", "model_params_types"):
            continue
        value = getattr(workload, name, None)
        if isinstance(value, (float, int, str, bool)):
            found[f"workload.{name}"] = value
    return found


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
