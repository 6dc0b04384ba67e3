"""`config.matmul_precision`: part of a trial, of everything it computes, and of its records."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sweeps.job import accelerator
from sweeps.records import provenance
from sweeps.study import trial as trials
from sweeps.training import train_step
from tests.sweeps import test_live


def test_every_part_of_a_trial_is_traced_in_it_and_no_other_trial(make_trial, monkeypatch):
    """First state, step and evaluations; an environment that says otherwise changes nothing."""
    for name, named in (("float32", "float32"), ("default", None)):
        directory = make_trial(name=name, steps=4, matmul_precision=name)
        device = test_live.Device(lambda step: 1.0, monkeypatch)
        with jax.default_matmul_precision("tensorfloat32"):
            assert device.train(directory) == "done"
            assert jax.config.jax_default_matmul_precision == "tensorfloat32"
        assert device.precisions == [named] * 3


@pytest.mark.parametrize("precision", ["float32", "default"])
def test_a_step_is_traced_in_it_wherever_that_is_done(make_trial, precision):
    """Of a command that compiles and trains nothing, too."""
    trial = trials.read(make_trial(matmul_precision=precision))
    step = train_step.of_trial(trial)
    arguments = step.abstract_arguments(trial, tuple(jax.devices()))
    with jax.default_matmul_precision("tensorfloat32"):
        text = str(step.traced(*arguments).jaxpr)
    assert ("Precision.HIGHEST" in text) == (precision == "float32")
    assert "TF32" not in text


def test_it_is_recorded_beside_what_the_platform_makes_of_it(monkeypatch):
    workload = types.SimpleNamespace(param_shapes={})
    record = provenance.meta_data(workload, 0, "", "float32")
    assert (record["matmul_precision"], record["float32_products"]) == ("float32", "float32")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(provenance, "hardware", dict)
    for capability, made in (("9.0", "TF32"), ("7.5", "float32")):
        gpu = types.SimpleNamespace(compute_capability=capability)
        monkeypatch.setattr(jax, "devices", lambda gpu=gpu: [gpu])
        assert provenance.meta_data(workload, 0, "")["float32_products"] == made


# Values of a user's variables that gave other losses (the first three), or ended trials.
_OF_A_USER = {
    "jax_default_prng_impl": "rbg",
    "jax_threefry_partitionable": False,
    "jax_random_seed_offset": 7,
    "jax_enable_x64": True,
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_disable_jit": True,
    "jax_debug_nans": True,
    "jax_debug_infs": True,
    "jax_transfer_guard": "disallow",
}


def _drawn():
    key = train_step.seed_key(3, train_step.INIT)
    return jax.device_get(jax.random.normal(key, (4,))).tolist()


@pytest.mark.parametrize("name", provenance.PINNED)
def test_a_job_computes_by_no_option_of_the_user(name):
    expected, before = _drawn(), jax.config.values[name]
    try:
        jax.config.update(name, _OF_A_USER[name])
        if name in list(_OF_A_USER)[:3]:
            assert _drawn() != expected
        accelerator.set_up("", "")
        assert _drawn() == expected
        assert jnp.asarray(np.float64(1)).dtype == jnp.float32
        assert jax.config.values[name] != _OF_A_USER[name]
    finally:
        jax.config.update(name, before)


def test_variables_that_may_change_a_result_are_noted(monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    monkeypatch.setenv("HOME", "/elsewhere")
    workload = types.SimpleNamespace(param_shapes={})
    noted = provenance.meta_data(workload, 0, "/data")["variables"]
    assert noted["NVIDIA_TF32_OVERRIDE"] == "0"
    assert "HOME" not in noted
