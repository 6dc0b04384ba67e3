"""Queries, keys and values of a trained trial, and what reads them."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from attention.hosts.probe import Layer
from attention.masks import Bias, Masks
from attention.verification import cached_tensors
from sweeps import __main__ as command
from sweeps.job import trainer
from sweeps.records import layout, status
from sweeps.training import tensors

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trial(tmp_path_factory, make_trial_in, data_dir):
    """The directory of a trial of digits_vit, laser+temp at τ = 0.5, trained for 4 steps."""
    variant = "laser+temp"
    settings = {"variants": variant, "baseline": variant, "tuning_variant": variant, "tau": 0.5}
    folder = tmp_path_factory.mktemp("trained")
    directory = make_trial_in(folder, "grid", protocol="grid", points=1, steps=4, **settings)
    trainer.Trainer().run(directory, data_dir)
    assert status.read(directory)["state"] == "done"
    return directory


def _files(directory):
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}


def test_tensors_of_a_trial_are_written_and_nothing_else_is(trial, tmp_path, capsys):
    out = tmp_path / "qkv.npz"
    before = _files(trial)
    assert command.main(["tensors", str(trial), f"--out={out}", "--examples=2"]) == 0
    assert _files(trial) == before
    assert "layers x 2 examples, step 4, float32" in capsys.readouterr().out
    with np.load(out) as file:
        about = json.loads(str(file["about"]))
    assert about["trial"] == layout.read_json(trial / layout.TRIAL)["id"]
    assert (about["global_step"], about["examples"], about["dtype"]) == (4, 2, "float32")
    read = list(cached_tensors.read(out))
    assert len(read) == 2 * len(about["scales"])
    first, second = read[:2]
    assert first.layer == second.layer != read[2].layer
    assert first.query.shape == first.key.shape == first.value.shape
    assert not np.array_equal(first.query, second.query)
    # Logits are divided by τ·√D.
    assert about["scales"] == pytest.approx([first.query.shape[-1] ** -0.5 / 0.5] * len(read[::2]))


def test_what_cannot_be_dumped_says_why(trial, make_trial, tmp_path, capsys, monkeypatch):
    untrained = make_trial()
    for directory, more, words in (
        (tmp_path, (), "is no trial"),
        (untrained, (), "has no checkpoint yet"),
        (trial, ("--examples=17",), "a batch has 1 to 16"),
        (trial, ("--out=/nowhere/qkv.npz",), "is no directory"),
    ):
        assert command.main(["tensors", str(directory), *more]) == 2
        assert words in capsys.readouterr().err
    monkeypatch.setattr(status, "read", lambda directory: {"state": "running"})
    assert command.main(["tensors", str(trial)]) == 2
    assert "is running" in capsys.readouterr().err


def _layer(bias=None, pairs=None, scale=0.5):
    arrays = [jnp.full((2, 3, 1, 4), x, jnp.bfloat16) for x in (1, 2, 3)]
    return Layer(
        *arrays, Bias(bias), Masks(pairs), (), scale, None, "block/attention", 80.0, "laser", ()
    )


def test_queries_carry_a_scale_that_is_not_the_usual_one():
    """1/√4 is 0.5: half of it leaves half of the query."""
    assert np.unique(tensors._arrays("a", _layer())["query"]) == [1]
    assert np.unique(tensors._arrays("a", _layer(scale=0.25))["query"]) == [0.5]


def test_masks_get_the_axes_of_the_file_and_biases_are_refused():
    causal = jnp.tril(jnp.ones((1, 3, 3), bool))
    assert tensors._arrays("a", _layer(pairs=causal))["visibility"].shape == (1, 1, 3, 3)
    hiding = jnp.where(causal, 0, -1e9)
    assert tensors._arrays("a", _layer(hiding, causal))["visibility"].sum() == 6
    with pytest.raises(ValueError, match="adds a bias"):
        tensors._arrays("a", _layer(hiding - 1, causal))


def test_calls_of_one_module_have_names_of_their_own():
    layers = [_layer(), _layer()]
    assert tensors._names(layers) == ["block/attention#0", "block/attention#1"]
    assert tensors._names(layers[:1]) == ["block/attention"]
