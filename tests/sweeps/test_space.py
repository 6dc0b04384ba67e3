"""Search spaces: AlgoPerf's points, in their natural order, and refusals by name."""

import json
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from sweeps.records import layout
from sweeps.study import halton, hyperparameters, space


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
    listed, drawn = space.load("paper_adamw"), space.load("paper_nadamw")
    assert space.points(drawn, 8) == space.points(drawn, 50)[:8]
    assert space.points(listed, 4) == listed[:4]
    assert space.points(listed, 99) == listed


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


def test_a_byte_order_mark_before_json_changes_nothing(tmp_path):
    """As editors on Windows write it."""
    content = (space.SHIPPED / "paper_nadamw.json").read_bytes()
    (tmp_path / "mine.json").write_bytes(b"\xef\xbb\xbf" + content)
    assert space.load(str(tmp_path / "mine.json")) == space.load("paper_nadamw")
    assert layout.read_json(tmp_path / "mine.json") == space.load("paper_nadamw")


_LOG = {"min": 1, "max": 2, "scaling": "log"}


@pytest.mark.parametrize(
    ("search_space", "message"),
    [
        ({"lr": {"min": 2, "max": 1, "scaling": "linear"}}, "lr is .*min ≤ max"),
        ({"lr": {**_LOG, "min": 0}}, "lr is .*min > 0"),
        ({"lr": {**_LOG, "scaling": "lig"}}, "lr is .*'linear' or 'log'"),
        ({"lr": {"min": 1, "max": 2}}, "lr is .*it must be {'min'"),
        ({"lr": {"feasible_points": []}}, "lr is .*at least one"),
        ({"lr": {"feasible_points": ["a"]}}, "lr is .*finite number"),
        ({"lr": {**_LOG, "min": "1"}}, "lr is .*finite number"),
        (
            {"lr": {"min": 1e-300, "max": 1e300, "scaling": "log"}},
            r"lr is .*float32.*3.40282347e\+38",
        ),
        ({"lr": {**_LOG, "min": 1e-40}}, "lr is .*float32"),
        ({"lr": {"min": -1e39, "max": 1, "scaling": "linear"}}, "lr is .*float32"),
        ({"lr": {"feasible_points": [1e-3, 1e-46]}}, "lr is .*float32"),
        ({"lr": {"feasible_points": [10**400]}}, "lr is .*float32"),
        ([{"a": 1e39}], "point 0 .*float32"),
        ({"lr": 3}, "lr is 3"),
        ({}, "at least one"),
        ([], "at least one"),
        ("x", "it is 'x'"),
        ([{"a": 1}, {"b": 1}], r"point 1 .*\['b'\], point 0 has \['a'\]"),
        ([{"a": math.nan}], "point 0 .*finite numbers"),
        ([3], "point 0 .* is 3"),
    ],
)
def test_impossible_spaces_are_refused(tmp_path, search_space, message):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(search_space))
    with pytest.raises(ValueError, match=rf"mine\.json: .*{message}"):
        space.load(str(path))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"learning_rate": {"feasible_points": [1]}, "learning_rate": {"feasible_points": [5]}}',
         "learning_rate"),
        ('{"a": {"min": 1, "max": 2, "max": 3, "scaling": "log"}}', "max"),
        ('[{"beta1": 0.9, "beta1": 0.9}]', "beta1"),
    ],
)  # fmt: skip
def test_a_key_that_is_named_twice_is_refused(tmp_path, text, key):
    """At any level, in a space as in the records of studies."""
    path = tmp_path / "mine.json"
    path.write_text(text)
    for read in (space.load, layout.read_json):
        with pytest.raises(ValueError, match=rf"mine\.json: .*{key} more than once"):
            read(str(path))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 1e-39),
        ("learning_rate", math.inf),
        ("epsilon", 1e-300),
        ("grad_clip", 1e39),
        ("weight_decay", 1e39),
        ("beta1", 1 - 1e-9),
        ("beta2", 1 - 1e-9),
        ("dropout_rate", 1 - 1e-9),
    ],
)
def test_a_hyperparameter_whose_float32_is_another_is_refused(name, value):
    """It would be 0, 1 or infinite, which it may not be."""
    with pytest.raises(ValueError, match=f"{name} is .*allowed: .* ≤ {name} ≤ "):
        hyperparameters.complete({**_POINT, name: value})


@pytest.mark.parametrize("name", hyperparameters.LIMITS)
def test_the_limits_of_a_hyperparameter_are_allowed_as_they_are_printed(name):
    """Nine digits are a float32, and the next one beyond them is refused."""
    others = dict(_POINT)
    if name == "one_minus_beta1":
        del others["beta1"]
    for end, beyond in zip(hyperparameters.LIMITS[name], (-np.inf, np.inf), strict=True):
        typed = np.float32(f"{end:.9g}")
        assert hyperparameters.complete({**others, name: float(f"{end:.9g}")})
        assert np.isfinite(typed)
        with np.errstate(over="ignore"):
            outside = float(np.nextafter(typed, beyond))
        with pytest.raises(ValueError, match=f"{name} is"):
            hyperparameters.complete({**others, name: outside})


_POINT = {
    **{"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1},
    "warmup_factor": 0.05,
}


def test_points_are_completed():
    point = {name: value for name, value in _POINT.items() if name != "beta1"}
    whole = {**point, "one_minus_beta1": pytest.approx(0.1)}
    whole |= {"dropout_rate": 0.0, "label_smoothing": 0.0, "epsilon": 1e-8}
    assert hyperparameters.complete(_POINT) == whole


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({**_POINT, "learning_rte": 1}, "unknown hyperparameter 'learning_rte'.*'learning_rate'"),
        ({**_POINT, "one_minus_beta1": 0.1}, "both"),
        ({**_POINT, "dropout_rate": 1.0}, "dropout_rate is 1.0"),
        ({**_POINT, "learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"beta1": 0.9}, "lacks learning_rate, beta2, weight_decay, warmup_factor"),
    ],
)
def test_impossible_points_are_refused(point, message):
    with pytest.raises(ValueError, match=message):
        hyperparameters.complete(point)
