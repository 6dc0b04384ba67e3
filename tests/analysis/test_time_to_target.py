"""Targets and where they are from; first crossings; medians with censored seeds; speed-ups."""

import dataclasses
import math
import pathlib

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.cli import main
from analysis.compare import error_table
from analysis.load import metrics, studies
from analysis.load.metrics import Target
from analysis.load.records import Run
from analysis.load.studies import read_study
from analysis.statistics.across import speed_up
from analysis.views import time
from sweeps.records import layout

ERROR = Target(metrics.get("error"), "validation", 0.25, "given")


def made_run(values, steps=None, seconds=None, **more) -> Run:
    """A run whose validation accuracies are `values` at steps 100, 200 ..., 10 s each."""
    count = len(values)
    evals = {
        "global_step": np.array(steps or [100 * (i + 1) for i in range(count)], dtype=np.int64),
        "validation/accuracy": np.array(values, dtype=float),
        "accumulated_submission_time": np.array(
            seconds or [10.0 * (i + 1) for i in range(count)], dtype=float
        ),
    }
    known = {"workload": "imagenet_vit", "variant": "standard", "stage": "compare", "point": 0}
    place = {"seed": 0, "path": pathlib.Path("t"), "name": "t", "state": "done"}
    return Run(**(known | place | {"evals": evals} | more))


@pytest.mark.parametrize(
    ("workload", "steps", "seconds", "version", "limits"),
    [
        ("imagenet_vit", 186_666, None, "0.5", (186_666, 77_520)),
        ("imagenet_vit", 167_999, None, "1.0", (167_999, 64_292)),
        ("librispeech_conformer", 77_000, None, "1.0", (76_000, 43_680)),
        ("fastmri", None, None, "1.0", (18_094, 2_745)),
        # A version that allows less time than was used is not the run's.
        ("imagenet_vit", 167_999, 66_000.0, "0.6", (167_999, 69_768)),
        ("imagenet_vit", 171_472, 77_000.0, "0.5", (186_666, 77_520)),
        ("imagenet_vit", 171_472, 1e9, "1.0", (167_999, 64_292)),
    ],
)
def test_the_table_s_version_is_the_nearest_in_steps(
    workload, steps, seconds, version, limits
) -> None:
    found = metrics.nearest_target(workload, steps, seconds)
    assert found.version == version
    assert (found.step_hint, found.max_allowed_runtime_sec) == limits


def test_a_run_s_own_target_comes_first() -> None:
    stated = {"metric": "accuracy", "validation": 0.7, "test": 0.6}
    run = made_run([0.5], steps=[167_999], targets=stated)
    found = metrics.target_of_run(run, "validation")
    assert (found.metric.name, found.value, found.source) == ("accuracy", 0.7, metrics.OWN)
    assert metrics.target_of_run(run, "test").value == 0.6
    of_table = metrics.target_of_run(made_run([0.5], workload="finewebedu_lm"), "validation")
    assert (of_table.metric.name, of_table.value) == ("ppl", 22.2995)


@pytest.mark.parametrize(
    ("workload", "split"),
    [("finewebedu_lm", "test"), ("digits_vit", "validation"), ("imagenet_vit", "train")],
)
def test_an_unknown_target_is_asked_for(workload, split) -> None:
    with pytest.raises(metrics.UnknownTargetError, match="--target=VALUE"):
        metrics.target_of_run(made_run([0.5], workload=workload), split)


@pytest.mark.parametrize(
    ("values", "kinds"), [((0.7, 0.7, 0.8), ["mismatch"]), ((0.77309, None, None), [])]
)
def test_the_target_of_most_runs_counts(values, kinds) -> None:
    """One number from two sources is one target."""
    runs = [
        made_run([0.5], steps=[167_999], targets={"metric": "accuracy", "validation": value})
        for value in values
    ]
    chosen, problems = metrics.target_of_runs(runs, "validation")
    assert chosen.value == values[0]
    assert [problem.kind for problem in problems] == kinds


def test_first_evaluation_at_or_past_the_target() -> None:
    runs = [
        made_run([0.5, 0.75, 0.6, 0.9]),
        made_run([0.5, 0.7499]),
        made_run([0.5, math.nan]),
        made_run([math.inf]),  # its error is -inf
        made_run([]),
        made_run([], state="diverged"),
    ]
    found = time.crossings(runs, ERROR)
    assert found["step"].tolist()[:4] == [200, math.inf, math.inf, math.inf]
    assert found["seconds"].tolist()[:4] == [20, math.inf, math.inf, math.inf]
    assert found["evaluation"].tolist() == [1, *[math.inf] * 5]
    assert found["last_step"].dropna().tolist() == [400, 200, 200, 100, 0]
    assert found["apart"].tolist()[:3] == [100, 100, 100]
    assert math.isnan(found["step"][4])
    assert found["step"][5] == found["seconds"][5] == math.inf
    higher = Target(metrics.get("accuracy"), "validation", 0.75, "given")
    assert time.crossings([made_run([0.5, 0.75])], higher)["step"].tolist() == [200]
    elsewhere = dataclasses.replace(ERROR, split="test")
    assert time.crossings([made_run([0.5])], elsewhere)["step"].isna().all()


