"""The error table as data: which trials enter, what is compared, which verdicts are withheld."""

import math
import pathlib

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis import cli
from analysis.compare import error_table, frames
from analysis.compare.error_table import build
from analysis.compare.frames import results
from analysis.load.studies import read_study
from analysis.views import table as table_view
from sweeps.records import layout
from tests.analysis.conftest import VARIANTS

GOOD = [0.10, 0.101, 0.102, 0.103, 0.104]
BAD = [0.20, 0.202, 0.204, 0.206, 0.207]


@pytest.fixture
def study(study):
    """Returns standard (0.3 0.5 0.7) against laser (0.2 0.3 0.4) on validation, two points."""
    study.points.append({"learning_rate": 0.01})
    study.add_seeds("standard", (0.4,), "tune")
    return study


@pytest.fixture
def logs(tmp_path: pathlib.Path):
    """Returns a function that writes AlgoPerf's logs: a submission to its seeds' WERs at a last
    step, 100 unless given."""

    def write(submissions, steps=None):
        for name, values in submissions.items():
            for seed, value in enumerate(values):
                directory = tmp_path / name / f"study_{seed}" / "speech_jax" / "trial_1"
                directory.mkdir(parents=True)
                header = "global_step,train/wer,validation/wer,test/wer,preemption_count"
                row = f"{(steps or {}).get(name, 100)},{value},{value},{value},0"
                (directory / layout.EVAL_MEASUREMENTS).write_text(f"{header}\n{row}\n")
        return read_study(tmp_path)

    return write


def comparison_of(table, variant="laser", split="test"):
    return table.by_variant[variant].splits[split].comparison


def kinds(table) -> list[str]:
    return [problem.kind for problem in table.problems]


