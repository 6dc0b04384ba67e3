"""Hyperparameters: the defaults, and what overrides them."""

import json

from ml_collections import config_dict


def build_hparams(model_name, hparam_overrides):
    del model_name
    lr = {"base_lr": 0.001, "schedule": "cosine"}
    hps = config_dict.ConfigDict({"batch_size": 2, "rng_seed": 0, "lr_hparams": lr})
    hps.lr_hparams.unlock()
    hps.update(json.loads(hparam_overrides) if hparam_overrides else {})
    return hps
