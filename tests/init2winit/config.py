"""What init2winit's `main.py` reads of its `--config`, with the defaults of its own flags.

init2winit publishes no config file. These are the fields of its main.py, with the defaults of the
flags that it had before commit a70cf2e (log_frequency as trainer_lib/base_trainer.py has it).
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    """Returns the config; model and num_train_steps have no default."""
    empty = config_dict.placeholder
    return config_dict.ConfigDict(
        {
            "trainer": "standard",
            "model": empty(str),
            "loss": "cross_entropy",
            "metrics": "classification_metrics",
            "initializer": "noop",
            "dataset": "mnist",
            "data_selector": "noop",
            "training_algorithm": "optax_training_algorithm",
            "num_train_steps": empty(int),
            "num_tf_data_prefetches": -1,
            "num_device_prefetches": 0,
            "num_tf_data_map_parallel_calls": -1,
            "eval_batch_size": empty(int),
            "eval_use_ema": empty(bool),
            "eval_num_batches": empty(int),
            "test_num_batches": empty(int),
            "eval_train_num_batches": empty(int),
            "eval_frequency": 1000,
            "eval_steps": (),
            "log_frequency": 100,
            "log_steps": (),
            "checkpoint_steps": (),
            "ttl": empty(str),
            "external_checkpoint_path": empty(str),
            "early_stopping_target_name": empty(str),
            "early_stopping_target_value": empty(float),
            "early_stopping_mode": empty(str),
            "early_stopping_min_steps": 0,
            "hparam_overrides": config_dict.ConfigDict(),
            "hparam_overrides_json": "",
            "allowed_unrecognized_hparams": (),
            "training_metrics_config": empty(dict),
            "callback_configs": (),
            "compile_init_on_cpu": False,
        }
    )
