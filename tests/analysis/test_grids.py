"""Grids, where each variant is reported at the best of several points: intervals that cover the
choice, differences at each point, rates at an edge, results files of one study's parts."""

import json
import statistics

import numpy as np
import pandas as pd
import pytest
from scipy import special, stats

from analysis import cli
from analysis.compare import error_table, frames
from analysis.load.studies import read_study
from analysis.statistics import choice, comparisons
from analysis.views import sentences

RATES = [{"learning_rate": rate, "beta2": 0.99} for rate in (0.02, 0.005, 0.01)]
# Means at four rates, the share of a run's variance that validation and test have in common, and
# seeds: Fashion-MNIST's error in points and the loss on Python's documentation, as pilots found
# them, in units of a run's SD; three rates that are equally good; one that is far better.
CASES = {
    "images": (np.array([12.0, 11.9, 11.8, 12.1]) / 0.19, 0.5, 10),
    "text": (np.array([3.950, 3.926, 3.916, 3.940]) / 0.0071, 0.8, 8),
    "flat top": (np.array([1.0, 0.0, 0.0, 0.0]), 0.5, 10),
    "certain": (np.array([30.0, 20.0, 0.0, 20.0]), 0.8, 5),
}


def simulated(name: str, runs: int) -> tuple[float, float]:
    """Returns the shares of studies of two equal variants that a t-test at the best points tells
    apart, and that the interval does which repeats the choice."""
    means, common, n = CASES[name]
    random = np.random.default_rng(1)
    shared, *own = np.sqrt([common, 1 - common, 1 - common])[:, None, None, None, None] * (
        random.standard_normal((3, 2, len(means), runs, n))
    )
    losses, values = (shared + part + means[:, None, None] for part in own)
    draws = choice.resamples(n)[:200]
    first, second = (choice.best_means(*each, draws) for each in zip(losses, values, strict=True))
    best = np.median(losses, axis=-1).argmin(axis=1)
    chosen = np.take_along_axis(values, best[:, None, :, None], axis=1)[:, 0]
    differences = chosen[0] - chosen[1]
    error = differences.std(axis=-1, ddof=1) / np.sqrt(n)
    limit = special.stdtrit(n - 1, 0.975)
    t = np.abs(differences.mean(axis=-1)) / limit
    wider = np.maximum(error, (first - second).std(axis=-1))
    return float((t > error).mean()), float((t > wider).mean())


@pytest.mark.parametrize(
    ("name", "least"), [("images", 0.01), ("text", 0.02), ("flat top", 0.0), ("certain", 0.02)]
)
def test_equal_variants_are_told_apart_in_at_most_5_percent(name, least) -> None:
    """So that the interval covers 95 to 98 %, and more where several rates are equally good."""
    runs = 1_000
    plain, false = simulated(name, runs)
    assert least <= false <= min(plain, 0.05 + 3 * np.sqrt(0.05 * 0.95 / runs))
    if name == "images":
        assert plain > 0.06
    if name == "certain":
        assert false == plain


def test_the_best_point_of_each_resample_by_python_s_median() -> None:
    """A lost seed, a missing number, ties; no point at all where each lost half."""
    losses = np.array([[3.0, 1.0, np.inf, 2.0, 2.0], [2.0, 2.0, np.inf, 1.5, np.inf]])
    values = np.array([[5.0, 7.0, np.nan, np.nan, 6.0], [1.0, 2.0, 3.0, 4.0, np.nan]])
    draws = choice.resamples(5)[:200]
    found = choice.best_means(losses, values, draws)
    for draw, mean in zip(draws, found, strict=True):
        medians = [statistics.median(point[draw]) for point in losses]
        drawn = values[medians.index(min(medians))][draw]
        expected = drawn[np.isfinite(drawn)].mean() if np.isfinite(drawn).any() else np.nan
        assert mean == pytest.approx(expected if min(medians) < np.inf else np.nan, nan_ok=True)
    assert np.isnan(found).any()
    assert (choice.resamples(5) == choice.resamples(5)).all()


@pytest.fixture
def grid(hand_made):
    """Standard attention is best at 0.01, LASER at 0.005; seven seeds whose choice is uncertain."""
    return begun(hand_made, "grid", range(7))