def test_scipy_gives_the_same_numbers(hand_made) -> None:
    """Medians, means, intervals, differences, p, Holm and verdicts, anew from the seeds' errors."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.01, 5)
    shifts = {"standard": 0, "laser": -0.04, "diff": 0.005, "laser+temp": 0.05}
    seeds = {
        variant: (0.5 + shift + noise + rng.normal(0, 0.004, 5)).tolist()
        for variant, shift in shifts.items()
    }
    frame = results(hand_made(seeds=seeds).table(), None)
    for _, lines in frame.groupby("split"):
        lines = lines.set_index("variant")
        values = {name: np.array(text.split(), float) for name, text in lines["values"].items()}
        others = [name for name in values if name != "standard"]
        tests = {name: stats.ttest_rel(values[name], values["standard"]) for name in others}
        ranked = sorted(others, key=lambda name: tests[name].pvalue)
        p_holm = np.maximum.accumulate([tests[n].pvalue * (3 - k) for k, n in enumerate(ranked)])
        for name, x in values.items():
            bounds = stats.ttest_1samp(x, 0).confidence_interval()
            found = lines.loc[name, ["median", "mean", "sd", "interval_low", "interval_high"]]
            assert list(found) == pytest.approx([np.median(x), x.mean(), x.std(ddof=1), *bounds])
        for name, corrected in zip(ranked, np.minimum(1, p_holm), strict=True):
            difference = values[name].mean() - values["standard"].mean()
            bounds = tests[name].confidence_interval()
            columns = ["difference", "difference_low", "difference_high", "p", "p_holm"]
            expected = [difference, *bounds, tests[name].pvalue, corrected]
            assert list(lines.loc[name, columns]) == pytest.approx(expected)
            told = "worse" if difference > 0 else "better"
            assert lines["verdict"][name] == (told if corrected < 0.05 else "cannot tell")
    assert set(frame["verdict"]) == {"baseline", "better", "worse", "cannot tell"}


def test_of_accuracy_more_is_better(study) -> None:
    table = study.table(metric="accuracy")
    assert (table.stage, table.metric.name, table.decisive) == ("compare", "accuracy", "test")
    assert table.problems == ()
    assert comparison_of(table).difference == pytest.approx(0.2)


def test_the_step_of_the_best_validation_counts_not_that_of_the_best_test(hand_made) -> None:
    made = hand_made(("standard",))
    rows = [
        made.evaluation(100, 0.3, test=0.05),
        made.evaluation(200, 0.2, test=0.25) | {"validation/loss": 2.0, "test/loss": 2.5},
        made.evaluation(300, 0.2, test=0.15) | {"validation/loss": 1.0, "test/loss": 1.5},
        made.evaluation(400, 0.4, test=0.01),
    ]
    made.trial("compare", "standard", 0, 0, rows)
    table = made.table()
    assert table.rows[0].splits["test"].values == pytest.approx({0: 0.25})
    frame = frames.seeds(table).query("split == 'test'")
    assert frame[["step", "value"]].values.tolist() == [[200, pytest.approx(0.25)]]
    assert made.table(metric="loss").rows[0].splits["test"].values == {0: 2.5}


def test_trials_of_another_point_or_that_are_not_done_are_not_counted(study) -> None:
    """Left from an earlier selection: planned, done, and much better."""
    study.add_seeds("laser", (0.001, 0.001, 0.001), point=1)
    study.trial("tune", "standard", 1, 0, None, state="diverged", reason="loss is nan")
    rows = [study.evaluation(100, 0.01)]
    study.trial("compare", "laser", 0, 3, rows, state="diverged", reason="loss is nan")
    study.trial("compare", "laser", 0, 4, rows, state="running")
    study.trial("compare", "laser", 0, 5, None, state="pending")
    table = study.table()
    laser = table.rows[1]
    assert (laser.n, laser.point) == (3, 0)
    assert laser.splits["validation"].summary.median == pytest.approx(0.3)
    assert kinds(table) == ["diverged", "unfinished", "missing", "elsewhere"]


def test_stages_and_points(study, hand_made) -> None:
    assert [(row.variant, row.n) for row in study.table(stage="tune").rows] == [("standard", 1)]
    study.select({"standard": 0})
    table = study.table()
    assert (table.rows[1].point, table.rows[1].n) == (None, 0)
    assert kinds(table) == ["missing"]
    made = hand_made(points=({"learning_rate": 0.1}, {"learning_rate": 0.2}), name="grid")
    made.stages = ("grid",)
    for variant, errors in {"standard": (0.3, 0.2), "laser": (0.1, 0.2)}.items():
        for point, error in enumerate(errors):
            made.add_seeds(variant, (error, error), "grid", point=point)
    rows = made.table().rows
    assert [(row.variant, row.point) for row in rows] == [("standard", 1), ("laser", 0)]


def test_what_there_is_not_is_refused_with_a_list(study, capsys) -> None:
    with pytest.raises(ValueError, match="tune, compare"):
        study.table(stage="test")
    with pytest.raises(ValueError, match="validation/wer.*test/accuracy"):
        study.table(metric="wer")
    assert cli.main(["table", str(study.finish()), "--baseline=diff"]) == 2
    assert "laser, standard" in capsys.readouterr().err


def test_columns_that_all_or_some_trials_lack(study) -> None:
    root = study.finish()
    files = sorted(root.glob(f"compare/*/*/*/{layout.EVAL_MEASUREMENTS}"))
    whole = [file.read_text() for file in files]
    files[-1].write_text(whole[-1].replace("test/", "later/"))
    table = build(read_study(root))
    lacking = table.rows[0]
    assert (len(lacking.splits["test"].values), lacking.n) == (2, 3)
    assert [problem.trial for problem in table.problems] == [
        str(files[-1].parent.relative_to(root))
    ]
    for file, text in zip(files, whole, strict=True):
        file.write_text(text.replace("test/", "later/"))
    table = build(read_study(root))
    assert table.decisive == "validation"
    assert set(kinds(table)) == {"missing"}


def test_rows_stand_in_the_order_of_the_papers_table(hand_made) -> None:
    seeds = dict.fromkeys(sorted(VARIANTS), (0.3,))
    table = hand_made(record={"paper_table": "vit_error"}, seeds=seeds).table()
    assert table.is_paper
    assert [row.variant for row in table.rows] == [*VARIANTS]


def test_another_baseline_and_options_of_the_command(study, tmp_path) -> None:
    """LASER is the baseline: Standard's differences are 0.1 0.2 0.3, and 0.1 0.3."""
    study.add_seeds("standard", (0.3, 0.7), first=3)
    study.add_seeds("laser", (0.2, 0.4), first=3)
    root, out = str(study.finish()), tmp_path / "out.csv"
    options = ["--effect=0.05", "--last=1", "--baseline=laser", f"--out={out}"]
    assert cli.main(["table", root, *options]) == 0
    frame = pd.read_csv(out).set_index(["variant", "split"])
    standard = frame.loc["standard", "test"]
    assert frame.loc["laser", "test"]["verdict"] == "baseline"
    assert math.isnan(frame.loc["laser", "test"]["detectable"])
    assert standard["difference"] == pytest.approx(0.2)
    assert (standard["expected_effect"], int(standard["seeds_needed"])) == (0.05, 34)
    assert standard["last_n"] == 5


