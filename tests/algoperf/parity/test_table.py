"""The table of parity: verdicts, refusals, exit status. Needs no AlgoPerf."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from tests.algoperf.parity import __main__ as command
from tests.algoperf.parity import models, rows
from tests.algoperf.parity.rows import Row
from workloads.algoperf import installation
from workloads.base import host_checkout


@pytest.mark.parametrize(("difference", "passed"), [(1e-5, True), (2e-5, False), (math.nan, False)])
def test_rows_pass_up_to_their_tolerance_and_never_with_nan(difference, passed):
    assert Row("a", "b", difference, 1e-5).passed == passed


def test_differences_are_relative_to_large_values_alone():
    assert rows.largest({"x": jnp.ones(3)}, {"x": jnp.zeros(3)}) == 1.0
    assert rows.largest(jnp.full(2, 101.0), jnp.full(2, 100.0)) == pytest.approx(0.01)
    assert rows.norm_ratio(jnp.asarray([3.0, 4.0]), jnp.asarray([3.0, 0.0])) == 4 / 3


@pytest.mark.parametrize("side", [0, 1])
def test_a_nan_in_any_leaf_is_the_difference(side):
    trees = [{"a": jnp.ones(2), "b": jnp.ones(2)}, {"a": jnp.ones(2), "b": jnp.ones(2)}]
    trees[side]["b"] = jnp.array([1.0, jnp.nan])
    assert np.isnan(rows.largest(*trees))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(jnp.ones((2, 1)), jnp.ones((2, 3))), ({"a": jnp.ones(2)}, {"b": jnp.ones(2)})],
)
def test_nothing_is_broadcast_away(ours, theirs):
    with pytest.raises(ValueError, match="differ"):
        rows.largest(ours, theirs)


def test_a_comparison_that_is_not_in_float64_is_refused():
    with pytest.raises(TypeError, match="float32"):
        models._check_precision({"a": np.ones(1)}, np.ones(1, np.float32))


@pytest.mark.parametrize(("difference", "counts"), [(0.0, (2, 0)), (1.0, (1, 1))])
def test_rows_are_printed_and_counted(difference, counts, capsys):
    checkout = installation.Installation(installation.Path("/"), host_checkout.Revision())
    table = (Row("w", "a", 0.0, 0.0), Row("w", "b", difference, 0.1, "why"))
    assert command.show(checkout, table) == counts
    assert f"| w | b; why | {difference:.2g} | 0.1 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", ["--parts=speed", "--parts=models --workloads=wmt", "--algoperf_dir=/"]
)
def test_what_cannot_be_compared_is_refused(arguments):
    with pytest.raises(SystemExit) as end:
        command.main(arguments.split())
    assert end.value.code == 2
