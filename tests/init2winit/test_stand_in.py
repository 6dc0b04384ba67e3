"""The whole way, with a package that has init2winit's gaps: filled in, trained, recorded."""

import csv
import json
import os
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from analysis.load import studies
from attention import registry
from tests import floor_plan
from tests.init2winit.conftest import LIBRARIES
from workloads.algoperf.preflight import Request
from workloads.init2winit import models, preflight, runner


def _trained(stand_in, directory, model, attention, overrides=""):
    """What the stand-in's main returns, and its trial's directory."""
    arguments = (
        f"--config.model={model}", "--config.dataset=fake", "--config.num_train_steps=3",
        f"--experiment_dir={directory}", f"--config.hparam_overrides_json={overrides}",
    )  # fmt: skip
    request = Request(attention, None, arguments)
    run = preflight.check(request, stand_in)
    main = stand_in.main_module("/texts")
    before = (main.models, main.hyperparameters, main._write_trial_meta_data)
    runner.prepare(main, request, run, {})
    config = types.SimpleNamespace(
        model=model,
        num_train_steps=3,
        hparam_overrides_json=overrides,
        eval_frequency=3,
        log_frequency=1,
    )
    try:
        return main.train(config), directory / "1"
    finally:
        main.models, main.hyperparameters, main._write_trial_meta_data = before


def test_a_run_trains_with_the_variant_and_records_it(stand_in, tensorflow, tmp_path):
    (variables, outputs), directory = _trained(stand_in, tmp_path, "vit", "laser")
    meta = json.loads((directory / "meta_data.json").read_text())
    assert meta["status"] == "done"
    assert (meta["attention"], meta["model"], meta["num_train_steps"]) == ("laser", "vit", 3)
    assert meta["attention_layers"] == 1
    rows = list(csv.DictReader((directory / "measurements.csv").read_text().splitlines()))
    assert [row["global_step"] for row in rows] == ["1", "2", "3"]
    (same, standard), _ = _trained(stand_in, tmp_path / "standard", "vit", "standard")
    assert jax.tree.all(jax.tree.map(jnp.array_equal, variables, same))
    assert jnp.abs(outputs - standard).max() > 1e-5
    text = sys.modules["init2winit.dataset_lib.wikitext103_input_pipeline"]
    assert text.directory() == "/texts"
    assert text.tokenizer() is None
    assert sys.modules["init2winit.utils"].file_options().path_permission_mode == 0o775
    with pytest.raises(RuntimeError, match="tensorflow.contrib.image.rotate is not published"):
        sys.modules["init2winit.dataset_lib.datasets"].rotated(None)


@pytest.mark.parametrize("model", ["vit", "transformer", "nanodo"])
def test_standard_is_what_the_model_computes_itself(stand_in, tensorflow, tmp_path, model):
    (variables, outputs), _ = _trained(stand_in, tmp_path, model, "standard")
    plain = sys.modules["init2winit.model_lib.models"].get_model(model)({}).flax_module
    inputs = jax.random.normal(jax.random.key(0), (2, 4, 8))
    expected = plain.init(jax.random.key(0), inputs, train=False)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, variables, expected))
    assert jnp.allclose(outputs, plain.apply(variables, inputs, train=True), atol=1e-6)


@pytest.mark.parametrize("model", ["vit", "transformer", "nanodo"])
def test_lasers_logarithm_is_of_the_models_own_weights(stand_in, tensorflow, tmp_path, model):
    """exp(v) averaged by the name, and its logarithm, before a factor on the output: by hand."""
    (variables, outputs), _ = _trained(stand_in, tmp_path, model, "laser")
    params = variables["params"]
    layer = {"vit": "encoderblock_0", "transformer": "Block_0", "nanodo": "blocks_0"}[model]
    x = jax.random.normal(jax.random.key(0), (2, 4, 8))
    query, key, value = (
        jnp.einsum("btm,mhd->bthd", x, params[layer][name]["kernel"])
        for name in ("query", "key", "value")
    )
    factor = 1.5 if model == "transformer" else 1.0
    logits = jnp.einsum("bqhd,bkhd->bhqk", query, key) * factor / query.shape[-1] ** 0.5
    if model != "vit":
        logits = jnp.where(jnp.tril(jnp.ones((4, 4), bool)), logits, -jnp.inf)
    mean = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits), jnp.exp(value))
    mixed = jnp.log(mean) * (0.5 if model == "vit" else 1.0)
    x = jnp.einsum("bthd,hdm->btm", mixed, params[layer]["out"]["kernel"])
    expected = x.mean(axis=-2) @ params["head"]["kernel"] + params["head"]["bias"]
    assert jnp.allclose(outputs, expected, atol=1e-5)


