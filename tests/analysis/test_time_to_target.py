"""Targets and where they are from; first crossings; medians with censored seeds; speed-ups."""

import dataclasses
import math
import pathlib
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.cli import main
from analysis.compare import build, crossings, target_times
from analysis.compare.crossings import Median
from analysis.load import metrics, studies, targets
from analysis.load.records import Run
from analysis.load.studies import read_study
from analysis.load.targets import Target
from analysis.render.text import render as to_text
from analysis.statistics import speed_up
from analysis.views import time

LOGS = pathlib.Path(__file__).resolve().parents[3] / "shared" / "algoperf_logs"
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


def test_a_time_that_is_nan_hides_no_other_unit() -> None:
    """One of three seeds has no last time: the price of a step is that of the other two."""
    seen = [crossings.Crossing(seed, 100.0, 50.0, 200.0, 100.0, 10.0) for seed in range(3)]
    seen[0] = dataclasses.replace(seen[0], last_seconds=math.nan)
    assert target_times.VariantTimes("a", 0, tuple(seen)).step_seconds == 0.5
    assert math.isnan(target_times.VariantTimes("a", 0, tuple(seen[:1])).step_seconds)


def test_few_shared_seeds_are_no_pairs() -> None:
    """2 of 12 seeds in common: all runs are compared; of 11 the pairs are."""
    times = {seed: 100.0 + seed for seed in range(12)}
    few = speed_up.of({seed + 10: value for seed, value in times.items()}, times)
    assert (few.method, few.n) == ("Welch", 12)
    assert few.ratio == pytest.approx(1.0)
    assert few.low < 1.0 < few.high
    most = speed_up.of({seed + 1: value for seed, value in times.items()}, times)
    assert (most.method, most.n) == ("paired", 11)


def test_a_run_s_own_target_comes_first() -> None:
    stated = {"metric": "accuracy", "validation": 0.7, "test": 0.6}
    run = made_run([0.5], steps=[167_999], targets=stated)
    found = targets.of_run(run, "validation")
    assert (found.metric.name, found.value, found.source) == ("accuracy", 0.7, targets.OWN)
    assert targets.of_run(run, "test").value == 0.6
    assert "0.77309" in targets.disagreement(run, found)


@pytest.mark.parametrize(
    ("workload", "steps", "version", "hint"),
    [
        ("imagenet_vit", 186_666, "0.5", 186_666),
        ("imagenet_vit", 167_999, "1.0", 167_999),
        ("librispeech_conformer", 80_000, "0.5", 80_000),
        ("librispeech_conformer", 76_000, "1.0", 76_000),
        ("librispeech_conformer", 77_000, "1.0", 76_000),
        ("criteo1tb", 10_666, "1.0", 10_666),
        ("fastmri", None, "1.0", 18_094),
    ],
)
def test_the_table_s_version_is_the_nearest_in_steps(workload, steps, version, hint) -> None:
    found = targets.nearest(workload, steps)
    assert (found.version, found.step_hint) == (version, hint)


def test_a_version_that_allows_less_time_than_was_used_is_not_the_run_s() -> None:
    assert targets.nearest("imagenet_vit", 171_472).version == "1.0"
    assert targets.nearest("imagenet_vit", 167_999, 66_000.0).version == "0.6"
    assert targets.nearest("imagenet_vit", 171_472, 77_000.0).version == "0.5"
    assert targets.nearest("imagenet_vit", 171_472, 1e9).version == "1.0"


def test_every_workload_of_algoperf_has_targets_in_every_version() -> None:
    of_version = {
        version: {t.workload for t in targets.algoperf() if t.version == version}
        for version in ("0.5", "0.6", "1.0")
    }
    assert of_version["0.5"] == of_version["0.6"] == of_version["1.0"] - {"finewebedu_lm"}
    assert len(of_version["1.0"]) == 33
    base = "criteo1tb fastmri imagenet_resnet imagenet_vit librispeech_conformer"
    assert of_version["0.6"] >= {*base.split(), "librispeech_deepspeech", "ogbg", "wmt"}
    vit = targets.nearest("imagenet_vit", 167_999)
    assert (vit.validation, vit.test, vit.max_allowed_runtime_sec) == (0.77309, 0.6519, 64_292)
    vit = targets.nearest("imagenet_vit", 167_999, 69_000.0)
    assert (vit.validation, vit.test, vit.max_allowed_runtime_sec) == (0.77309, 0.6519, 69_768)


