"""The compute that a variant saves: by hand, by simulation, and over studies of several budgets."""

import dataclasses
import itertools
import math
import re
import shutil

import numpy as np
import pytest
from scipy import stats

from analysis.cli import main
from analysis.compare import error_table, experiment
from analysis.load.studies import read_study
from analysis.statistics import budgets
from analysis.statistics.intervals import Estimate, summarise, widened
from analysis.views import speedup, summary
from sweeps.records import layout

STEPS = (500, 1000, 2000, 4000)
# Noise by seed, of four budgets and of the variant: the same at every budget, or mirrored by turns.
NOISY = ((-0.01, 0.0, 0.01),) * 4 + ((0.0, 0.0, 0.0),)
TURNED = ((-0.01, 0.0, 0.01), (0.01, 0.0, -0.01)) * 2 + ((0.0, 0.0, 0.0),)


def curve(steps):
    """Returns what the baseline reaches, 1 − log₂(steps/1000)/10: 0.95 at √2 thousand steps."""
    return 1 - math.log2(steps / 1000) / 10


def _of(curve, variant, noise=((0.0,) * 3,) * 5):
    """Budgets of three seeds: `curve` at STEPS, and the variant, with noise by seed."""
    baseline = {
        steps: dict(enumerate(curve(steps) + np.array(own)))
        for steps, own in zip(STEPS, noise, strict=False)
    }
    return budgets.of_seeds(baseline, dict(enumerate(variant + np.array(noise[-1]))))


def test_steps_needed_of_a_curve_that_is_known():
    """Without any spread over seeds, where value and ends are one number; ± 0.01 by seed with sd
    0.01."""
    exact = budgets.needed(_of(curve, 0.95), math.nan)
    assert exact.low == exact.value == exact.high == pytest.approx(1000 * 2**0.5, rel=1e-6)
    needed = budgets.needed(_of(curve, 0.95, NOISY), 1000.0)
    # t(2) is 4.3027, so the mean is known to 4.3027·0.01/√3 = 0.02484: 2^±0.2484 of the steps.
    half = stats.t.ppf(0.975, 2) * 0.01 / math.sqrt(3) * 10
    assert half == pytest.approx(0.2484, abs=1e-4)
    ends = [1000 * 2 ** (0.5 - half), 1000 * 2 ** (0.5 + half)]
    assert [needed.low, needed.high] == pytest.approx(ends, rel=1e-6)


@pytest.mark.parametrize("equal", [501.0, 1000.0, 1234.5, 2000.0, 3999.0])
def test_the_interval_agrees_with_the_paired_test_at_equal_compute_and_at_budgets(equal):
    """A variant whose p is 0.05 but for a millionth, at a place that the grid does not have: on one
    side the interval holds the place, on the other it does not."""
    made = _of(curve, 0.0, 0.001 * np.random.default_rng(1).normal(size=(5, 3)))
    differences = made.differences(np.array([equal]))[0]
    half = stats.t.ppf(0.975, 2) * differences.std(ddof=1) / math.sqrt(3)
    for sign in (-1, 1):
        for share, is_held in ((1 - 1e-6, True), (1 + 1e-6, False)):
            shift = differences.mean() + sign * share * half
            moved = budgets.Budgets(made.steps, made.baseline, made.variant + shift)
            needed = budgets.needed(moved, equal)
            assert (needed.low <= equal <= needed.high) == is_held


@pytest.mark.parametrize(
    ("variant", "expected"),
    [(1.2, (0.0, 0.0, 500.0)), (0.7, (math.inf, 4000.0, math.inf))],
)
def test_nothing_is_extrapolated(variant, expected):
    needed = budgets.needed(_of(curve, variant, NOISY), 1000.0)
    assert (needed.value, needed.low, needed.high) == expected
    ends = widened(needed, math.log(2))
    assert (ends.low, ends.high) == pytest.approx((expected[1] / 2, expected[2] * 2))


# What a baseline reached on text after 1,500 to 12,000 steps, and the slopes of the monotone cubic
# through these means by the logarithm of the steps to base 2, by hand (Fritsch & Butland): harmonic
# means of neighbouring differences, and at the ends (3·d₀ − d₁)/2.
TEXT = (4.1040, 3.9161, 3.7532, 3.6546)


