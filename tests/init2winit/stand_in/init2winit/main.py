"""Its main file: uses names that are defined nowhere, and trains for as long as it takes."""

import json
import os

import jax
import jax.numpy as jnp
import tensorflow as tf
from absl import flags
from ml_collections import config_flags
from vizier import pyvizier  # noqa: F401

from init2winit import hyperparameters, utils
from init2winit.dataset_lib import datasets  # noqa: F401
from init2winit.hessian import precondition  # noqa: F401
from init2winit.model_lib import models
from init2winit.trainer_lib import base_trainer

gfile = tf.io.gfile
makedirs = tf.io.gfile.makedirs


def _write_trial_meta_data(meta_data_path, meta_data):
    with gfile.GFile(meta_data_path, "w") as file:
        file.write(json.dumps(meta_data))


def train(config):
    """Trains nothing, and writes what the real one does; diverges at the step `diverges_at`."""
    makedirs(experiment_dir, mode=0o775)  # noqa: F821
    makedirs(os.path.join(experiment_dir, CNS_LOGS_ENCODING, "logs", str(worker_id)))  # noqa: F821
    trial_dir = os.path.join(experiment_dir, str(worker_id))  # noqa: F821
    makedirs(trial_dir, mode=0o775)
    hps = hyperparameters.build_hparams(config.model, config.hparam_overrides_json)
    model = models.get_model(config.model)(hps)
    base_trainer.file_options()
    meta_data = {"worker_id": worker_id, "status": "incomplete"}  # noqa: F821
    _write_trial_meta_data(os.path.join(trial_dir, "meta_data.json"), meta_data)
    inputs = jax.random.normal(jax.random.key(0), (2, 4, 8))
    variables = model.flax_module.init(jax.random.key(hps.rng_seed), inputs, train=False)
    logger = utils.MetricLogger(os.path.join(trial_dir, "measurements.csv"))
    end = config.num_train_steps
    try:
        for step in range(1, end + 1):
            outputs = model.flax_module.apply(variables, inputs, train=True)
            row = {"global_step": step, "train_cost": 1.0 / step, "train_steps_per_sec": 4.0}
            if step % config.eval_frequency == 0 or step == end:
                if hps.diverges_at and step >= hps.diverges_at:
                    raise utils.TrainingDivergedError(f"divergence at step {step}")
                error = 1.0 / step + 1e-3 * float(jnp.mean(outputs**2))
                splits = {f"{name}/error_rate": error for name in ("train", "valid", "test")}
                times = {"run_time_no_eval": 3.0, "eval_time": 1.0, "run_time": 4.0}
                logger.append_scalar_metrics({**row, **splits, **times})
            elif step % config.log_frequency == 0:
                logger.append_scalar_metrics(row)
        meta_data["status"] = "done"
    except utils.TrainingDivergedError:
        meta_data["status"] = "diverged"
        raise
    finally:
        _write_trial_meta_data(os.path.join(trial_dir, "meta_data.json"), meta_data)
    return variables, outputs


def main(argv):
    del argv
    train(flags.FLAGS.config)


if "config" not in flags.FLAGS:  # tests import several copies
    config_flags.DEFINE_config_file("config", None, lock_config=True)
    flags.DEFINE_string("experiment_dir", None, "")
if __name__ == "__main__":
    app.run(main)  # noqa: F821