def test_a_workload_without_a_test_split_has_no_test_target() -> None:
    run = made_run([0.5], workload="finewebedu_lm")
    found = targets.of_run(run, "validation")
    assert (found.metric.name, found.value) == ("ppl", 22.2995)
    assert "perplexity ≤ 22.2995" in found.words
    with pytest.raises(targets.UnknownTargetError, match="no test target is known"):
        targets.of_run(run, "test")


def test_no_target_says_what_to_give() -> None:
    run = made_run([0.5], workload="digits_vit")
    with pytest.raises(targets.UnknownTargetError, match="give --target=VALUE"):
        targets.of_run(run, "validation")
    with pytest.raises(targets.UnknownTargetError):
        targets.of_run(made_run([0.5]), "train")


def test_runs_with_different_targets_are_named() -> None:
    runs = [
        made_run([0.5], targets={"metric": "accuracy", "validation": value})
        for value in (0.7, 0.7, 0.8)
    ]
    chosen, problems = targets.of_runs(runs, "validation")
    assert chosen.value == 0.7
    assert len(problems) == 1
    assert "1 runs have another target" in problems[0]


def test_one_number_from_two_sources_is_one_target() -> None:
    stated = {"metric": "accuracy", "validation": 0.77309}
    runs = [made_run([0.5], steps=[167_999], targets=of_run) for of_run in (stated, {}, {})]
    chosen, problems = targets.of_runs(runs, "validation")
    assert (chosen.value, problems) == (0.77309, ())


def test_first_evaluation_at_or_past_the_target() -> None:
    found = crossings.of_run(made_run([0.5, 0.75, 0.6, 0.9]), ERROR)
    assert (found.step, found.seconds, found.apart) == (200, 20.0, 100)
    assert not crossings.of_run(made_run([0.5, 0.7499]), ERROR).is_reached
    missed = crossings.of_run(made_run([0.5, math.nan]), ERROR)
    assert (missed.step, missed.seconds, missed.last_step) == (math.inf, math.inf, 200)
    assert not crossings.of_run(made_run([math.inf]), ERROR).is_reached  # its error is -inf
    higher = Target(metrics.get("accuracy"), "validation", 0.75, "given")
    assert crossings.of_run(made_run([0.5, 0.75]), higher).step == 200
    assert crossings.of_run(made_run([0.5]), dataclasses.replace(ERROR, split="test")) is None


def test_seeds_that_miss_the_target_weigh_in_the_median() -> None:
    inf = math.inf
    assert crossings.median([100, 300, 200], [400] * 3) == Median(200, False)
    assert crossings.median([100, inf, 200], [400] * 3) == Median(200, False)
    assert crossings.median([100, inf, inf], [400] * 3) == Median(400, True)
    # Half of them: between 200 and later than 400.
    assert crossings.median([100, 200, inf, inf], [400] * 4) == Median(300, True)
    assert math.isnan(crossings.median([math.nan], [400]).value)


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=9))
def test_a_bound_lies_below_whatever_the_late_seeds_do(seeds) -> None:
    """Every late seed arrives at some time after its budget of 5."""
    values = [math.inf if late or time > 5 else time for time, late in seeds]
    found = crossings.median(values, [5.0] * len(values))
    truth = np.median([value if value < math.inf else 5.0 + index
                       for index, value in enumerate(values, start=1)])  # fmt: skip
    assert (found.value <= truth) if found.is_bound else found.value == truth


def test_paired_speed_up_is_the_t_interval_of_the_logs() -> None:
    ours, base = {0: 100.0, 1: 200.0, 2: 150.0, 7: 1.0}, {0: 120.0, 1: 210.0, 2: 180.0}
    found = speed_up.of(ours, base)
    logs = np.log([1.2, 1.05, 1.2])
    bounds = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    assert found.ratio == pytest.approx(math.exp(logs.mean()))
    assert (found.low, found.high) == pytest.approx((math.exp(bounds.low), math.exp(bounds.high)))
    assert (found.n, found.method) == (3, "paired")


def test_unpaired_speed_up_is_welch_s() -> None:
    ours, base = {0: 100.0, 1: 200.0, 2: 150.0}, {0: 120.0, 1: 300.0, 2: 180.0, 3: 250.0}
    found = speed_up.of(ours, base, paired=False)
    test = stats.ttest_ind(np.log([*base.values()]), np.log([*ours.values()]), equal_var=False)
    bounds = test.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((math.exp(bounds.low), math.exp(bounds.high)))