def test_published_seeds_are_not_paired(logs) -> None:
    """Apart, 5 against 5 reach 2 / 252 = 0.0079: a verdict for one variant, not for seven: 7 *
    2 / 252 = 0.056; 7 * 2 / 924 is below 0.05."""
    study = logs({"adam": [value + 0.2 for value in GOOD], "shampoo": GOOD})
    assert results(build(study), None)["difference"].isna().all()  # none is called standard
    comparison = comparison_of(build(study, baseline="adam"), "shampoo")
    assert (comparison.test, comparison.verdict, comparison.seeds) == (
        *("permutation", "better", "5 v 5"),
    )
    assert comparison.smallest_p == pytest.approx(2 / 252)
    more = build(logs({f"other{k}": GOOD for k in range(6)}), baseline="adam")
    assert {each.verdict for each in more.comparisons.values()} == {"cannot tell"}
    assert any("6 seeds" in note for note in table_view.page(more).notes)
    compared = results(more, None).query("n_baseline > 0 and split == @more.decisive")
    assert (compared["detectable"] == math.inf).all()


def seeds_of(made, standard, laser, states=None):
    """`states` maps (variant, seed) to a state other than done."""
    for variant, errors in {"standard": standard, "laser": laser}.items():
        for seed, error in enumerate(errors):
            state = (states or {}).get((variant, seed), "done")
            made.add_seeds(variant, [error], state=state, first=seed)
    return made.table()


def rewrite(made, rows, entry=-1) -> None:
    """Writes other evaluations of a trial, the last planned unless given."""
    file = made.root / made.planned["compare"][entry]["path"] / layout.EVAL_MEASUREMENTS
    file.write_text(made.csv_text(rows))


@pytest.mark.parametrize(
    ("standard", "laser", "lost", "expected"),
    [
        (BAD, GOOD, (), "better"),
        (BAD, GOOD, ("laser",), "cannot tell"),
        (BAD, GOOD, ("standard",), "better"),
        (GOOD, BAD, ("laser",), "worse"),
        (GOOD, BAD, ("standard",), "cannot tell"),
        (BAD, GOOD, ("laser", "standard"), "cannot tell"),
    ],
)
@pytest.mark.parametrize("state", ["diverged", "failed"])
def test_a_lost_seed_is_worse_than_any(hand_made, standard, laser, lost, expected, state) -> None:
    states = {(variant, seed): state for variant in lost for seed in (3, 4)}
    table = seeds_of(hand_made(), standard, laser, states)
    comparison = comparison_of(table)
    assert comparison.p_holm < 0.001
    assert comparison.verdict == expected
    assert comparison.withheld == ("lost seeds" if expected == "cannot tell" else "")
    for name in lost:
        row = table.by_variant[name]
        assert (row.n, row.planned, row.lost, row.unfinished) == (3, 5, {state: 2}, 0)
        assert row.seeds == f"3 of 5 (2 {state})"
        line = results(table, None).query("variant == @name").iloc[0]
        assert (line["planned"], line["lost"], line["unfinished"]) == (5, f"{state}=2", 0)


def test_unfinished_seeds_are_not_lost(hand_made) -> None:
    """Neither is one that is done whose file ends before its last step: at 200 of 400."""
    made = hand_made()
    seeds_of(made, BAD, GOOD, {("laser", 2): "running", ("laser", 3): "pending"})
    rewrite(made, [made.evaluation(200, 0.01)])
    table = build(read_study(made.root))
    row = table.rows[1]
    assert (row.n, row.lost, row.unfinished) == (2, {}, 3)
    assert row.seeds == "2 of 5 (3 unfinished)"
    assert set(row.splits["test"].values) == {0, 1}
    assert sorted(kinds(table)) == ["truncated", "unfinished", "unfinished"]


