"""The parity table as such: verdicts, refusals, exit status. Needs no AlgoPerf."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from sweeps import __main__ as command
from sweeps.algoperf import parity as algoperf_parity
from workloads.algoperf import installation
from workloads.algoperf.parity import metrics, rows, table_of_rows
from workloads.algoperf.parity.rows import Row
from workloads.base import host_checkout


def test_rows_pass_up_to_their_tolerance_and_never_with_nan():
    assert Row("a", "b", 1e-5, 1e-5).passed
    assert not Row("a", "b", 2e-5, 1e-5).passed
    assert not Row("a", "b", math.nan, 1e-5).passed


def test_differences_are_relative_to_large_values_alone():
    assert rows.largest({"x": jnp.ones(3)}, {"x": jnp.zeros(3)}) == 1.0
    assert rows.largest(jnp.full(2, 101.0), jnp.full(2, 100.0)) == pytest.approx(0.01)
    assert rows.norm_ratio(jnp.asarray([3.0, 4.0]), jnp.asarray([3.0, 0.0])) == 4 / 3


@pytest.mark.parametrize("side", [0, 1])
def test_a_nan_in_any_leaf_is_the_difference(side):
    trees = [{"a": jnp.ones(2), "b": jnp.ones(2)}, {"a": jnp.ones(2), "b": jnp.ones(2)}]
    trees[side]["b"] = jnp.array([1.0, jnp.nan])
    assert np.isnan(rows.largest(*trees))


def test_nothing_is_broadcast_away():
    with pytest.raises(ValueError, match="shapes differ"):
        rows.largest(jnp.ones((2, 1)), jnp.ones((2, 3)))
    with pytest.raises(ValueError, match="trees differ"):
        rows.largest({"a": jnp.ones(2)}, {"b": jnp.ones(2)})


def test_one_row_beyond_its_tolerance_fails_the_command(monkeypatch, capsys):
    found = installation.Installation(installation.Path("/nowhere"), None, host_checkout.Revision())
    table = [Row("w", "good", 0.0, 0.0), Row("w", "bad", 1.0, 0.1, "why")]
    monkeypatch.setattr(table_of_rows, "prepared", lambda directory: found)
    monkeypatch.setattr(table_of_rows, "rows", lambda *_: iter(table))
    assert command.main(["algoperf_parity"]) == 1
    printed = capsys.readouterr().out
    assert "| w | bad; why | 1 | 0.1 | **FAIL** |" in printed
    assert "2 quantities, 1 beyond" in printed
    table.pop()
    assert command.main(["algoperf_parity"]) == 0


def test_without_algoperf_or_with_an_unknown_part_it_says_what_to_do(tmp_path, capsys):
    assert command.main(["algoperf_parity", f"--algoperf_dir={tmp_path}"]) == 2
    assert "is not AlgoPerf" in capsys.readouterr().err
    found = installation.Installation(tmp_path, None, host_checkout.Revision())
    with pytest.raises(ValueError, match="no such part; use metrics"):
        list(table_of_rows.rows(found, ["speed"]))
    with pytest.raises(ValueError, match="not compared; use imagenet_vit"):
        list(table_of_rows.rows(found, ["models"], ("wmt",)))


def test_the_command_has_every_part(tmp_path):
    assert set(algoperf_parity.PARTS) == {"optimizer", *table_of_rows.PARTS}
    found = installation.Installation(tmp_path, None, host_checkout.Revision())
    with pytest.raises(ValueError, match="no such part; use optimizer, metrics"):
        list(table_of_rows.rows(found, ["speed"], (), algoperf_parity.PARTS))


def test_printed_tensors():
    assert metrics.printed("the cat") == "tf.Tensor(b'the cat', shape=(), dtype=string)"
    assert metrics.printed("don't") == 'tf.Tensor(b"don\'t", shape=(), dtype=string)'