def test_a_seed_that_misses_leaves_no_interval() -> None:
    base = {0: 100.0, 1: 100.0, 2: 100.0}
    found = speed_up.of({0: 50.0, 1: 50.0, 2: math.inf}, base)
    assert (found.ratio, found.method) == (2.0, "medians")
    assert math.isnan(found.low)
    assert speed_up.of({0: math.inf, 1: math.inf, 2: 50.0}, base).method == "none"
    assert speed_up.of({}, base).method == "none"
    assert speed_up.of({5: math.inf, 0: 50.0, 1: 50.0}, {0: 100.0, 1: math.inf}).method == "none"
    assert speed_up.of({0: 50.0}, {0: 100.0}).method == "medians"


def test_a_seed_that_misses_without_a_partner_leaves_no_interval() -> None:
    """Seed 9 of either side is in no pair, and not reaching the target is not forgotten."""
    base, late = {0: 100.0, 1: 110.0, 2: 120.0}, {9: math.inf}
    ours = {0: 50.0, 1: 55.0, 2: 60.0}
    assert speed_up.of(ours, base).ratio == pytest.approx(2.0)
    slower = speed_up.of(ours | late, base)
    assert (slower.ratio, slower.n, slower.method) == (110 / 57.5, 3, "medians")
    faster = speed_up.of(ours, base | late)
    assert (faster.ratio, faster.n, faster.method) == (115 / 55, 3, "medians")
    assert math.isnan(slower.low)
    assert math.isnan(faster.high)


@given(st.floats(0.1, 10), st.lists(st.floats(1, 1e6), min_size=2, max_size=6))
def test_every_seed_faster_by_one_factor_is_that_speed_up(factor, base) -> None:
    baseline = dict(enumerate(base))
    found = speed_up.of({seed: value / factor for seed, value in baseline.items()}, baseline)
    assert found.ratio == pytest.approx(factor)
    assert found.low == pytest.approx(factor, rel=1e-3)


@pytest.fixture
def study(hand_made):
    """Standard passes error 0.1 at 300, 400 and never, LASER at 200, 300 and 200."""
    made = hand_made(workload="digits_vit", config={"workload": "digits_vit"})
    curves = {
        "standard": ((0.4, 0.3, 0.1, 0.1), (0.4, 0.3, 0.2, 0.1), (0.4, 0.3, 0.3, 0.3)),
        "laser": ((0.4, 0.1, 0.1, 0.1), (0.4, 0.3, 0.1, 0.1), (0.4, 0.05, 0.1, 0.1)),
    }
    for variant, seeds in curves.items():
        for seed, errors in enumerate(seeds):
            rows = [
                made.evaluation(100 * k, error) | {"accumulated_submission_time": 3600.0 * k}
                for k, error in enumerate(errors, start=1)
            ]
            made.trial("compare", variant, 0, seed, rows)
    made.select({"standard": 0, "laser": 0})
    return made


def add_early_seed(study, state: str, rows=()) -> None:
    """Seed 3: Standard passes at 400, LASER ends as `state` after `rows`."""
    times = {"accumulated_submission_time": 3600.0}
    study.trial("compare", "standard", 0, 3, [study.evaluation(400, 0.05) | times])
    study.trial("compare", "laser", 0, 3, rows or None, state=state, reason="stopped")


@pytest.mark.parametrize("state", ["failed", "diverged"])
@pytest.mark.parametrize("has_rows", [True, False])
def test_a_seed_that_ended_early_never_reached_the_target(study, state, has_rows) -> None:
    """LASER passes at 200, 300, 200 and never: median 250; Standard's 300, 400, never, 400."""
    add_early_seed(study, state, [study.evaluation(100, 0.4)] if has_rows else ())
    table = build.error_table(read_study(study.finish()))
    times = target_times.build(table, 0.1000001, metric="error")
    [laser] = [row for row in times.rows if row.variant == "laser"]
    assert [each.step for each in laser.crossings] == [200, 300, 200, math.inf]
    assert (laser.by_steps.method, laser.by_steps.ratio) == ("medians", 400 / 250)
    text = to_text(time.page_of(times))
    assert "| LASER    |  3 of 4 |   250 |" in text
    assert f"never: LASER seed 3 ({state})" in text
    assert ("not in 100" if has_rows else "not in 0") in text


