"""The rule of training spikes: the spikes that it finds, and the ones that it does not."""

import math
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.cli import main
from analysis.compare.error_table import build
from analysis.load.records import Run
from analysis.load.studies import read_study
from analysis.views import spikes


def curve(seed: int, count: int = 400, noise: float = 0.02) -> np.ndarray:
    """A loss that falls by 3, with noise of up to `noise` either way [count]."""
    random = np.random.default_rng(seed)
    return 2.5 + 3 * np.exp(-np.arange(count) / 150) + noise * random.uniform(-1, 1, count)


@given(
    st.integers(0, 10_000),
    st.floats(0.0001, 0.2),
    st.sets(st.integers(60, 399), max_size=3),
    st.integers(-20, 20),
)
@settings(max_examples=100)
def test_planted_spikes_are_found_at_any_scale_and_nothing_else(seed, noise, places, power) -> None:
    losses = curve(seed, noise=noise)
    losses[sorted(places)] += 3.0 + 150 * noise
    assert set(np.flatnonzero(spikes.find(losses * 2.0**power)[0])) == places


@pytest.mark.parametrize(
    ("count", "more", "is_spike", "is_judged"),
    [
        (16, [1.57], True, True),
        (16, [1.56], False, True),
        (15, [1.57], False, False),  # one loss too few before it
        (15, [math.nan, 1.57], False, False),
        (16, [0.1], False, True),
    ],
)
def test_the_rule_by_hand(count, more, is_spike, is_judged) -> None:
    """16 losses of 1 and 1.1 in turn: median 1.05, MAD 0.05, so a spike lies above
    1.05 + 7 * 1.4826 * 0.05 = 1.5689."""
    spiking, judged = spikes.find(np.array([*np.tile([1.0, 1.1], 8)[:count], *more]))
    assert (spiking[-1], judged[-1]) == (is_spike, is_judged)


def made_run(losses: np.ndarray, **more) -> Run:
    trains = {"global_step": 10 * np.arange(len(losses)), "loss": losses}
    place = {"variant": "standard", "stage": "compare", "path": pathlib.Path("t"), "name": "t"}
    known = {"workload": "w", "point": 0, "seed": 0, "state": "done", "losses": lambda: trains}
    return Run(**(place | known | more))


@pytest.mark.parametrize(
    ("places", "values", "more", "expected"),
    [
        # Losses that follow each other are one spike.
        (
            *([100, 101, 102, 250], [2.0, 4.0, 2.0, 3.0], {}),
            {"count": 2, "worst_step": 1010, "worst": curve(0)[101] + 4.0},
        ),
        ([60, 150], [4.0, 4.0], {}, {"count": 2}),
        # Warm-up is left out: from step 0.2 * 3990 = 798 on 320 are logged, and the first 16 have
        # too few before them.
        (
            *([60, 150], [4.0, 4.0], {"hyperparameters": {"warmup_factor": 0.2}}),
            {"count": 1, "judged": 304},
        ),
        ([200, 201, 300], [math.nan, math.inf, math.nan], {}, {"count": 0, "not_finite": 3}),
    ],
)
def test_the_spikes_of_a_run(places, values, more, expected) -> None:
    losses = curve(0)
    losses[places] += values
    summary = spikes.of_run(made_run(losses, **more))
    assert expected.items() <= summary.items()


def test_a_row_that_only_evaluates_has_no_loss_and_no_nan() -> None:
    run = made_run(curve(0))
    run.losses()["validation/loss"] = np.full(400, math.nan)
    run.losses()["loss"][100], run.losses()["validation/loss"][100] = math.nan, 2.0
    assert spikes.of_run(run)["not_finite"] == 0
    assert spikes.of_run(made_run(np.zeros(0))) is None


def write_losses(folder: pathlib.Path, losses, first: int = 0) -> None:
    lines = [f"{step},{loss!r}" for step, loss in enumerate(losses, first)]
    (folder / "measurements.csv").write_text("\n".join(["global_step,loss", *lines, ""]))


@pytest.fixture
def study(hand_made):
    """Standard has 1 and 2 spikes, LASER none; a diverged trial of LASER ends in nan."""
    made = hand_made(seeds={"standard": (0.1, 0.1), "laser": (0.1, 0.1)})
    made.trial("compare", "laser", 0, 2, [], state="diverged")
    losses = [curve(0), curve(1), curve(0), curve(1), np.append(curve(2)[:200], math.nan)]
    losses[0][100] += 3.0
    losses[1][[100, 300]] += 3.0
    for entry, values in zip(made.planned["compare"], losses, strict=True):
        write_losses(made.root / entry["path"], values.tolist())
    return made


def test_the_table_of_spikes(study, capsys) -> None:
    directory = study.finish()
    page = spikes.page(build(read_study(directory)))
    worst = max(curve(0)[100], curve(1)[100], curve(1)[300]) + 3.0
    assert page.tables[0].texts().to_numpy().tolist() == [
        ["Standard", "2", "1.5", "1 to 2", f"{worst:.4f}", "100", "0"],
        ["LASER", "3", "0", "0 to 0", "–", "–", "1"],
    ]
    assert page.data().groupby("variant")["count"].sum().to_dict() == {"standard": 3, "laser": 0}
    assert main(["spikes", str(directory)]) == 0
    assert "1 to 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("logged", "texts"), [(9, ["–", "–"]), (16, ["–", "–"]), (17, ["0", "0 to 0"])]
)
def test_without_a_loss_that_can_be_judged_there_is_no_number(hand_made, logged, texts) -> None:
    """16 losses must stand before the one that is judged; of two trials the longer one counts. One
    that is not finite stands for none."""
    made = hand_made(seeds={"standard": (0.1, 0.1)})
    for entry, count in zip(made.planned["compare"], (9, logged), strict=True):
        write_losses(made.root / entry["path"], [math.nan] + [2.5] * count, first=99)
    (table,) = spikes.page(made.table()).tables
    assert table.texts().iloc[0].tolist()[1:4] == ["2", *texts]


@pytest.mark.parametrize(("logged", "judged"), [(9, 0), (20, 4)])
def test_no_spike_is_a_sentence(hand_made, logged, judged) -> None:
    made = hand_made(seeds={"standard": (0.1,)})
    write_losses(made.root / made.planned["compare"][0]["path"], [2.5] * logged, first=100)
    page = spikes.page(made.table())
    assert (page.tables, len(page.notes)) == ((), 1)
    assert f"; {judged} of its values" in page.notes[0]