def test_numbers_that_are_not_finite_are_lost(hand_made) -> None:
    """A step that is finite is chosen; without one the seed is lost, on every split; one whose
    test alone is not finite is lost there."""
    made = hand_made()
    seeds_of(made, BAD, GOOD)
    rewrite(made, [made.evaluation(100, 0.1), made.evaluation(400, math.nan)])
    assert build(read_study(made.root)).rows[1].n == 5
    rewrite(made, [made.evaluation(400, math.nan)])
    table = build(read_study(made.root))
    assert table.rows[1].lost == {"non-finite": 1}
    assert comparison_of(table, split="validation").withheld == "lost seeds"
    rewrite(made, [made.evaluation(400, 0.1, test=math.nan)])
    table = build(read_study(made.root))
    assert table.rows[1].splits["test"].non_finite == 1
    assert comparison_of(table).withheld == "lost seeds"
    assert comparison_of(table, split="validation").verdict == "better"


def test_of_two_trials_of_one_seed_the_first_counts_and_is_named(hand_made) -> None:
    made = hand_made(seeds={"standard": (0.2,), "laser": (0.1, 0.9)})
    second = made.planned["compare"][-1]
    second["seed"] = 0
    made.change("laser", 1, seed=0)
    table = made.table()
    row = table.rows[1]
    assert row.n == row.planned == len(row.splits["test"].values) == 1
    assert row.splits["validation"].values == pytest.approx({0: 0.1})
    assert kinds(table) == ["duplicated"]
    assert error_table.first_of_each_seed([]) == []


@pytest.mark.parametrize(
    ("step", "verdict", "withheld"), [(2000, "cannot tell", "lengths"), (9600, "worse", "")]
)
def test_runs_of_different_lengths_are_not_judged(logs, step, verdict, withheld) -> None:
    """By their last errors the one that was at its target in a fifth of the steps is worse."""
    study = logs({"adam": GOOD, "fast": BAD}, {"adam": 10_000, "fast": step})
    table = build(study, baseline="adam")
    comparison = comparison_of(table, "fast")
    assert comparison.p < 0.01
    assert (comparison.verdict, comparison.withheld) == (verdict, withheld)
    assert any("2,000" in note for note in table_view.page(table).notes) == bool(withheld)


def last_of(made, split="validation", last=3) -> list[float]:
    """Returns n, mean, SD over checkpoints and SD over seeds, nan where undefined."""
    frame = results(made.table(last=last), None).set_index(["variant", "split"])
    names = ["last_n", "last_mean", "last_sd_checkpoints", "last_sd_seeds"]
    return frame[names].astype(float).loc["standard", split].tolist()


def test_last_evaluations_by_hand(hand_made) -> None:
    """Seeds' means 0.2 and 0.5, their own sds 0.1 and 0.2; test is 0.01 above. Trials that are not
    done, have fewer evaluations or one that is not finite do not count."""

    def add(seed: int, errors: list[float], state: str) -> None:
        """A trial whose last evaluation is at step 400."""
        steps = range(400 - 100 * (len(errors) - 1), 500, 100)
        rows = [curves.evaluation(*pair) for pair in zip(steps, errors, strict=True)]
        curves.trial("compare", "standard", 0, seed, rows, state=state)

    curves = hand_made(("standard",))
    add(0, [0.9, 0.1, 0.2, 0.3], "done")
    add(1, [0.05, 0.5, 0.3, 0.7], "done")
    expected = [2, 0.35, 0.15, 0.3 / math.sqrt(2)]
    assert last_of(curves) == pytest.approx(expected)
    assert last_of(curves, "test")[1] == pytest.approx(0.36)
    assert last_of(curves, last=1)[:3] == pytest.approx([2, 0.5, math.nan], nan_ok=True)
    assert last_of(curves, last=5) == pytest.approx([0, *[math.nan] * 3], nan_ok=True)
    add(2, [0.9] * 4, "running")
    add(3, [0.9] * 4, "diverged")
    add(4, [0.9, 0.8], "done")
    add(5, [0.9, 0.9, 0.9, math.nan], "done")
    assert last_of(curves) == pytest.approx(expected)
