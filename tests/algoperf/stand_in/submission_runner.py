"""AlgoPerf's runner in small: its flags, its way to a workload and a submission, its files."""

import csv
import importlib
import json
import os

import jax
from absl import app, flags, logging
from algoperf.workloads import workloads

for name in (
    *("submission_path", "workload", "framework", "tuning_search_space", "data_dir"),
    *("experiment_dir", "experiment_name", "hparam_end_index"),
):
    flags.DEFINE_string(name, None, "")
flags.DEFINE_integer("max_global_steps", None, "")
flags.DEFINE_integer("rng_seed", None, "")
FLAGS = flags.FLAGS


def write_json(directory, name, content):
    with open(os.path.join(directory, name), "w") as file:
        json.dump(content, file)


def meta_data(workload):
    names = (name for name in dir(workload) if name != "param_shapes")
    values = {f"workload.{name}": getattr(workload, name) for name in names}
    return {name: value for name, value in values.items() if isinstance(value, float | int | str)}


def train_once(workload, submission, batch_size, hyperparameters, log_dir):
    key = jax.random.PRNGKey(FLAGS.rng_seed)
    queue = workload._build_input_queue(key, "train", FLAGS.data_dir, batch_size)
    params, model_state = workload.init_model_fn(key)
    write_json(log_dir, "meta_data_0.json", meta_data(workload))
    write_json(log_dir, "flags_0.json", FLAGS.flag_values_dict())
    rows = []
    for step in range(1, FLAGS.max_global_steps + 1):
        rate = hyperparameters["learning_rate"]
        params = submission.update_params(workload, params, model_state, rate, next(queue), key)
        params = submission.prepare_for_eval(workload, params, step)
        try:
            metrics = workload.eval_model(
                workload.eval_batch_size, params, model_state, key, FLAGS.data_dir, None, step
            )
            rows.append({**metrics, "global_step": step})
        except RuntimeError:
            logging.exception(f"Eval step {step} error.")
    with open(os.path.join(log_dir, "eval_measurements.csv"), "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def main(_):
    entry = workloads.WORKLOADS[FLAGS.workload]
    workload = workloads.import_workload(
        workload_path=f"algoperf/workloads/{entry['workload_path']}_{FLAGS.framework}/workload.py",
        workload_class_name=entry["workload_class_name"],
        workload_init_kwargs={},
    )
    path = workloads.convert_filepath_to_module(FLAGS.submission_path)
    submission = importlib.import_module(path)
    with open(FLAGS.tuning_search_space) as file:
        point = json.load(file)[0]
    folder = f"{FLAGS.workload}_{FLAGS.framework}"
    trial = os.path.join(FLAGS.experiment_dir, FLAGS.experiment_name, folder, "trial_1")
    os.makedirs(trial)
    train_once(workload, submission, submission.get_batch_size(FLAGS.workload), point, trial)


if __name__ == "__main__":
    app.run(main)
