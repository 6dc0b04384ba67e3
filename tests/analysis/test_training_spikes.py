"""The rule of training spikes: what it finds, what it does not, and what it says."""

import math
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.cli import main
from analysis.compare import build
from analysis.load.records import Run
from analysis.load.studies import read_study
from analysis.render.text import render as to_text
from analysis.views import spikes


def curve(seed: int, count: int = 400, noise: float = 0.02) -> np.ndarray:
    """A loss that falls by 3, with noise of up to `noise` either way [count]."""
    random = np.random.default_rng(seed)
    return 2.5 + 3 * np.exp(-np.arange(count) / 150) + noise * random.uniform(-1, 1, count)


@given(st.integers(0, 10_000), st.floats(0.0001, 0.2))
@settings(max_examples=50)
def test_a_falling_noisy_curve_has_no_spike(seed, noise) -> None:
    assert not spikes.find(curve(seed, noise=noise)).any()


@given(st.integers(0, 10_000), st.sets(st.integers(60, 399), min_size=1, max_size=3))
@settings(max_examples=50)
def test_planted_spikes_are_found_and_nothing_else(seed, places) -> None:
    losses = curve(seed)
    losses[sorted(places)] += 3.0
    assert set(np.flatnonzero(spikes.find(losses))) == places


@given(st.integers(0, 10_000), st.integers(-20, 20))
@settings(max_examples=50)
def test_the_scale_of_the_loss_changes_nothing(seed, power) -> None:
    losses = curve(seed)
    losses[[100, 200, 201]] += 1.0
    assert (spikes.find(losses * 2.0**power) == spikes.find(losses)).all()


def test_the_rule_by_hand() -> None:
    """16 losses of 1 and 1.1 in turn: median 1.05, MAD 0.05, so a spike lies above
    1.05 + 7 * 1.4826 * 0.05 = 1.5689."""
    before = np.tile([1.0, 1.1], 8)
    assert spikes.find(np.append(before, 1.57))[-1]
    assert not spikes.find(np.append(before, 1.56))[-1]
    assert not spikes.find(np.append(before[:15], 1.57))[-1]  # one loss too few before it
    assert not spikes.find(np.append(before, 0.1))[-1]


def test_the_median_of_windows_is_numpy_s() -> None:
    windows = np.random.default_rng(0).normal(size=(200, 7))
    windows[np.random.default_rng(1).random((200, 7)) < 0.3] = np.nan
    windows[0] = np.nan
    with np.errstate(all="ignore"):
        expected = [np.median(row[~np.isnan(row)]) if (~np.isnan(row)).any() else np.nan
                    for row in windows]  # fmt: skip
    np.testing.assert_array_equal(spikes._median(windows), expected)


def made_run(losses: np.ndarray, **more) -> Run:
    trains = {"global_step": 10 * np.arange(len(losses)), "loss": losses}
    place = {"variant": "standard", "stage": "compare", "path": pathlib.Path("t"), "name": "t"}
    known = {"workload": "w", "point": 0, "seed": 0, "state": "done", "losses": lambda: trains}
    return Run(**(place | known | more))


def test_losses_that_follow_each_other_are_one_spike() -> None:
    losses = curve(0)
    losses[[100, 101, 102, 250]] += [2.0, 4.0, 2.0, 3.0]
    found = spikes.of_run(made_run(losses))
    assert (found.count, found.worst_step) == (2, 1010)
    assert found.worst == losses[101]


def test_warm_up_is_left_out_and_is_the_trial_s() -> None:
    losses = curve(0)
    losses[[60, 150]] += 4.0
    assert spikes.of_run(made_run(losses)).count == 2
    short = spikes.of_run(made_run(losses, hyperparameters={"warmup_factor": 0.2}))
    assert (short.count, short.judged) == (1, 320)  # from step 0.2 * 3990 = 798 on


def test_losses_that_are_not_finite_are_counted_apart() -> None:
    losses = curve(0)
    losses[[200, 201, 300]] = [math.nan, math.inf, math.nan]
    found = spikes.of_run(made_run(losses))
    assert (found.count, found.not_finite) == (0, 3)


def test_a_row_that_only_evaluates_has_no_loss_and_no_nan() -> None:
    run = made_run(curve(0))
    run.losses()["validation/loss"] = np.full(400, math.nan)
    run.losses()["loss"][100], run.losses()["validation/loss"][100] = math.nan, 2.0
    assert spikes.of_run(run).not_finite == 0
    assert spikes.of_run(made_run(np.zeros(0))) is None


@pytest.fixture
def study(hand_made):
    """Standard has 1 and 2 spikes, LASER none; a diverged trial ends in nan."""
    made = hand_made()
    for variant, seeds in {"standard": ([100], [100, 300]), "laser": ([], [])}.items():
        for seed, places in enumerate(seeds):
            directory = made.trial("compare", variant, 0, seed, [made.evaluation(400, 0.1)])
            losses = curve(seed)
            losses[places] += 3.0
            lines = [f"{step},{loss!r}" for step, loss in enumerate(losses.tolist())]
            (directory / "measurements.csv").write_text("\n".join(["global_step,loss", *lines, ""]))
    directory = made.trial("compare", "laser", 0, 2, [], state="diverged", reason="loss is nan")
    lines = [f"{step},{loss!r}" for step, loss in enumerate(curve(2)[:200].tolist())] + ["200,nan"]
    (directory / "measurements.csv").write_text("\n".join(["global_step,loss", *lines, ""]))
    made.select({"standard": 0, "laser": 0})
    return made


def test_the_table_of_spikes(study, capsys) -> None:
    directory = study.finish()
    document = spikes.page(build.error_table(read_study(directory)))
    rows = [[cell.text for cell in row] for row in document.tables[0].sections[0]]
    worst = max(curve(0)[100], curve(1)[100], curve(1)[300]) + 3.0
    assert rows[0] == ["Standard", "2", "1.5", "1 to 2", f"{worst:.4f}", "100", "0"]
    assert rows[1] == ["LASER", "3", "0", "0 to 0", "–", "–", "1"]
    assert "7 robust deviations" in to_text(document)
    assert main(["spikes", str(directory)]) == 0
    assert "1 to 2" in capsys.readouterr().out


def test_without_logged_losses_there_is_no_table(hand_made, capsys) -> None:
    made = hand_made()
    made.trial("compare", "standard", 0, 0, [made.evaluation(400, 0.1)])
    made.select({"standard": 0})
    directory = made.finish()
    assert spikes.page(build.error_table(read_study(directory))) is None
    assert main(["spikes", str(directory)]) == 2
    assert "measurements.csv" in capsys.readouterr().err
