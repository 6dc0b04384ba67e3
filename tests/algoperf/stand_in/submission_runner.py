"""Stand-in for AlgoPerf's runner: its flags, its order of calls, its files, on one device."""

import collections
import importlib
import json
import os
import time

import jax
from absl import app, flags, logging
from algoperf import logger_utils
from algoperf.workloads import workloads

flags.DEFINE_string("submission_path", None, "")
flags.DEFINE_string("workload", None, "")
flags.DEFINE_enum("tuning_ruleset", "external", ["external", "self"], "")
flags.DEFINE_string("tuning_search_space", None, "")
flags.DEFINE_string("data_dir", "~/data", "")
flags.DEFINE_string("imagenet_v2_data_dir", None, "")
flags.DEFINE_string("librispeech_tokenizer_vocab_path", "", "")
flags.DEFINE_enum("framework", None, ["jax", "pytorch"], "")
flags.DEFINE_string("experiment_dir", None, "")
flags.DEFINE_string("experiment_name", None, "")
flags.DEFINE_boolean("resume_last_run", None, "")
flags.DEFINE_integer("max_global_steps", None, "")
flags.DEFINE_integer("hparam_start_index", None, "")
flags.DEFINE_integer("hparam_end_index", None, "")
flags.DEFINE_integer("rng_seed", None, "")
flags.DEFINE_boolean("skip_evals", False, "")
FLAGS = flags.FLAGS


def train_once(workload, submission, batch_size, eval_batch_size, hyperparameters, log_dir):
    data_rng, optimizer_rng, model_rng, rng = jax.random.split(
        jax.random.PRNGKey(FLAGS.rng_seed), 4
    )
    queue = workload._build_input_queue(
        data_rng, "train", data_dir=FLAGS.data_dir, global_batch_size=batch_size
    )
    params, model_state = workload.init_model_fn(model_rng)
    state = submission.init_optimizer_state(
        workload, params, model_state, hyperparameters, optimizer_rng
    )
    meta_data = logger_utils.get_meta_data(workload, FLAGS.rng_seed)
    logger_utils.write_json(os.path.join(log_dir, "meta_data_0.json"), meta_data)
    logger_utils.write_json(os.path.join(log_dir, "flags_0.json"), FLAGS.flag_values_dict())
    logger = logger_utils.set_up_loggers(log_dir, FLAGS, hyperparameters)
    workload.attach_metrics_logger(logger)
    results, start, trained = [], time.time(), 0.0
    for step in range(1, FLAGS.max_global_steps + 1):
        began = time.time()
        choose_rng, update_rng, prepare_rng, eval_rng = jax.random.split(
            jax.random.fold_in(rng, step), 4
        )
        batch = submission.data_selection(
            workload, queue, state, params, model_state, hyperparameters, step - 1, choose_rng
        )
        state, params, model_state = submission.update_params(
            workload=workload,
            current_param_container=params,
            current_params_types=workload.model_params_types,
            model_state=model_state,
            hyperparameters=hyperparameters,
            batch=batch,
            loss_type=workload.loss_type,
            optimizer_state=state,
            eval_results=results,
            global_step=step - 1,
            rng=update_rng,
        )
        trained += time.time() - began
        if FLAGS.skip_evals:
            continue
        state, params, model_state = submission.prepare_for_eval(
            workload=workload,
            current_param_container=params,
            current_params_types=workload.model_params_types,
            model_state=model_state,
            hyperparameters=hyperparameters,
            loss_type=workload.loss_type,
            optimizer_state=state,
            eval_results=results,
            global_step=step,
            rng=prepare_rng,
        )
        try:
            metrics = workload.eval_model(
                eval_batch_size,
                params,
                model_state,
                eval_rng,
                FLAGS.data_dir,
                FLAGS.imagenet_v2_data_dir,
                step,
            )
            workload.has_reached_validation_target(metrics)
            workload.has_reached_test_target(metrics)
            metrics |= {
                "score": trained,
                "accumulated_submission_time": trained,
                "total_duration": time.time() - start,
            }
            results.append((step, metrics))
            logger.append_scalar_metrics(metrics, step, preemption_count=0, is_eval=True)
        except RuntimeError:
            logging.exception(f"Eval step {step} error.")
    logger.append_scalar_metrics({"score": trained}, step, preemption_count=0)
    logger.finish()


def main(_):
    entry = workloads.WORKLOADS[FLAGS.workload]
    workload = workloads.import_workload(
        workload_path=f"algoperf/workloads/{entry['workload_path']}_{FLAGS.framework}/workload.py",
        workload_class_name=entry["workload_class_name"],
        workload_init_kwargs={},
    )
    path = workloads.convert_filepath_to_module(FLAGS.submission_path)
    submission = importlib.import_module(path)
    try:
        batch_size = submission.get_batch_size(FLAGS.workload)
    except ValueError:
        batch_size = submission.get_batch_size(workloads.get_base_workload_name(FLAGS.workload))
    own = getattr(submission, "get_eval_batch_size", None)
    eval_batch_size = own(FLAGS.workload) if own else workload.eval_batch_size
    with open(FLAGS.tuning_search_space) as file:
        values = json.load(file)[0]
    point = collections.namedtuple("Hyperparameters", values)(**values)
    folder = f"{FLAGS.workload}_{FLAGS.framework}"
    trial = os.path.join(FLAGS.experiment_dir, FLAGS.experiment_name, folder, "trial_1")
    os.makedirs(trial)
    logger_utils.write_json(os.path.join(trial, "hparams.json"), values)
    train_once(workload, submission, batch_size, eval_batch_size, point, trial)


if __name__ == "__main__":
    for name in ("workload", "framework", "submission_path", "experiment_dir", "experiment_name"):
        flags.mark_flag_as_required(name)
    app.run(main)