def hermite(steps):
    """Returns the monotone cubic through TEXT at `steps`, here of three times STEPS."""
    d = np.diff(TEXT)
    inner = [2 * a * b / (a + b) for a, b in itertools.pairwise(d)]
    slopes = [(3 * d[0] - d[1]) / 2, *inner, (3 * d[2] - d[1]) / 2]
    k, x = divmod(math.log2(steps / 1500), 1)
    k, x = (2, 1.0) if k == 3 else (int(k), x)
    rise = slopes[k] * x * (1 - x) ** 2 - slopes[k + 1] * x**2 * (1 - x)
    return TEXT[k] + d[k] * x**2 * (3 - 2 * x) + rise


@pytest.mark.parametrize("ratio", [0.6, 1.0, 1.08, 2.3, 3.9])
def test_steps_by_a_monotone_curve(ratio):
    means = np.repeat(np.transpose([TEXT]), 3, axis=1)
    made = budgets.Budgets(3.0 * np.array(STEPS), means, np.full(3, hermite(3000 * ratio)))
    assert budgets.by_pchip(made) == pytest.approx(3000 * ratio, rel=1e-4)
    for beyond in (5.0, 3.0):
        outside = budgets.Budgets(made.steps, means, np.full(3, beyond))
        assert math.isnan(budgets.by_pchip(outside))
        assert not budgets.is_of_form(budgets.needed(outside, math.nan), math.nan)


@pytest.mark.parametrize(("other", "expected"), [(1.024, False), (1.026, True), (0.974, True)])
def test_a_number_is_exploratory_where_the_form_moves_it(other, expected):
    """By a quarter of the shorter side, 0.1 in logarithms; an end beyond the budgets is no side."""
    for ends in ((-0.1, 0.3), (-0.3, 0.1), (-math.inf, 0.1), (-0.1, math.inf)):
        needed = Estimate(3000.0, *(3000.0 * np.exp(ends)).tolist())
        assert budgets.is_of_form(needed, 3000 * other) == expected
    assert not budgets.is_of_form(Estimate(3000.0, 0.0, math.inf), 6000.0)


@pytest.mark.parametrize(("ratio", "least"), [(1.0, 0.92), (1.08, 0.92), (1.21, 0.91), (2.3, 0.8)])
def test_the_interval_holds_the_steps_of_a_curve_that_was_measured(ratio, least):
    """Of 500 studies of 12 seeds, whose noise is 0.05 of what a doubling gains: within four
    standard errors of 95 % near a budget, less far from any. No effect saves in 2.5 %."""
    rng = np.random.default_rng(int(100 * ratio))
    means, truth = np.transpose([TEXT]), hermite(3000 * ratio)
    held, saves = [], []
    for _ in range(500):
        noise = 0.009 / math.sqrt(2) * rng.normal(size=(5, 12))
        made = budgets.Budgets(3.0 * np.array(STEPS), means + noise[:4], truth + noise[4])
        needed = budgets.needed(made, math.nan)
        held.append(needed.low <= 3000 * ratio <= needed.high)
        saves.append(needed.low > 3000)
    assert least < np.mean(held) < 0.985
    assert np.mean(saves) < 0.05 or ratio > 1


@pytest.mark.parametrize(
    ("low", "high", "time", "expected"),
    [
        (1100, 1300, 1.0, "saves"),
        (1100, 1300, 0.5, "compute: saves; time: costs more"),
        (1100, 1300, 0.8, "compute: saves; time: cannot tell"),
        (700, 900, 1.0, "costs more"),
        (900, 1300, 1.0, "cannot tell"),
        (1100, 1300, None, "compute: saves; time: not measured"),
    ],
)
def test_a_verdict_is_of_compute_and_time(low, high, time, expected):
    line = {"low": low, "high": high, "compute": 1e-3, "time": 1e-3 * (time or 1)}
    line |= {"time_low": low, "time_high": high}
    assert speedup._verdict(line, time is not None, False) == expected
    assert speedup._verdict(line, time is not None, True) == f"{expected} (exploratory)"
    assert speedup._verdict(line | {"compute": math.nan}, False, False) == "not measured"