def begun(hand_made, name, seeds, points=RATES, **config):
    config = {"protocol": "grid", "seeds": len(seeds), "first_seed": seeds[0]} | config
    made = hand_made(points=points, name=name, stages=("grid",), config=config)
    for variant, means in {"standard": (0.33, 0.315, 0.3), "laser": (0.3, 0.28, 0.284)}.items():
        for point, mean in enumerate(means[: len(points)]):
            for seed in seeds:
                noise = np.random.default_rng([point, seed, len(variant), 20]).normal(0, 0.01)
                made.add_seeds(variant, (mean + noise,), "grid", point, first=seed)
    return made


def test_the_table_of_a_grid_repeats_the_choice(grid, capsys) -> None:
    """The interval, from the trials' own numbers, and differences at each rate by scipy."""
    table = grid.table()
    assert {row.variant: row.point for row in table.rows} == {"standard": 2, "laser": 1}
    found = table.comparisons["laser"]
    values = {
        row.variant: np.array([[*point.splits["test"].values.values()] for point in row.points])
        for row in table.rows
    }
    means = []
    for name in ("laser", "standard"):
        losses = values[name] - 0.01
        means.append(choice.best_means(losses, values[name], choice.resamples(7)))
    error = (means[0] - means[1]).std()
    plain = stats.ttest_rel(values["laser"][1], values["standard"][2])
    assert found.difference == pytest.approx(
        values["laser"][1].mean() - values["standard"][2].mean()
    )
    assert error > abs(found.difference / plain.statistic)
    assert (found.test, found.p) == (
        "bootstrap",
        pytest.approx(2 * stats.t.sf(-found.difference / error, 6)),
    )
    half = stats.t.ppf(0.975, 6) * error
    assert (found.low, found.high) == pytest.approx(
        (found.difference - half, found.difference + half)
    )
    assert found.p > plain.pvalue
    lines = frames.results(table, None).query("kind == 'point' and split == 'test'")
    lines = lines.set_index(["variant", "point"])
    for point in range(3):
        test = stats.ttest_rel(values["laser"][point], values["standard"][point])
        line = lines.loc["laser", point]
        assert (line["p"], line["test"]) == (pytest.approx(test.pvalue), "t")
        interval = test.confidence_interval()
        assert (line["difference_low"], line["difference_high"]) == pytest.approx(tuple(interval))
    assert cli.main(["table", str(grid.root), "--details"]) == 0
    printed = capsys.readouterr().out
    assert "repeat this choice in a bootstrap over seeds" in printed
    assert f"[{found.low:+.4f}, {found.high:+.4f}]" in printed
    (line,) = (x for x in printed.splitlines() if "learning_rate=0.005" in x and "| yes" in x)
    assert f"{lines.loc['laser', 1]['difference']:+.4f}" in line
    assert "LASER 0.005, the smallest of 3" in printed
    assert "Standard 0.01" not in printed


def test_without_doubt_about_the_point_the_t_test_stands(hand_made) -> None:
    points = [*RATES[:1], {"learning_rate": 1.0}]
    made = begun(hand_made, "certain", range(5), points[:1])
    made.points += points[1:]
    made.config["protocol"] = "grid"
    for variant in ("standard", "laser"):
        made.add_seeds(variant, [0.9, 0.91, 0.92, 0.93, 0.95], "grid", 1)
    row = made.table().by_variant["laser"]
    assert len(row.points) == 2
    assert repr(row.splits["test"].comparison) == repr(row.points[0].splits["test"].comparison)


def test_a_tuned_rate_at_the_edge_is_named(hand_made) -> None:
    """Protocol tune_then_compare: of standard attention, which all variants take."""
    made = hand_made(points=RATES)
    for point, error in enumerate((0.2, 0.3, 0.4)):
        made.add_seeds("standard", (error,), "tune", point)
    for variant in ("standard", "laser"):
        made.add_seeds(variant, (0.2, 0.3, 0.25), first=5)
    table = made.table()
    assert not any(row.points for row in table.rows)
    (note,) = (x for x in sentences.caveats(table) if "edge" in x)
    assert note.endswith("edge of those tried: Standard 0.02, the largest of 3.")
    made.select({"standard": 2, "laser": 2})
    assert not any("edge" in x for x in sentences.caveats(made.table()))


def same(first: error_table.ErrorTable, second: error_table.ErrorTable) -> None:
    """Numbers, points and verdicts of two tables; not what a results file does not hold."""
    kept = [name for name in frames.RESULTS if name not in ("study", "stage")]
    kept = [name for name in kept if not name.startswith("last_")]
    pd.testing.assert_frame_equal(
        *(frames.results(table, None)[kept] for table in (first, second)), check_exact=True
    )
    assert sentences.points(first) == sentences.points(second)
    assert [*sentences.caveats(first)] == [*sentences.caveats(second)]


