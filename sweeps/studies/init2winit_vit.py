"""init2winit's Vision Transformer, by its own trainer."""

import json

from sweeps.studies import ConfigDict, family

_SMALL = {
    **{"train_size": 997, "valid_size": 400, "test_size": 400, "num_classes": 10},
    **{"width": 48, "depth": 2, "mlp_dim": 96, "num_heads": 4, "patch_size": [7, 7]},
}


def init2winit_vit_demo(config: ConfigDict) -> None:
    """A small Vision Transformer of init2winit's, by its own trainer: standard against LASER.

    Command:  python -m sweeps run --config=init2winit_vit_demo --config.data_dir=DIR, with
              ATTNPERF_INIT2WINIT_DIR=CHECKOUT; docs/init2winit.md has what comes before
    Time:     3 to 4 minutes on two CPU cores, most of it the start of eight processes.
    Result:   errors near 0.6, and no verdict: 100 steps on digits in place of MNIST.
    """
    config.update(
        workload="init2winit:vit",
        init2winit_config=json.dumps({"dataset": "mnist", "hparam_overrides": _SMALL}),
        points=2,
        steps=100,
        batch_size=50,
        eval_every=20,
        log_every=5,
    )


get_config = family("init2winit_vit", globals())