def test_a_baseline_that_overfits_is_said():
    """Each later budget against the best before it; images that all seeds gain are no noise."""
    assert _of({500: 1.0, 1000: 0.6, 2000: 0.9, 4000: 0.9}.get, 0.9, TURNED).turn == (1000, 2000)
    assert _of({500: 1.0, 1000: 0.8, 2000: 0.81, 4000: 0.79}.get, 0.9, TURNED).turn is None
    assert _of({500: 1.0, 1000: 0.8, 2000: 0.8 + 1e-9, 4000: 0.8}.get, 0.9).turn is None


def test_a_polynomial_that_leaves_its_budgets_is_said():
    bent = {500: 0.90, 1000: 0.85, 2000: 0.20, 4000: 0.15}.get
    assert _of(bent, 0.14, TURNED).bend == (500, 1000)
    assert _of(curve, 0.9, TURNED).bend is None


@pytest.mark.parametrize(
    ("steps", "seeds", "name"), [((10, 20), 3, "2 budget"), ((10, 20, 30), 2, "2 seed")]
)
def test_three_budgets_and_three_seeds_are_the_least(steps, seeds, name):
    with pytest.raises(ValueError, match=name):
        budgets.of_seeds(
            dict.fromkeys(steps, dict.fromkeys(range(seeds), 1.0)), {0: 1.0, 1: 1.0, 2: 1.0}
        )


def made_studies(hand_made, all_steps=STEPS, config=({},) * 4):
    """Standard at every budget, 4 − log₂(steps/1000)/10 nats, and LASER at 1000: 3.9."""
    roots = []
    for steps, more in zip(all_steps, config, strict=False):
        made = hand_made(
            name=f"of_{steps}_{len(roots)}", workload="pydoc_lm", metric="loss",
            config={"workload": "pydoc_lm"} | more,
        )  # fmt: skip
        names = ("standard", "laser") if steps == 1000 else ("standard",)
        for name in names:
            for seed, noise in enumerate((-0.01, 0.0, 0.01)):
                loss = 4 - math.log2(steps / 1000) / 10 + noise
                loss = 3.9 + 0.002 * seed if name == "laser" else loss
                seconds = steps * {"standard": 0.02, "laser": 0.03}[name]
                row = made.measured(steps, "loss", loss, apart=0.0)
                row |= {"accumulated_submission_time": seconds}
                meta = {"model_flops_per_step": 1e9}
                made.trial("compare", name, 0, seed, [row], steps=steps, meta=meta)
        roots.append(made.finish())
    return roots


def _tables(roots):
    return [error_table.build(read_study(root), None, "loss") for root in roots]


def test_speed_ups_over_studies(hand_made):
    speedups = speedup.of_tables(_tables(made_studies(hand_made)))
    (row,) = speedups.rows.itertuples()
    # 3.902, the mean of LASER's, is the baseline's at 2^0.98 thousand steps.
    assert row.needed == pytest.approx(1000 * 2**0.98, rel=2e-3)
    assert row.low < row.needed < row.high
    assert row.needed * row.compute == pytest.approx(2**0.98, rel=2e-3)
    assert row.needed * row.time == pytest.approx(2**0.98 / 1.5, rel=2e-3)
    assert row.by_pchip == pytest.approx(row.needed, rel=1e-3)
    assert row.verdict == "compute: saves; time: not measured"
    assert row.seeds_used == 3
    data = speedup.page(speedups).data()
    assert data.shape[0] == 5
    assert data["speedup_compute"].iloc[-1] == pytest.approx(2**0.98, rel=2e-3)