def test_parts_of_a_study_are_written_as_one(grid, hand_made, tmp_path, capsys) -> None:
    """Seeds 0 to 6 in one go, and in two parts: directories, or results files of them."""
    parts = [begun(hand_made, *part) for part in (("a", range(4)), ("b", range(4, 7)))]
    roots = [str(part.finish()) for part in parts]
    whole = grid.table()
    assert cli.main(["results", *roots, f"--out={tmp_path / 'joined'}"]) == 0
    for root in roots:
        assert cli.main(["results", root, f"--out={tmp_path / root[-1]}"]) == 0
    folders = [str(tmp_path / name) for name in "ab"]
    assert cli.main(["results", *folders, f"--out={tmp_path / 'again'}"]) == 0
    joined, again = (error_table.build(read_study(tmp_path / x)) for x in ("joined", "again"))
    same(whole, joined)
    same(joined, again)
    assert (joined.study.name, joined.study.plans[0].seeds) == ("joined", 7)
    assert {run.point: run.hyperparameters for run in joined.study.runs} == dict(enumerate(RATES))
    assert cli.main(["results", roots[0], str(grid.root), f"--out={tmp_path / 'no'}"]) == 2
    assert "several parts have seeds 0, 1, 2, 3" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"workload": "digits_vit"}, "workload \\(imagenet_vit: a; digits_vit: b\\)"),
        ({"optimizer": "lamb"}, "optimizer"),
        ({"hypothesis": "another"}, "hypothesis"),
        ({"points": RATES[:2]}, "laser at point 2 .*not trained: b"),
        ({"points": [*RATES[:2], {"learning_rate": 0.1}]}, "laser at point 2"),
    ],
)
def test_parts_that_differ_in_more_than_seeds_are_refused(
    hand_made, tmp_path, capsys, changed, named
) -> None:
    begun(hand_made, "a", range(3)).finish()
    part = begun(hand_made, "b", range(3, 6), **changed)
    part.workload = changed.get("workload", part.workload)
    roots = [str(part.root.with_name("a")), str(part.finish())]
    assert cli.main(["results", *roots, f"--out={tmp_path / 'no'}"]) == 2
    error = capsys.readouterr().err
    assert pd.Series([error]).str.contains(f"differ in their seeds alone; .*{named}").all(), error


def test_a_results_file_has_one_setting_for_a_point_s_number(tmp_path, capsys) -> None:
    rows = [
        {"workload": "w", "variant": "v", "seed": seed, "metric": "loss", "value": 1.0}
        | {"point": {"point": number, "lr": rate}}
        for seed, number, rate in ((0, 4, 0.1), (1, 4, 0.1), (0, 2, 0.2))
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, [*rows, rows[0] | {"seed": 5, "point": {"lr": 3}}])))
    runs = read_study(path).runs
    assert {(run.point, run.hyperparameters["lr"]) for run in runs} == {(4, 0.1), (2, 0.2), (5, 3)}
    for wrong, text in (({"point": 4, "lr": 9}, "point 4 of v"), ({"point": -1}, "line 2.*>= 0")):
        path.write_text("\n".join(map(json.dumps, [rows[0], rows[1] | {"point": wrong}])))
        assert cli.main(["table", str(path)]) == 2
        assert pd.Series([capsys.readouterr().err]).str.contains(text).all()


def test_unpaired_grids_resample_each_side(hand_made) -> None:
    values = [np.array([[1.0, 2.0, 4.0], [1.5, 2.5, 3.0]]), np.array([[2.0, 2.5, 5.0, 9.0]])]
    (error,) = choice.standard_errors(
        (values[0][:, None], values[1][:, None]), (values[0][:, None], values[1][:, None]), False
    )
    sides = [choice.best_means(x, x, choice.resamples(x.shape[1], i)) for i, x in enumerate(values)]
    assert error == pytest.approx((sides[0] - sides[1]).std())
    compared = comparisons.compare(
        dict(enumerate(values[0][0])), dict(enumerate(values[1][0])), False
    )
    wider = comparisons.with_choice(compared, 2 * compared.error)
    half = stats.t.ppf(0.975, 2) * 2 * compared.error
    assert (wider.high - wider.low, wider.p) == (
        pytest.approx(2 * half),
        pytest.approx(
            max(compared.p, 2 * stats.t.sf(abs(compared.difference) / 2 / compared.error, 2))
        ),
    )
