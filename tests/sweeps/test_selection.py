"""Points that validation chooses, and points that a selection.json keeps."""

import math
import shutil

import pytest

from sweeps.records import layout, lease, measurements, status
from sweeps.study import selection, study_directory
from tests.sweeps.conftest import begin_attempt, begin_stage, end_trial, evaluations


def test_the_best_of_values_by_hand():
    """nan and infinities are passed over; ties go to the first."""
    values = [0.5, 0.8, 0.8, math.nan, math.inf]
    assert selection.best_index(values, "max") == 1
    assert selection.best_index(values, "min") == 0
    assert selection.best_index(values[3:], "max") is None
    losses = selection.point_losses({0: [0.5, None, 0.25], 1: [None], 2: []}, "max")
    assert losses == {0: -0.25, 1: math.inf}


@pytest.mark.parametrize("lost", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["max", "min"])
def test_selection_by_hand(lost, mode):
    """A lost seed counts as the worst value; ties go to the lower point."""
    assert selection.best_point({2: [0.3, 0.5], 1: [0.4], 3: []}, mode) == 1
    assert selection.best_point({0: [lost, 0.2, 0.4], 1: [0.3, 0.3, 0.3]}, mode) is not None
    assert selection.best_point({0: [lost], 1: [0.3]}, mode) == 1
    assert selection.best_point({0: [0.5, lost], 1: [lost, 0.5], 2: []}, mode) is None


def _value(directory):
    return selection.trial_value(directory, "validation/accuracy", "max")


def test_a_stale_running_over_done_is_selected_by(make_trial):
    """A worker that was stopped between its check and its write has put `running` over `done`."""
    directory = make_trial()
    end_trial(directory, 0.9, "running")
    lease.claim(directory).end("done")
    assert _value(directory) == 0.9


@pytest.mark.parametrize(
    ("lost", "lacking"),
    [("1", "4 is|updates 4,"), ("2", "8, 12"), ("1/measurements.jsonl", "updates 4,")],
)
def test_a_value_is_of_every_evaluation_that_was_planned(make_trial, lost, lacking):
    """Attempt 1 evaluated once, 0.9, attempt 2 the rest: what is lost of them is named, and the
    best of the others is not taken for the trial's."""
    directory = make_trial()
    begin_attempt(directory, evaluations([0.9])).end("preempted")
    begin_attempt(directory, evaluations([0.5, 0.6], 2), resumed=4).end("done")
    status.write(directory, "done", global_step=12)
    assert _value(directory) == 0.9
    for path in (directory / layout.ATTEMPTS).glob(lost):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ValueError, match=f"{directory} is done, but its attempts lack.*{lacking}"):
        _value(directory)


def test_what_is_done_and_cannot_be_read_is_not_passed_over(make_trial):
    directory = make_trial()
    assert _value(directory) is None  # nobody began it
    end_trial(directory, 0.9)
    resumed = directory / layout.ATTEMPTS / "1" / measurements.RESUMED
    resumed.write_text("{}")
    with pytest.raises(ValueError, match=f"{resumed} is damaged"):
        _value(directory)


@pytest.fixture
def tuned(make_study):
    """Returns a function that ends a study's tuning with accuracies by (point, seed)."""

    def tune(values, protocol="tune_then_compare", **changes):
        points = 1 + max(point for point, _ in values)
        changes = {"points": points, "tuning_seeds": 3, "protocol": protocol, **changes}
        made = make_study(**changes)
        for record in begin_stage(made):
            value = values.get((record.point, record.seed), 0.1)
            state = value if isinstance(value, str) else "done"
            end_trial(made.directory / record.path, 0.99 if state == value else value, state)
        return made

    return tune


def _begin(made):
    """Selects and lets the comparison begin; returns the selection."""
    chosen = study_directory.select(made)
    study_directory.materialise(made, "compare", made.trials("compare", chosen))
    return chosen


def test_a_point_that_lost_two_of_three_seeds_is_not_selected(tuned):
    made = tuned({(0, 0): "diverged", (0, 1): 0.9, (0, 2): "failed", (1, 0): 0.2})
    chosen = _begin(made)
    assert chosen["points"] == {"standard": 1, "laser": 1}
    assert [path.rpartition("_")[2] for path in chosen["lost"]] == ["1", "3"]


def test_where_every_point_lost_its_seeds_nothing_is_selected(tuned):
    lost = {(0, seed): "diverged" for seed in range(3)}
    made = tuned(lost, variants="laser,standard+gate", baseline="laser")
    with pytest.raises(ValueError, match=f"{made.directory}: no point of standard ended"):
        study_directory.select(made)


@pytest.mark.parametrize("lost", ["laser", "standard", "both"])
def test_a_variant_that_lost_all_seeds_of_its_own_is_left_out(make_study, lost):
    """The others are compared, unless it is the baseline."""
    made = make_study(points=2, protocol="tune_each", variants="standard,laser,diff")
    for record in begin_stage(made):
        state = "diverged" if record.variant == lost or lost == "both" else "done"
        end_trial(made.directory / record.path, 0.5, state)
    if lost != "laser":
        names = "standard" if lost == "standard" else "standard, laser, diff"
        with pytest.raises(ValueError, match=f"no point of {names} ended"):
            study_directory.plan(made, "compare")
        return
    trials, chosen = study_directory.plan(made, "compare")
    assert chosen["points"] == {"standard": 0, "diff": 0}
    assert {trial.variant for trial in trials} == {"standard", "diff"}


@pytest.mark.parametrize("protocol", ["tune_then_compare", "tune_each"])
def test_a_comparison_that_has_begun_keeps_its_points(tuned, protocol):
    """Point 1 was chosen while point 0 had failed; by its repair validation would choose that."""
    repaired = {(0, seed): 0.9 for seed in range(3)}
    made = tuned({(0, 0): "failed", (0, 1): "failed", (1, 0): 0.2}, protocol)
    before = _begin(made)
    assert before["points"] == {"standard": 1, "laser": 1}
    made = tuned(repaired | {(1, 0): 0.2}, protocol)
    assert _begin(made)["points"] == before["points"]
    selection = made.directory / layout.SELECTION
    selection.write_text('{"points": {"standard": 1,')
    with pytest.raises(ValueError, match="remove it to choose anew"):
        study_directory.select(made)
    selection.unlink()
    assert _begin(made)["points"] == {"standard": 0, "laser": 0}


def test_points_and_variants_added_to_a_comparison(tuned):
    """More variants take its point, also where none of the earlier ones is left."""
    _begin(tuned({(0, 0): 0.2, (2, 0): 0.3, (2, 1): 0.3}))
    more = tuned({(0, 0): 0.9, (0, 1): 0.9, (2, 0): 0.3}, variants="standard,laser,diff")
    assert study_directory.select(more)["points"] == dict.fromkeys(("standard", "laser", "diff"), 2)
    others = tuned({(0, 0): 0.9, (0, 1): 0.9, (2, 0): 0.3}, variants="diff", baseline="diff")
    assert study_directory.select(others)["points"] == {"diff": 2}


def test_a_variant_that_is_dropped_leaves_its_point_behind(tuned):
    """Also if the study no longer has such a point."""
    made = tuned({(0, 0): 0.5, (2, 0): 0.1}, "tune_each")
    layout.write_json(made.directory / layout.SELECTION, {"points": {"standard": 0, "laser": 2}})
    fewer = tuned({(0, 0): 0.5, (1, 0): 0.1}, "tune_each", variants="standard,diff")
    study_directory.prepare(fewer)
    assert study_directory.select(fewer)["points"] == {"standard": 0, "diff": 0}