@pytest.mark.parametrize("state", ["pending", "running"])
def test_a_seed_that_may_yet_reach_the_target_is_left_out_and_named(study, state) -> None:
    add_early_seed(study, state, [study.evaluation(100, 0.4)])
    table = build.error_table(read_study(study.finish()))
    times = target_times.build(table, 0.1000001, metric="error")
    [laser] = [row for row in times.rows if row.variant == "laser"]
    assert [each.seed for each in laser.crossings] == [0, 1, 2]
    assert laser.by_steps.n == 3
    text = to_text(time.page_of(times))
    assert f"Left out, as they may yet reach the target: LASER seed 3 ({state})." in text


def test_the_table_of_times(study) -> None:
    table = build.error_table(read_study(study.finish()))
    times = target_times.build(table, 0.1000001, metric="error")
    standard, laser = times.rows
    assert [each.step for each in standard.crossings] == [300, 400, math.inf]
    assert laser.by_steps.method == "medians"
    assert laser.by_steps.ratio == 2.0
    text = to_text(time.page_of(times))
    assert "| Standard |  2 of 3 |   400 | 4.00 |" in text
    assert "2.000 (no interval)" in text
    assert "not in 400" in text
    assert "evaluations lie 100 steps apart" in text
    assert time.draw(table) is not None or not hasattr(table.study.runs[0], "targets")


def test_the_figure_in_words_has_every_variant_s_medians(study, hand_made) -> None:
    study.metric = "accuracy"  # trials state 0.9 as their target
    study.trial("compare", "diff", 0, 0, [study.evaluation(100, 0.4)])
    study.select({"standard": 0, "laser": 0, "diff": 0})
    table = build.error_table(read_study(study.finish()))
    assert time.words(table) == (
        "First validation accuracy ≥ 0.9 on digits_vit, median over seeds: "
        "Standard 400 steps, 4.00 h (2 of 3 seeds); LASER 200 steps, 2.00 h (3 of 3 seeds); "
        "Diff never (0 of 1 seeds)."
    )


def test_document_is_none_without_a_target_or_evaluations(hand_made) -> None:
    made = hand_made(workload="digits_vit")
    made.trial("compare", "standard", 0, 0, None, state="pending")
    made.select({"standard": 0})
    table = build.error_table(read_study(made.finish()))
    assert time.page(table) is None
    assert time.draw(table) is None


def test_different_spacing_of_evaluations_is_said(study) -> None:
    study.trial(
        "compare", "laser+temp", 0, 0, [study.evaluation(50, 0.3), study.evaluation(400, 0.05)]
    )
    study.select({"standard": 0, "laser": 0, "laser+temp": 0})
    table = build.error_table(read_study(study.finish()))
    times = target_times.build(table, 0.2, metric="error")
    text = to_text(time.page_of(times))
    assert "evaluations lie 100 to 350 steps apart" in text


def test_hours_to_loss_stand_beside_the_paper_s(hand_made) -> None:
    made = hand_made(workload="c4_lm_2b", config={"workload": "c4_lm_2b"}, metric="loss")
    for variant, hours in (("standard", 30.0), ("laser", 27.0)):
        row = made.measured(400, "loss", 2.3) | {"accumulated_submission_time": hours * 3600}
        made.trial("compare", variant, 0, 0, [row])
    made.select({"standard": 0, "laser": 0})
    table = build.error_table(read_study(made.finish()))
    page = time.page_of(target_times.build(table, 2.31, "validation", "loss"))
    rows = [[cell.text for cell in row] for row in page.tables[1].sections[0]]
    assert rows == [
        ["Standard", "1 of 1", "27.22", "30.00"],
        ["LASER", "1 of 1", "24.88", "27.00"],
    ]
    assert "time saved is 8.6 %" in to_text(page)


@pytest.mark.skipif(not LOGS.is_dir(), reason="no published logs here")
def test_published_logs(capsys) -> None:
    """Facts of the logs: ViT's second point passes the target in all studies, others never."""
    assert main(["time", str(LOGS), "--points=all", "--baseline=baseline"]) == 0
    text = capsys.readouterr().out
    assert "AlgoPerf 0.5 (step hint 186,666" in text
    assert "AlgoPerf 0.5 (step hint 80,000" in text
    assert "| baseline, point 2 |  5 of 5 |   153,837 |   19.50 | baseline | baseline |" in text
    assert "| baseline, point 1 |  0 of 5 | > 170,291 | > 21.49 |" in text


