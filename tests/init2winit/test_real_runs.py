"""Training by init2winit's own trainer, through the command; skips where there is no checkout."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from analysis.load import studies
from tests import floor_plan

pytestmark = pytest.mark.slow
TINY = {
    "batch_size": 8, "input_shape": [28, 28, 1], "output_shape": [10], "num_classes": 10,
    "width": 32, "depth": 2, "mlp_dim": 64, "num_heads": 2, "patch_size": [7, 7], "rng_seed": 0,
    "lr_hparams": {"base_lr": 0.003, "schedule": "cosine_warmup", "warmup_steps": 2},
}  # fmt: skip


def _run(tree, directory, attention, *more):
    command = [
        sys.executable, "-m", "workloads", "init2winit", f"--attention={attention}",
        f"--init2winit_dir={tree.directory}", "--", "--config.model=vit", "--config.dataset=fake",
        "--config.num_train_steps=8", "--config.eval_frequency=4", "--config.eval_num_batches=1",
        f"--experiment_dir={directory}", f"--config.hparam_overrides_json={json.dumps(TINY)}",
        *more,
    ]  # fmt: skip
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, cwd=floor_plan.ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def _params(directory):
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(directory / "1/ttl=180d") as manager:
        restored = manager.restore(8, args=ocp.args.StandardRestore())
    import jax

    return jax.tree_util.tree_leaves(restored["params"])


@pytest.mark.filterwarnings("ignore")
def test_a_run_that_was_stopped_ends_as_one_that_was_not(tree, tmp_path):
    """Its fake data are the same batch for ever: init2winit shuffles other data anew on the way."""
    shown = _run(tree, tmp_path / "whole", "laser")
    assert "filled in (raises): init2winit.model_lib.lingvo_attention" in shown
    stop = (
        "--config.early_stopping_target_name=valid/ce_loss",
        "--config.early_stopping_target_value=100.0", "--config.early_stopping_mode=below",
    )  # fmt: skip
    _run(tree, tmp_path / "stopped", "laser", *stop)
    (run,) = studies.read_study(tmp_path / "stopped").runs
    assert run.last_step == 4
    assert any(problem.kind == "truncated" for problem in run.problems)
    assert "goes on from its last checkpoint" in _run(tree, tmp_path / "stopped", "laser")
    whole, stopped = _params(tmp_path / "whole"), _params(tmp_path / "stopped")
    assert all(np.array_equal(a, b) for a, b in zip(whole, stopped, strict=True))
    (run,) = studies.read_study(tmp_path / "stopped").runs
    assert (run.state, run.last_step, run.variant) == ("done", 8, "laser")