def test_a_speed_up_in_time_holds_the_interval_of_its_step_times(hand_made, tmp_path):
    """The steps that are needed and the ratio of step times, paired by round, are independent."""
    rounds = {"standard": (0.020, 0.022, 0.021), "laser": (0.029, 0.033, 0.030)}
    rows = [
        f"pydoc_lm,{name},{n},step_seconds,{time}"
        for name, times in rounds.items()
        for n, time in enumerate(times)
    ]
    file = tmp_path / "results.csv"
    other = "digits_vit,laser,0,step_seconds,1"
    file.write_text("\n".join(["workload,variant,seed,metric,value", other, *rows]))
    roots = made_studies(hand_made)
    speedups = speedup.of_tables(_tables(roots), tmp_path)
    (row,) = speedups.rows.itertuples()
    assert row.verdict == "saves"
    logs = np.log(np.divide(*rounds.values()))
    half = logs.mean() - stats.ttest_1samp(logs, 0.0).confidence_interval().low
    known = math.exp(logs.mean()) * row.needed / 1000
    below, above = (math.hypot(math.log(end / row.needed), half) for end in (row.low, row.high))
    last = speedup.page(speedups).data().iloc[-1]
    found = last[["speedup_time", "speedup_time_low", "speedup_time_high"]].tolist()
    assert found == pytest.approx([known, known * math.exp(-below), known * math.exp(above)])
    file.write_text(file.read_text().replace("laser", "laser+temp"))
    with pytest.raises(ValueError, match="not standard and laser in two rounds"):
        speedup.of_tables(_tables(roots), tmp_path)


@pytest.mark.parametrize(("n", "rounds", "sd"), [(12, 10, 0.3), (12, 10, 3.0), (4, 5, 1.0)])
def test_the_interval_of_a_product_holds_it(n, rounds, sd):
    """In 95 to 98 % of studies: of two logarithms, that of the first is exact."""
    rng, held = np.random.default_rng(n), []
    for _ in range(2_000):
        steps, factor = summarise(rng.normal(0, 1, n)), summarise(rng.normal(0, sd, rounds))
        known = Estimate(*np.exp([steps.mean, steps.low, steps.high]))
        ends = widened(known, factor.high - factor.mean)
        held.append(ends.low <= math.exp(-factor.mean) <= ends.high)
    assert 0.94 <= np.mean(held) <= 0.985


@pytest.mark.usefixtures("without_charts")
def test_summary_and_report_say_what_is_saved(hand_made, capsys, tmp_path):
    """Of two studies with variants each has its own budget and those of the baseline alone; a study
    of another batch size is no budget, and two budgets are too few."""
    roots = made_studies(hand_made, (*STEPS, 1000, 8000), ({},) * 5 + ({"batch_size": 7},))
    tables = _tables(roots)
    names = [[table.study.name for table in own] for own in speedup.experiments(tables)]
    alone = ["of_500_0", "of_2000_2", "of_4000_3"]
    assert names == [["of_1000_1", *alone], ["of_1000_4", *alone]]
    assert speedup.experiments(tables[1:3]) == []
    assert main(["summary", *map(str, roots)]) == 0
    # The sd of differences is 0.008: 4.3027·0.008/√3 nats are 0.1987 doublings either way.
    assert capsys.readouterr().out.count("1.97 [1.72, 2.26]") == 2
    out = tmp_path / "report.html"
    assert main(["report", str(roots[0].parent), f"--out={out}"]) == 0
    assert out.read_text().count("1.97 [1.72, 2.26]") == 4
    assert main(["ledger", str(roots[0].parent), f"--site={out}"]) == 0
    assert out.read_text().count("1.97 [1.72,\N{NO-BREAK SPACE}2.26]") == 2


def test_a_budget_of_another_experiment_is_refused(hand_made, other_experiments):
    """Another value of any key that results depend on, the lengths aside; a study of one
    experiment may have other numbers of points and seeds."""
    *tables, last = _tables(made_studies(hand_made, config=({"batch_size": 8},) * 4))
    others = other_experiments(last)
    lengths = {"steps", "step_hint", "eval_every"}
    for name, other in others.items():
        grouped = [table for group in speedup.experiments([*tables, other]) for table in group]
        assert (other in grouped) == (name in lengths), name
        if name not in lengths:
            with pytest.raises(experiment.MixedStudiesError, match=rf" {re.escape(name)} \("):
                speedup.of_tables([*tables, other])
    assert speedup.of_tables([*tables, others["eval_every"]]).rows["needed"].gt(0).all()
    counts = {"points": 9, "seeds": 9, "tuning_seeds": 2, "variants": ["standard"], "name": "x"}
    wider = dataclasses.replace(last.study, config=last.study.config | counts)
    assert speedup.experiments([*tables, dataclasses.replace(last, study=wider)])


