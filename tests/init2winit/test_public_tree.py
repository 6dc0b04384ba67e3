"""init2winit's own trainer and models with variants; skips where there is no checkout.

ATTNPERF_INIT2WINIT_DIR names the checkout.
"""

import json
import os
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from analysis.load import studies
from attention import table
from tests import floor_plan
from tests.init2winit import public_tree
from workloads.init2winit import models as variants

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # init2winit's and its libraries' own
    pytest.mark.slow,
]

_TEXT = {
    "emb_dim": 32, "num_heads": 2, "num_layers": 2, "mlp_dim": 64, "vocab_size": 20,
    "input_shape": (8,), "output_shape": (20,), "max_target_length": 8,
    "max_eval_target_length": 8,
}  # fmt: skip
_SPEECH = {
    "encoder_dim": 32, "num_encoder_layers": 2, "num_attention_heads": 2,
    "input_shape": [(3200,), (3200,)], "output_shape": (-1, 16),
    "tokenizer_vocab_path": "", "tokenizer_type": "SPM",
}  # fmt: skip
SETTINGS = {
    "vit": {
        "width": 32, "depth": 2, "mlp_dim": 64, "num_heads": 2, "num_classes": 10,
        "patch_size": (4, 4), "head_zeroinit": False, "input_shape": (8, 8, 3),
        "output_shape": (10,),
    },
    "conformer": _SPEECH,
    "mlcommons_conformer": _SPEECH,
    "transformer": {**_TEXT, "qkv_dim": 32},
    "nanodo": _TEXT,
    "rope_nanodo": _TEXT,
}  # fmt: skip
TINY = {
    "batch_size": 8, "input_shape": [28, 28, 1], "output_shape": [10], "num_classes": 10,
    "width": 32, "depth": 2, "mlp_dim": 64, "num_heads": 2, "patch_size": [7, 7], "rng_seed": 0,
    "lr_hparams": {"base_lr": 0.003, "schedule": "cosine_warmup", "warmup_steps": 2},
}  # fmt: skip


def test_its_trainer_trains_with_a_variant(tree, tmp_path):
    """`standard` ends with the losses of the model without us, to every digit."""
    for model in ("vit", "vit_standard", "vit_laser"):
        command = [
            sys.executable, "-m", public_tree.__name__, str(tree), f"--config.model={model}",
            "--config.dataset=fake", "--config.num_train_steps=8", "--config.eval_frequency=4",
            "--config.eval_num_batches=1", f"--experiment_dir={tmp_path / model}",
            f"--config.hparam_overrides_json={json.dumps(TINY)}",
        ]  # fmt: skip
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(
            command, cwd=floor_plan.ROOT, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-3000:]
    runs = {run.path.parent.name: run for run in studies.read_study(tmp_path).runs}
    assert {name: run.variant for name, run in runs.items()} == {
        "vit": "its own", "vit_standard": "standard", "vit_laser": "laser"
    }  # fmt: skip
    assert {(run.state, run.last_step) for run in runs.values()} == {("done", 8)}
    losses = {name: run.evals["validation/loss"] for name, run in runs.items()}
    assert np.array_equal(losses["vit"], losses["vit_standard"])
    assert not np.array_equal(losses["vit"], losses["vit_laser"])


@pytest.fixture(scope="module")
def models(tree):
    """init2winit's module models with ours, and with differential attention."""
    main = public_tree.load(tree)
    variants.register(main.models, names=("vit", "transformer"), variants=("diff",))
    return main.models


def _flax_module(models, name, row=None, **settings):
    registered = name if row is None else f"{name}_{row}"
    hps = models.get_model_hparams(registered).copy_and_resolve_references()
    hps.unlock()
    hps.update({"batch_size": 2, **SETTINGS[name], **settings})
    model = types.SimpleNamespace(hps=hps, dataset_meta_data={"shift_inputs": True, "causal": True})
    return models.get_model(registered).build_flax_module(model)


def _inputs(name):
    random = jax.random.key(0)
    if name == "vit":
        return (jax.random.normal(random, (2, 8, 8, 3)),)
    if "conformer" in name:
        return jax.random.normal(random, (2, 3200)), jnp.zeros((2, 3200))
    return (jax.random.randint(random, (2, 8), 1, 20),)


def _init(module, name):
    keys = {"params": jax.random.key(1), "dropout": jax.random.key(2)}
    return jax.jit(lambda: module.init(keys, *_inputs(name), train=False))()


def _apply(module, name, variables):
    leaves = jax.jit(lambda v: module.apply(v, *_inputs(name), train=False))(variables)
    return leaves[0] if isinstance(leaves, tuple) else leaves


def _leaves(variables):
    leaves = jax.tree_util.tree_leaves_with_path(variables["params"])
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


@pytest.mark.parametrize("name", variants.MODELS)
def test_a_row_has_the_models_parameters_and_its_own(models, name):
    plain = _flax_module(models, name)
    variables = _init(plain, name)
    before, standard = _leaves(variables), _apply(plain, name, variables)
    rows = [row for row in table.PAPER_ROWS if f"{name}_{row}" in models._ALL_MODELS]
    assert len(rows) >= 6
    for row in rows:
        settings = {"attention_tau": 0.9} if "temp" in row.split("+") else {}
        ours = _flax_module(models, name, row, **settings)
        after = _leaves(variables := _init(ours, name))
        assert all(jnp.array_equal(before[path], after[path]) for path in before), row
        entries = table.entries_of(row).values()
        assert (after.keys() > before.keys()) == any(e.parameters != "none" for e in entries), row
        outputs = _apply(ours, name, variables)
        assert jnp.isfinite(outputs).all(), row
        change = jnp.abs(outputs - standard).max()
        # per_dim_temp is exactly standard where it begins.
        is_standard = row in ("standard", "standard+per_dim_temp")
        assert change < 1e-5 if is_standard else change > 1e-6, row


@pytest.mark.parametrize("name", ["vit", "transformer"])
def test_differential_attention_knows_its_layer(models, name):
    module = _flax_module(models, name, "diff")
    assert jnp.isfinite(_apply(module, name, _init(module, name))).all()
