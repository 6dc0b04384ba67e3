"""Search spaces: AlgoPerf's points, in their natural order, and refusals by name."""

import json
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from sweeps.records import layout
from sweeps.study import halton, hyperparameters, space


def test_bases_are_the_largest_odd_primes_but_one():
    assert halton.bases(1) == [991]
    assert halton.bases(3) == [977, 983, 991]
    assert len(halton.bases(200)) == 200


def test_van_der_corput_by_hand():
    """Base 5 with digits as they are: 7 = 12 in base 5 reads 0.21 = 2/5 + 1/25."""
    assert halton._radical_inverse(7, 5, [0, 1, 2, 3, 4]) == pytest.approx(2 / 5 + 1 / 25)
    assert halton._radical_inverse(7, 5, [0, 3, 4, 1, 2]) == pytest.approx(4 / 5 + 3 / 25)


def test_first_points_are_algoperfs():
    """The paper's space: the first point AlgoPerf's generate_search draws before it shuffles."""
    point = space.points(space.load("paper_nadamw"), 1)[0]
    assert point == {
        "learning_rate": pytest.approx(0.0019814680146414726, rel=1e-12),
        "one_minus_beta1": pytest.approx(0.07758862577375368, rel=1e-12),
        "beta2": 0.99,
        "warmup_factor": 0.05,
        "weight_decay": pytest.approx(0.010340635370188849, rel=1e-12),
        "label_smoothing": 0.1,
        "dropout_rate": 0.1,
    }


def test_a_shorter_sweep_is_the_beginning_of_a_longer_one():
    search_space = space.load("paper_nadamw")
    assert space.points(search_space, 8) == space.points(search_space, 50)[:8]


@hypothesis.given(
    st.floats(1e-6, 1.0), st.floats(1.0, 1e3), st.sampled_from(["log", "linear"]), st.integers(1, 9)
)
@hypothesis.settings(max_examples=30)
def test_points_stay_in_their_ranges(low, high, scaling, n):
    drawn = space.points(
        {
            "a": {"min": low, "max": high, "scaling": scaling},
            "b": {"feasible_points": [1, 2, 3]},
        },
        n,
    )
    assert len(drawn) == n
    assert all(low * (1 - 1e-12) <= point["a"] <= high * (1 + 1e-12) for point in drawn)
    assert all(point["b"] in (1, 2, 3) for point in drawn)


def test_log_scaling_is_uniform_in_the_logarithm():
    drawn = space.points({"a": {"min": 1e-4, "max": 1.0, "scaling": "log"}}, 900)
    decades = np.histogram([math.log10(point["a"]) for point in drawn], bins=4, range=(-4, 0))[0]
    assert decades.min() > 200


def test_a_byte_order_mark_before_json_changes_nothing(tmp_path):
    """As editors on Windows write it."""
    content = (space.SHIPPED / "paper_nadamw.json").read_bytes()
    (tmp_path / "mine.json").write_bytes(b"\xef\xbb\xbf" + content)
    assert space.load(str(tmp_path / "mine.json")) == space.load("paper_nadamw")
    assert layout.read_json(tmp_path / "mine.json") == space.load("paper_nadamw")


def test_a_list_gives_its_points_as_they_are():
    listed = space.load("paper_adamw")
    assert len(listed) == 15
    assert space.points(listed, 4) == listed[:4]
    assert space.points(listed, 99) == listed


@pytest.mark.parametrize(
    ("search_space", "message"),
    [
        ({"lr": {"min": 2, "max": 1, "scaling": "linear"}}, "lr: min 2 is above max 1"),
        ({"lr": {"min": 0, "max": 1, "scaling": "log"}}, "lr: log scaling needs min > 0"),
        ({"lr": {"min": 1, "max": 2, "scaling": "lig"}}, "unknown scaling 'lig'.*'log'"),
        ({"lr": {"min": 1, "max": 2}}, "lr: .*neither"),
        ({"lr": {"feasible_points": []}}, "feasible_points is"),
        ({"lr": {"feasible_points": ["a"]}}, "finite number"),
        ({"lr": {"min": "1", "max": 2, "scaling": "log"}}, "min of lr is '1'"),
        ({}, "empty"),
        ([], "empty"),
        ([{"a": 1}, {"b": 1}], r"point 1 .*\['b'\], point 0 has \['a'\]"),
        ([3], "point 0"),
        ("x", "not str"),
    ],
)
def test_impossible_spaces_are_refused(search_space, message):
    with pytest.raises(ValueError, match=message):
        space.check(search_space)


def test_files_are_checked_with_their_name(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"lr": {"min": 2, "max": 1, "scaling": "log"}}))
    with pytest.raises(ValueError, match=r"mine\.json: lr: min 2 is above"):
        space.load(str(path))
    path.write_text("{")
    with pytest.raises(ValueError, match=r"mine\.json"):
        space.load(str(path))
    with pytest.raises(ValueError, match="no search space 'papr'.*paper_adamw, paper_nadamw"):
        space.load("papr")


def test_points_are_completed_and_checked():
    point = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}
    whole = hyperparameters.complete({**point, "warmup_factor": 0.05})
    assert whole["one_minus_beta1"] == pytest.approx(0.1)
    assert "beta1" not in whole
    assert whole["dropout_rate"] == 0.0
    assert whole["epsilon"] == 1e-8
    for change, message in (
        ({"learning_rte": 1}, "unknown hyperparameter 'learning_rte'.*'learning_rate'"),
        ({"one_minus_beta1": 0.1}, "both"),
        ({"dropout_rate": 1.0}, "dropout_rate is 1.0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({}, "lacks warmup_factor"),
    ):
        with pytest.raises(ValueError, match=message):
            hyperparameters.complete({**point, **change})