def test_a_budget_may_take_the_rate_that_another_one_selected(hand_made):
    config = {"space": "selected:of_2000_2", "protocol": "grid"}
    tables = _tables(made_studies(hand_made, config=({}, {}, {}, config)))
    assert len(speedup.of_tables(tables).budgets) == 4
    with pytest.raises(experiment.MixedStudiesError, match="protocol"):
        speedup.of_tables([tables[1], tables[3]])


def test_budgets_on_other_data_are_refused(hand_made):
    """By the digests of trials; one that states none is noted, and grouped, so that it is said."""
    tables = _tables(made_studies(hand_made))

    def on(table, digest):
        runs = tuple(dataclasses.replace(run, data_digest=digest) for run in table.study.runs)
        return dataclasses.replace(table, study=dataclasses.replace(table.study, runs=runs))

    of_one = [on(table, "a" * 64) for table in tables]
    assert speedup.of_tables(of_one).problems == speedup.of_tables(tables).problems == ()
    silent = [*of_one[:3], tables[3]]
    assert "data" in speedup.of_tables(silent).problems[0].text
    mixed = [*of_one[:3], on(tables[3], "b" * 64)]
    for budgets_of in (silent, mixed):
        assert speedup.experiments(budgets_of)
    with pytest.raises(experiment.MixedStudiesError, match=r"data \(a{12}: .*; b{12}: of_4000_3\)"):
        speedup.of_tables(mixed)
    (page,) = speedup.pages_of(mixed)
    assert (page.tables, len(page.problems)) == ((), 1)


@pytest.mark.parametrize("twice", [2000, 1000])
def test_equal_budgets_are_refused_and_named_by_the_page(hand_made, twice):
    """Beside a budget or beside the variants' own."""
    roots = made_studies(hand_made, (*STEPS, twice), ({},) * 5)
    if twice == 1000:
        shutil.rmtree(roots[-1] / "compare" / "laser")
        made = layout.read_json(roots[-1] / "compare" / layout.TRIALS)
        made["trials"] = [row for row in made["trials"] if row["variant"] == "standard"]
        layout.write_json(roots[-1] / "compare" / layout.TRIALS, made)
    tables = _tables(roots)
    with pytest.raises(ValueError, match=roots[-1].name) as refusal:
        speedup.of_tables(tables)
    problems = [str(problem) for page in speedup.pages_of(tables) for problem in page.problems]
    assert any(str(refusal.value) in problem for problem in problems)


def test_budgets_that_are_used_are_no_problem_of_the_summary(hand_made):
    """A study of the baseline alone is named where it is no budget."""
    roots = made_studies(hand_made, (*STEPS, 8000), ({},) * 4 + ({"kernel": "cudnn"},))
    problems = summary.of_tables(_tables(roots)).problems
    assert [problem.text.partition(":")[0] for problem in problems] == ["of_8000_4"]


@pytest.mark.parametrize(
    ("steps", "config", "message"),
    [
        ((500, 1000, 1000), ({},) * 3, "for 1,000 steps each: name one"),
        ((500, 1000), ({"batch_size": 8}, {"batch_size": 7}), "differ in steps alone"),
        (
            (500, 1000),
            ({"optimizer": "adamw"}, {"optimizer": "lamb"}),
            "adamw: of_500_0; lamb: of_1000_1",
        ),
        ((500, 2000), ({},) * 2, "no study has results of a variant"),
    ],
)
def test_studies_that_are_no_budgets_are_refused(hand_made, capsys, steps, config, message):
    assert main(["speedup", *map(str, made_studies(hand_made, steps, config))]) == 2
    assert message in capsys.readouterr().err


def test_no_number_says_why(hand_made, capsys):
    """Too few budgets, then a lost seed; a metric of which more is better is refused."""
    roots = made_studies(hand_made)
    assert main(["speedup", *map(str, roots[:2])]) == 0
    assert "No number for LASER" in capsys.readouterr().out
    assert main(["speedup", *map(str, roots), "--metric=accuracy"]) == 2
    assert "accuracy" in capsys.readouterr().err
    lost = layout.trial_path("compare", "standard", "pydoc_lm", 0, 1)
    layout.write_json(roots[3] / lost / layout.STATUS, {"state": "diverged", "reason": None})
    assert main(["speedup", *map(str, roots)]) == 0
    assert "seeds are lost of of_4000_3" in " ".join(capsys.readouterr().out.split())