@pytest.mark.parametrize(
    ("values", "median", "is_bound"),
    [
        ([100, 300, 200], 200, False),
        ([100, math.inf, 200], 200, False),
        ([100, math.inf, math.inf], 400, True),
        # Half of them: between 200 and later than 400.
        ([100, 200, math.inf, math.inf], 300, True),
        ([math.nan], math.nan, False),
    ],
)
def test_seeds_that_miss_the_target_weigh_in_the_median(values, median, is_bound) -> None:
    """Each was trained to step 400."""
    seeds = pd.DataFrame({"step": values, "last_step": 400}, dtype=float).assign(label="LASER")
    value, bound = time.medians(seeds, "step").iloc[0]
    assert (value, bound) == (pytest.approx(median, nan_ok=True), is_bound)


def test_speed_ups_have_scipy_s_intervals() -> None:
    """Seed 7 of ours is in no pair."""
    ours, base = {0: 100.0, 1: 200.0, 2: 150.0, 7: 1.0}, {0: 120.0, 1: 210.0, 2: 180.0}
    found = speed_up(ours, base)
    logs = np.log([1.2, 1.05, 1.2])
    bounds = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    assert (found.ratio, found.n, found.method) == (pytest.approx(1.512 ** (1 / 3)), 3, "paired")
    assert (found.low, found.high) == pytest.approx((math.exp(bounds.low), math.exp(bounds.high)))
    found = speed_up(ours, base, paired=False)
    test = stats.ttest_ind(np.log([*base.values()]), np.log([*ours.values()]), equal_var=False)
    bounds = test.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((math.exp(bounds.low), math.exp(bounds.high)))


TIMES = {seed: 100.0 + seed for seed in range(12)}
BASE, LATE = {0: 100.0, 1: 110.0, 2: 120.0}, {9: math.inf}
OURS = {0: 50.0, 1: 55.0, 2: 60.0}


@pytest.mark.parametrize(
    ("ours", "base", "ratio", "n", "method"),
    [
        # 2 of 12 seeds in common: all runs are compared; of 11 the pairs are.
        ({seed + 10: value for seed, value in TIMES.items()}, TIMES, 1.0, 12, "Welch"),
        ({seed: value for seed, value in TIMES.items() if seed}, TIMES, 1.0, 11, "paired"),
        # A seed that misses the target leaves no interval, with or without a partner.
        ({**OURS, 2: math.inf}, BASE, 2.0, 3, "medians"),
        (OURS | LATE, BASE, 110 / 57.5, 3, "medians"),
        (OURS, BASE | LATE, 115 / 55, 3, "medians"),
        ({0: 50.0}, {0: 100.0}, 2.0, 1, "medians"),
        ({**OURS, 0: math.inf, 1: math.inf}, BASE, None, 3, "none"),
        ({5: math.inf, 0: 50.0, 1: 50.0}, {0: 100.0, 1: math.inf}, None, 2, "none"),
        ({}, BASE, None, 0, "none"),
    ],
)
def test_which_seeds_a_speed_up_is_of(ours, base, ratio, n, method) -> None:
    found = speed_up(ours, base)
    assert (found.n, found.method) == (n, method)
    assert found.ratio == pytest.approx(math.nan if ratio is None else ratio, nan_ok=True)
    assert math.isnan(found.low) == (method in ("medians", "none"))


@pytest.fixture
def study(hand_made):
    """Standard passes error 0.1 at 300, 400 and never, LASER at 200, 300 and 200."""
    made = hand_made(workload="digits_vit", config={"workload": "digits_vit"})
    for variant, seeds in {
        "standard": ((0.4, 0.3, 0.1, 0.1), (0.4, 0.3, 0.2, 0.1), (0.4, 0.3, 0.3, 0.3)),
        "laser": ((0.4, 0.1, 0.1, 0.1), (0.4, 0.3, 0.1, 0.1), (0.4, 0.05, 0.1, 0.1)),
    }.items():
        for seed, errors in enumerate(seeds):
            rows = [
                made.evaluation(100 * k, error) | {"accumulated_submission_time": 3600.0 * k}
                for k, error in enumerate(errors, start=1)
            ]
            made.trial("compare", variant, 0, seed, rows)
    return made