@pytest.mark.parametrize("model", ["vit", "transformer", "nanodo"])
def test_a_gate_gets_the_blocks_input(stand_in, tensorflow, tmp_path, model):
    """Its leaf lies beside the projections, as wide as the input, and changes nothing at first."""
    (variables, outputs), _ = _trained(stand_in, tmp_path / "a", model, "laser+gate")
    (_, plain), _ = _trained(stand_in, tmp_path / "b", model, "laser")
    layer = {"vit": "encoderblock_0", "transformer": "Block_0", "nanodo": "blocks_0"}[model]
    assert variables["params"][layer]["gate"]["scale"].shape[0] == 8
    assert jnp.allclose(outputs, plain, atol=1e-6)


def _ignoring(attention):
    class Flash(attention.SelfAttention):
        @nn.compact
        def __call__(self, x, mask=None):
            return nn.Dense(x.shape[-1])(x)

    return Flash(2)


@pytest.mark.parametrize(
    ("make", "variant", "error", "words"),
    [
        (
            lambda attention: attention.SelfAttention(2, normalize_attention=True),
            *("standard+qk_norm", ValueError, "already normalises queries and keys"),
        ),
        (
            lambda attention: attention.SelfAttention(
                2, attention_fn=lambda query, *_, **__: query
            ),
            *("laser", ValueError, "an attention function of its own"),
        ),
        (lambda attention: nn.Dense(2), "laser", RuntimeError, "nothing to inject 'laser' into"),
        (_ignoring, "laser", RuntimeError, "'laser' ran in 0 of 1 attention modules.*Flash"),
    ],
)
def test_layers_that_a_variant_cannot_enter(stand_in, tensorflow, make, variant, error, words):
    stand_in.main_module(None)
    module = make(sys.modules["init2winit.model_lib.attention"])
    with (
        pytest.raises(error, match=words),
        models.injected_copies(registry.get(variant), layer=lambda path: 0),
    ):
        module.init(jax.random.key(0), jnp.ones((1, 2, 4)))


@pytest.mark.parametrize("name", ["vit", "transformer", "nanodo"])
def test_the_number_of_layers_is_that_of_the_hyperparameters(stand_in, tensorflow, name):
    stand_in.main_module(None)
    plain = sys.modules["init2winit.model_lib.models"].get_model(name)
    counts = []
    made = models.model_class(plain, name, lambda hps: registry.get("laser"), counts.append)
    made({"num_layers": 1}).flax_module.init(jax.random.key(0), jnp.ones((1, 2, 4)))
    assert counts == [1]
    for hps, number in (({"num_layers": 6}, 6), ({"depth": 12, "pool_type": "map"}, 13)):
        module = made(hps).flax_module
        with pytest.raises(ValueError, match=f"ran in 1 attention layers, .* has {number}:"):
            module.init(jax.random.key(0), jnp.ones((1, 2, 4)))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("{", "init2winit refuses these hparam_overrides: Expecting"),
        ("[1]", "init2winit refuses these hparam_overrides"),
        ('{"batch_size": {"widht": 1}}', "init2winit refuses these hparam_overrides: .*widht"),
        ('{"lr_hparams": {"schedule": "cosine_warmup"}}', "needs lr_hparams.warmup_steps"),
        ('{"optimizer": "nadam"}', "scale_by_nadam"),
    ],
)
def test_hyperparameters_that_are_refused(stand_in, tensorflow, tmp_path, overrides, words):
    with pytest.raises(ValueError, match=words):
        _trained(stand_in, tmp_path, "vit", "laser", overrides)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "code", "state", "words"),
    [
        ({}, 0, "done", "filled in (alias): init2winit.hessian"),
        ({"diverges_at": 4}, 1, "diverged", "diverged: divergence at step 4"),
        ({"widht": 3}, 2, None, "init2winit refuses these hparam_overrides"),
    ],
)
def test_the_command_ends_as_the_training_does(stand_in, tmp_path, overrides, code, state, words):
    """In a process of its own, from its flags to the logs that `analysis` reads."""
    arguments = (
        "--attention=laser", f"--init2winit_dir={stand_in.directory}", "--", "--config.model=vit",
        "--config.dataset=fake", "--config.num_train_steps=4", "--config.eval_frequency=2",
        f"--experiment_dir={tmp_path / 'e'}",
        f"--config.hparam_overrides_json={json.dumps(overrides)}",
    )  # fmt: skip
    paths = os.pathsep.join(map(str, (floor_plan.ROOT, LIBRARIES)))
    ended = subprocess.run(
        [sys.executable, "-m", "workloads", "init2winit", *arguments],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    assert words in ended.stderr
    assert (tmp_path / "e/1/meta_data.json").exists() == (state is not None)
    if state:
        (run,) = studies.read_study(tmp_path / "e").runs
        assert (run.variant, run.state, run.last_step) == ("laser", state, 4 if code == 0 else 2)
