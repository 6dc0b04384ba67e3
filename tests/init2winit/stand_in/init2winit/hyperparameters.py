"""Hyperparameters: the defaults, and what overrides them."""

import json

from ml_collections import config_dict


def build_hparams(model_name, hparam_overrides):
    del model_name
    lr = {"base_lr": 0.001, "schedule": "cosine"}
    hps = config_dict.ConfigDict({"batch_size": 2, "rng_seed": 0, "lr_hparams": lr})
    hps.update({"optimizer": "adam", "label_smoothing": 0.0, "dropout_rate": 0.0})
    hps.diverges_at = 0
    hps.opt_hparams = config_dict.ConfigDict()
    hps.lock()
    for name in ("lr_hparams", "opt_hparams"):
        hps[name].unlock()
    hps.update(json.loads(hparam_overrides) if hparam_overrides else {})
    return hps