def add_early_seed(study, state: str, rows=()) -> None:
    """Seed 3: Standard passes at 400, LASER ends as `state` after `rows`."""
    times = {"accumulated_submission_time": 3600.0}
    study.trial("compare", "standard", 0, 3, [study.evaluation(400, 0.05) | times])
    study.trial("compare", "laser", 0, 3, rows or None, state=state, reason="stopped")


def times_of(study, *asked, **more) -> time.TargetTimes:
    return time.build(study.table(), *asked, **more)


def line(times, variant) -> pd.Series:
    return times.rows.set_index("variant").loc[variant]


@pytest.mark.parametrize(("state", "has_rows"), [("failed", True), ("diverged", False)])
def test_a_seed_that_ended_early_never_reached_the_target(study, state, has_rows) -> None:
    """LASER passes at 200, 300, 200 and never: median 250; Standard's 300, 400, never, 400."""
    add_early_seed(study, state, [study.evaluation(100, 0.4)] if has_rows else ())
    times = times_of(study, 0.1000001, metric="error")
    steps = times.seeds["step"][times.seeds["variant"] == "laser"]
    assert steps.tolist() == [200, 300, 200, math.inf]
    laser = line(times, "laser")
    assert (laser["reached"], laser["n"], laser["step"]) == (3, 4, 250)
    assert (laser["step_method"], laser["step_ratio"]) == ("medians", 400 / 250)
    page = time.page_of(times)
    assert page.tables[1].frame["Steps"].iloc[-1] == ("not in 100" if has_rows else "not in 0")
    assert any(f"LASER seed 3 ({state})" in note for note in page.notes)


@pytest.mark.parametrize("state", ["pending", "running"])
def test_a_seed_that_may_yet_reach_the_target_is_left_out_and_named(study, state) -> None:
    add_early_seed(study, state, [study.evaluation(100, 0.4)])
    times = times_of(study, 0.1000001, metric="error")
    assert times.seeds["seed"][times.seeds["variant"] == "laser"].tolist() == [0, 1, 2]
    assert line(times, "laser")["step_n"] == 3
    assert [(run.variant, run.seed, run.state) for run in times.left_out] == [("laser", 3, state)]
    assert any(f"LASER point 0 seed 3 ({state})" in note for note in time.page_of(times).notes)


def test_the_tables_of_times(study) -> None:
    page = time.page_of(times_of(study, 0.1000001, metric="error"))
    medians, seeds = (table.texts().values.tolist() for table in page.tables)
    assert medians == [
        ["Standard", "2 of 3", "400", "4.00", "–", "baseline", "baseline"],
        ["LASER", "3 of 3", "200", "2.00", "3", "2.000 (no interval)", "2.000 (no interval)"],
    ]
    assert seeds[2] == ["Standard", "2", "not in 400", "not in 4.00", "done"]
    assert page.data().query("variant == 'laser'")["step"].tolist() == [200, 200, 300, 200]


def test_a_target_that_no_seed_reached_is_a_sentence(study) -> None:
    """Trials state an accuracy of 0.9 as their target."""
    assert len(time.page(study.table()).tables) == 2
    target = {"metric": "accuracy", "validation": 0.999, "test": 0.999}
    for entry in study.planned["compare"]:
        path = study.root / entry["path"] / layout.TRIAL
        layout.write_json(path, layout.read_json(path) | {"targets": target})
    page = time.page(study.table())
    assert (page.tables, len(page.notes)) == ((), 1)
    assert "0.999" in page.notes[0]


def test_different_spacing_of_evaluations_is_told(study) -> None:
    rows = [study.evaluation(50, 0.3), study.evaluation(400, 0.05)]
    study.trial("compare", "laser+temp", 0, 0, rows)
    times = times_of(study, 0.2, metric="error")
    assert times.rows["apart"].tolist() == [100, 100, 350]
    assert any("100 to 350" in note for note in time.page_of(times).notes)


