"""Intervals over seeds and items: by hand, by a bootstrap, by simulation, and of kept answers."""

import math

import numpy as np
import pytest
from scipy import stats

from analysis.cli import main
from analysis.compare import error_table, item_intervals
from analysis.load.studies import read_study
from analysis.statistics import intervals
from sweeps.records import answers


def test_an_interval_by_hand():
    """Two seeds on two items that weigh the same: seeds' means 1 and 3, items' 1 and 3."""
    found = intervals.two_way(np.array([[0.0, 2.0], [2.0, 4.0]]), np.ones(2))
    # Without a part that is of cells alone, both variances of the mean are 2/2.
    half = stats.t.ppf(0.975, 2) * math.sqrt(1 + 1)
    assert [found.low, found.value, found.high] == pytest.approx([2 - half, 2, 2 + half])
    # Cells alone: ±1 about means of 2, so only seeds' and items' variance of 0 less their own.
    crossed = intervals.two_way(np.array([[1.0, 3.0], [3.0, 1.0]]), np.ones(2))
    assert (crossed.low, crossed.high) == (2.0, 2.0)


def test_items_weigh_as_in_the_metric():
    """Differences in proportion to the weights are one ratio; then seeds alone differ."""
    weights = np.array([1.0, 2.0, 5.0])
    exact = intervals.two_way(np.array([0.25, 0.25])[:, None] * weights, weights)
    assert (exact.low, exact.value, exact.high) == (0.25, 0.25, 0.25)
    by_seed = intervals.two_way(np.array([0.0, 0.1, 0.5])[:, None] * weights, weights)
    expected = stats.ttest_1samp([0.0, 0.1, 0.5], 0.0).confidence_interval()
    assert [by_seed.low, by_seed.high] == pytest.approx([*expected])


def _draw(rng, sds, n=10, count=400):
    """Returns differences with a mean of 1: parts by seed, by item and of cells, and weights."""
    seed, item, cell = sds
    noise = seed * rng.normal(size=(n, 1)) + item * rng.normal(size=count)
    weights = rng.integers(1, 4, count) * 1.0
    return (1 + noise + cell * rng.normal(size=(n, count))) * weights, weights


def test_a_bootstrap_of_both_counts_cells_three_times():
    """Seeded, of 4,000 resamples; its variance less twice that of the cells is the interval's."""
    rng = np.random.default_rng(0)
    n, count, sds = 10, 400, (0.1, 2.0, 4.0)
    differences, weights = _draw(rng, sds)
    seeds = rng.multinomial(n, np.full(n, 1 / n), 4000)
    drawn = rng.multinomial(count, np.full(count, 1 / count), 4000)
    means = np.einsum("rs,si,ri->r", seeds, differences, drawn) / n / (drawn @ weights)
    found = intervals.two_way(differences, weights)
    error = (found.high - found.low) / 2 / 1.97
    of_cells = sds[2] ** 2 / (n * count) * np.mean(weights**2) / np.mean(weights) ** 2
    assert means.std() ** 2 - 2 * of_cells == pytest.approx(error**2, rel=0.1)


@pytest.mark.parametrize("sds", [(0.1, 0.1, 2.0), (0.1, 2.0, 2.0), (0.02, 3.0, 0.5), (0.2, 0.5, 1)])
def test_the_interval_holds_the_difference(sds):
    """Of 600 studies, within four standard errors of 95 %, or more; that over seeds alone holds it
    in far fewer where items differ."""
    rng, held, by_seeds = np.random.default_rng(1), [], []
    for _ in range(600):
        differences, weights = _draw(rng, sds)
        found = intervals.two_way(differences, weights)
        held.append(found.low <= 1 <= found.high)
        means = differences.sum(axis=1) / weights.sum()
        low, high = stats.ttest_1samp(means, 0.0).confidence_interval()
        by_seeds.append(low <= 1 <= high)
    assert 0.915 < np.mean(held) < 0.99
    assert np.mean(by_seeds) < 0.8 or sds[1] < 1


RIGHT = {"standard": 12, "laser": 15}


def _study(hand_made, **changes):
    """Three seeds of two variants on 20 images, of which RIGHT or more are right: LASER has 3, 4
    and 5 more. `changes` are of LASER's answers."""
    made = hand_made(name="kept", workload="digits_vit", config={"workload": "digits_vit"})
    for name, right in RIGHT.items():
        for seed in range(3):
            values = np.arange(20) < right + seed * (1 + (name == "laser"))
            row = made.measured(4, "accuracy", values.mean(), apart=0.0)
            folder = made.trial("compare", name, 0, seed, [row], steps=4)
            record = answers.ItemRecord(4, "test", "accuracy", values, np.ones(20))
            record = record._replace(**changes) if name == "laser" else record
            answers.write(folder, {(name, seed): record})
    return made.finish()


def test_answers_of_trials_give_both_intervals_also_from_a_results_file(
    hand_made, tmp_path, capsys
):
    root = _study(hand_made)
    (line,) = item_intervals.of_table(error_table.build(read_study(root)))
    assert (line.number, line.row.variant, line.why) == (20, "laser", "")
    # Errors fall by 3, 4 and 5 of 20 images. Images 13 to 18 are those that differ.
    assert line.over_items.value == pytest.approx(-0.2)
    assert -0.5 < line.over_items.low < -0.2 - 4.303 * 0.05 / 3**0.5 * 0.99
    assert main(["table", str(root), "--items"]) == 0
    printed = capsys.readouterr().out
    assert "Over seeds and items" in printed
    assert "Neither covers other training data" in " ".join(printed.split())
    out = tmp_path / "ledger"
    assert main(["results", str(root), f"--out={out}"]) == 0
    (again,) = item_intervals.of_table(error_table.build(read_study(out)))
    assert again.over_items == line.over_items


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"global_step": 2}, "3 of 6 runs kept no answers of the evaluation that counts"),
        ({"split": "validation"}, "3 of 6 runs kept no answers"),
        ({"metric": "loss"}, "answers are kept of the loss, --metric=loss"),
        ({"weights": np.arange(20.0)}, "evaluated on other items"),
        ({"values": np.arange(20) < 1}, "do not give the difference of the table"),
    ],
)
def test_why_there_is_no_interval_over_items_is_said(hand_made, capsys, changes, why):
    root = _study(hand_made, **changes)
    if "metric" in changes:
        for path in root.rglob(answers.FILE):
            kept = answers.read(path.parent).items()
            answers.write(path.parent, {key: one._replace(**changes) for key, one in kept})
    assert main(["table", str(root), "--items"]) == 0
    assert why in " ".join(capsys.readouterr().out.split())