@pytest.mark.skipif(not LOGS.is_dir(), reason="no published logs here")
@pytest.mark.parametrize(
    ("workload", "points", "steps", "seconds"),
    [
        (
            "imagenet_vit",
            [2, 2, 2, 2, 2],
            [152_814, 153_837, 154_661, 151_165, 154_870],
            [19.2661, 19.4991, 19.6167, 19.2666, 19.8483],
        ),
        (
            "librispeech_conformer",
            [5, 5, 5, 5, 3],
            [70_808, 69_011, 67_925, 67_186, 71_385],
            [15.6135, 15.2137, 14.8129, 14.413, 15.613],
        ),
    ],
)
def test_the_fastest_of_published_logs_are_algoperf_s(workload, points, steps, seconds) -> None:
    """What performance_profile.get_best_trial_index of commit 2c90454 takes from these files."""
    parts = {each.workload: each for each in studies.by_workload(read_study(LOGS))}
    times = target_times.build(build.error_table(parts[workload]), points="fastest")
    (row,) = times.rows
    assert [each.point for each in row.crossings] == points
    assert [each.step for each in row.crossings] == steps
    assert [each.seconds / 3600 for each in row.crossings] == pytest.approx(seconds, abs=5e-5)
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


def test_the_fastest_trial_is_the_one_of_the_earliest_evaluation(logs) -> None:
    table = build.error_table(read_study(logs))
    rows = {row.variant: row for row in target_times.build(table, points="fastest").rows}
    first, second = rows["adam"].crossings
    assert (first.point, first.step, first.seconds) == (1, 200, 20)
    assert (second.step, second.seconds, second.last_step) == (math.inf, math.inf, 72_000)
    assert [each.is_reached for each in rows["lost"].crossings] == [False, False]


def test_of_trials_at_one_evaluation_the_least_time_is_the_fastest() -> None:
    late = made_run([0.5, 0.8], seconds=[10.0, 30.0], point=1)
    soon = made_run([0.5, 0.9], seconds=[10.0, 20.0], point=2)
    assert crossings.fastest([late, soon], ERROR).point == 2
    untimed = made_run([0.5, 0.9], seconds=[math.nan, math.nan], point=0)
    assert crossings.fastest([untimed, soon], ERROR).point == 2
    assert crossings.fastest([], ERROR) is None
    assert crossings.fastest([made_run([])], ERROR) is None
    died = made_run([], state="diverged", point=4)
    assert crossings.fastest([died], ERROR).step == math.inf


@pytest.mark.parametrize("points", ["chosen", "fastest"])
def test_a_submission_that_never_gets_there_has_a_row(logs, capsys, points) -> None:
    assert main(["time", str(logs), f"--points={points}", "--baseline=adam"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"\| lost +\| +0 of 2 \| +> 100 \|", text)
    assert text.count("Rule: ") == 1
    assert ("Rule: AlgoPerf's scoring" in text) == (points == "fastest")
    assert ("No trial of lost is done, so no point was chosen" in text) == (points == "chosen")


def test_steps_of_other_units_have_no_speed_up(logs, capsys) -> None:
    assert main(["time", str(logs), "--points=fastest", "--baseline=adam"]) == 0
    text = capsys.readouterr().out
    row = next(line for line in text.splitlines() if line.startswith("| slow"))
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[-2] == "–"
    assert "one of its steps took 21.8 s, one of adam's 0.1 s" in text


def test_the_command_s_errors(study, capsys) -> None:
    directory = str(study.finish())
    assert main(["time", directory, "--target=0.2", "--metric=error"]) == 0
    assert "validation error ≤ 0.2" in capsys.readouterr().out
    assert main(["time", directory, "--target=3", "--metric=bleu"]) == 2
    assert "validation/bleu" in capsys.readouterr().err
    assert main(["time", directory, "--target=0.2", "--metric=error", "--baseline=nope"]) == 2
    assert "no variant 'nope' to compare with; there are laser, standard" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0,2"])
def test_a_target_is_a_finite_number(study, capsys, value) -> None:
    directory = str(study.finish())
    with pytest.raises(SystemExit, match="2"):
        main(["time", directory, f"--target={value}", "--metric=error"])
    assert "give a number from 0" in capsys.readouterr().err