@pytest.mark.parametrize(
    ("workload", "reached", "points", "steps", "seconds"),
    [
        (
            "imagenet_vit",
            [0, 5, 0, 0, 0],
            [2, 2, 2, 2, 2],
            [152_814, 153_837, 154_661, 151_165, 154_870],
            [19.2661, 19.4991, 19.6167, 19.2666, 19.8483],
        ),
        (
            "librispeech_conformer",
            [5, 0, 5, 0, 4],
            [5, 5, 5, 5, 3],
            [70_808, 69_011, 67_925, 67_186, 71_385],
            [15.6135, 15.2137, 14.8129, 14.413, 15.613],
        ),
    ],
)
def test_the_fastest_of_published_logs_are_algoperf_s(
    shared, workload, reached, points, steps, seconds
) -> None:
    """What performance_profile.get_best_trial_index of commit 2c90454 takes from these files."""
    parts = {
        each.workload: each for each in studies.by_workload(read_study(shared / "algoperf_logs"))
    }
    times = time.build(error_table.build(parts[workload]), points="fastest")
    every = time.build(times.table, points="all", baseline="baseline").rows
    assert every["reached"].tolist() == reached
    assert times.seeds["point"].tolist() == points
    assert times.seeds["step"].tolist() == steps
    assert (times.seeds["seconds"] / 3600).tolist() == pytest.approx(seconds, abs=5e-5)
    assert times.problems == ()


@pytest.fixture
def logs(tmp_path):
    """Three submissions with two studies of two trials; WER 0.08 is past the target, 0.5 is not.

    adam: study 0 reaches it in its second evaluation (20 s) or its third (3 s), study 1 never;
    slow: its steps take 218 of adam's; lost: no trial reaches it, or lasts.
    """
    curves = {
        "adam": {
            (0, 1): [(100, 10, 0.5), (200, 20, 0.08)],
            (0, 2): [(10, 1, 0.5), (20, 2, 0.5), (30, 3, 0.08)],
            (1, 1): [(100, 10, 0.5), (72_000, 7200, 0.5)],
            (1, 2): [(100, 10, 0.5), (300, 30, 0.5)],
        },
        "slow": {(study, 1): [(1, 10, 0.5), (2, 43.6, 0.08)] for study in (0, 1)},
        "lost": {(study, 1): [(100, 10, 0.5)] for study in (0, 1)},
    }
    for name, trials in curves.items():
        for (number, trial), rows in trials.items():
            folder = tmp_path / f"{name}/study_{number}/librispeech_conformer_jax/trial_{trial}"
            folder.mkdir(parents=True)
            lines = ["global_step,accumulated_submission_time,validation/wer"]
            lines += [",".join(map(str, row)) for row in rows]
            (folder / "eval_measurements.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_of_trials_at_one_evaluation_the_least_time_is_the_fastest() -> None:
    late = made_run([0.5, 0.8], seconds=[10.0, 30.0], point=1)
    soon = made_run([0.5, 0.9], seconds=[10.0, 20.0], point=2)
    untimed = made_run([0.5, 0.9], seconds=[math.nan, math.nan], point=0)
    for runs, point in (([late, soon], 2), ([untimed, soon], 2), ([made_run([]), late], 1)):
        trials = time.crossings(runs, ERROR)
        assert time._seeds(trials, "fastest", ())["point"].tolist() == [point]


@pytest.mark.parametrize("points", ["chosen", "fastest"])
def test_a_submission_that_never_gets_there_has_a_row(logs, points) -> None:
    times = time.build(error_table.build(read_study(logs), baseline="adam"), points=points)
    lost = line(times, "lost")
    assert (lost["reached"], lost["n"], lost["step"], lost["step_is_bound"]) == (0, 2, 100, True)
    assert times.unchosen == (("lost",) if points == "chosen" else ())


def test_the_fastest_trial_is_of_the_earliest_evaluation_and_other_units_have_no_ratio(
    logs,
) -> None:
    """A step of slow takes 21.8 s, of adam 0.1 s."""
    table = error_table.build(read_study(logs), baseline="adam")
    times = time.build(table, points="fastest")
    seeds = times.seeds.set_index("variant")
    assert seeds.loc["adam", ["point", "step", "seconds", "last_step"]].values.tolist() == [
        [1, 200, 20, 200],
        [1, math.inf, math.inf, 72_000],
    ]
    assert seeds.loc["lost", "step"].tolist() == [math.inf, math.inf]
    slow = line(times, "slow")
    assert slow["price"] == pytest.approx(21.8)
    assert (slow["step_method"], slow["seconds_method"]) == ("units", "none")
    texts = time.page_of(times).tables[0].texts()
    assert texts.iloc[-1].tolist()[-2:] == ["other units", "–"]


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        (("--target=0.2", "--metric=error"), 0, "validation error ≤ 0.2"),
        (("--target=3", "--metric=bleu"), 2, "validation/bleu"),
        (("--target=0.2", "--metric=error", "--baseline=nope"), 2, "nope"),
    ],
)
def test_the_command(study, capsys, options, code, named) -> None:
    assert main(["time", str(study.finish()), *options]) == code
    assert named in "".join(capsys.readouterr())
