"""Stand-in for AlgoPerf's runner: its flags, its order of calls, its files, on one device."""

import importlib
import inspect
import json
import os
import time
import types

from absl import app, flags, logging
from algoperf import halton, logger_utils, spec
from algoperf import random_utils as prng
from algoperf.workloads import workloads

flags.DEFINE_string("submission_path", None, "")
flags.DEFINE_string("workload", None, "")
flags.DEFINE_enum("tuning_ruleset", "external", ["external", "self"], "")
flags.DEFINE_string("tuning_search_space", None, "")
flags.DEFINE_integer("num_tuning_trials", 1, "")
flags.DEFINE_string("data_dir", "~/data", "")
flags.DEFINE_string("imagenet_v2_data_dir", None, "")
flags.DEFINE_string("librispeech_tokenizer_vocab_path", "", "")
flags.DEFINE_enum("framework", None, ["jax", "pytorch"], "")
flags.DEFINE_string("experiment_dir", None, "")
flags.DEFINE_string("experiment_name", None, "")
flags.DEFINE_boolean("save_checkpoints", True, "")
flags.DEFINE_boolean("resume_last_run", None, "")
flags.DEFINE_boolean("append_timestamp", False, "")
flags.DEFINE_integer("max_global_steps", None, "")
flags.DEFINE_boolean("overwrite", False, "")
flags.DEFINE_integer("hparam_start_index", None, "")
flags.DEFINE_integer("hparam_end_index", None, "")
flags.DEFINE_integer("rng_seed", None, "")
flags.DEFINE_boolean("skip_evals", False, "")
FLAGS = flags.FLAGS


def train_once(workload, submission, batch_size, eval_batch_size, hyperparameters, log_dir):
    rng = prng.split(prng.PRNGKey(FLAGS.rng_seed))[0]
    data_rng, optimizer_rng, model_rng, rng = prng.split(rng, 4)
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
    train_state = {"training_complete": False, "accumulated_submission_time": 0.0}
    wants_state = "train_state" in inspect.signature(submission.update_params).parameters
    results, step, start = [], 0, time.time()
    while not train_state["training_complete"]:
        began = time.time()
        choose_rng, update_rng, prepare_rng, eval_rng = prng.split(prng.fold_in(rng, step), 4)
        batch = submission.data_selection(
            workload, queue, state, params, model_state, hyperparameters, step, choose_rng
        )
        try:
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
                global_step=step,
                rng=update_rng,
                **({"train_state": types.MappingProxyType(train_state)} if wants_state else {}),
            )
        except spec.TrainingCompleteError:
            train_state["training_complete"] = True
        step += 1
        train_state["training_complete"] |= step == FLAGS.max_global_steps
        train_state["accumulated_submission_time"] += time.time() - began
        if FLAGS.skip_evals:
            continue
        if hasattr(submission, "prepare_for_eval"):
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
            found = workload.eval_model(
                eval_batch_size,
                params,
                model_state,
                eval_rng,
                FLAGS.data_dir,
                FLAGS.imagenet_v2_data_dir,
                step,
            )
            workload.has_reached_validation_target(found)
            workload.has_reached_test_target(found)
            spent = train_state["accumulated_submission_time"]
            found |= {"score": spent, "accumulated_submission_time": spent}
            found |= {"accumulated_eval_time": 0.0, "accumulated_logging_time": 0.0}
            found |= {"total_duration": time.time() - start}
            results.append((step, found))
            logger.append_scalar_metrics(found, global_step=step, preemption_count=0, is_eval=True)
        except RuntimeError:
            logging.exception(f"Eval step {step} error.")
    score = {"score": train_state["accumulated_submission_time"]}
    logger.append_scalar_metrics(score, global_step=step, preemption_count=0)
    logger.finish()


def main(_):
    entry = workloads.WORKLOADS[FLAGS.workload]
    entry["workload_path"] = os.path.join(
        workloads.BASE_WORKLOADS_DIR, f"{entry['workload_path']}_{FLAGS.framework}", "workload.py"
    )
    kwargs = {}
    if FLAGS.librispeech_tokenizer_vocab_path:
        kwargs["tokenizer_vocab_path"] = FLAGS.librispeech_tokenizer_vocab_path
    workload = workloads.import_workload(
        workload_path=entry["workload_path"],
        workload_class_name=entry["workload_class_name"],
        workload_init_kwargs=kwargs,
    )
    log_dir = logger_utils.get_log_dir(
        FLAGS.experiment_dir,
        FLAGS.workload,
        FLAGS.framework,
        FLAGS.experiment_name,
        FLAGS.resume_last_run,
        FLAGS.overwrite,
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
        points = halton.generate_search(json.load(file), FLAGS.num_tuning_trials)
    for number, point in enumerate(points, 1):
        trial = os.path.join(log_dir, f"trial_{number}")
        os.makedirs(trial, exist_ok=True)
        point = logger_utils.write_hparams(point, trial)
        train_once(workload, submission, batch_size, eval_batch_size, point, trial)


if __name__ == "__main__":
    for name in ("workload", "framework", "submission_path", "experiment_dir", "experiment_name"):
        flags.mark_flag_as_required(name)
    app.run(main)
