"""Power laws against scipy, the parameters saved, the paper's 15.65 %, and the command."""

import dataclasses
import functools
import itertools
import math
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis.cli import main
from analysis.compare import error_table, experiment, model_sizes
from analysis.load import paper
from analysis.load.studies import read_study
from analysis.statistics import power_law
from analysis.views import scaling
from sweeps.records import layout
from sweeps.study import config
from tests.analysis.conftest import begin_study_in

SIZES = [234e6, 301e6, 435e6]
DECODERS = [
    "decoder-LM-16L-mlp4096-d1024-h8x128",
    "decoder-LM-32L-mlp2048-d1024-h8x128",
    "decoder-LM-32L-mlp4096-d1024-h8x128",
]


def printed(variant: str, with_largest: bool) -> tuple[list[float], list[float]]:
    """Returns the sizes and losses that the paper prints for a variant."""
    cells = [paper.printed("tab_testloss.csv", name, "C4 test loss", variant) for name in DECODERS]
    sizes, losses = [*SIZES], [cell.value for cell in cells]
    if with_largest:
        sizes.append(2.2e9)
        losses.append(paper.printed("tab_bf16.csv", "decoder-LM-2.2B", "loss FP32", variant).value)
    return sizes, losses


def test_the_paper_s_share_is_not_what_its_numbers_give() -> None:
    """23.2 % from three sizes, about 13 % with the 2.2 B row, beside 15.65 %."""
    for with_largest, expected in ((False, 0.232), (True, 0.1306)):
        laws = [power_law.fit(*printed(name, with_largest)) for name in ("standard", "laser")]
        found = power_law.between(*laws, 2.347)
        assert found.share == pytest.approx(expected, abs=5e-4)
        assert found.low < 0 < found.high
        assert found.is_extrapolated == (not with_largest)
    assert "15.65" in {row["value"] for row in paper.lines("text_scaling_law.csv")}


@given(st.integers(0, 10_000), st.integers(3, 8))
@settings(max_examples=30)
def test_fit_is_scipy_s_regression_of_the_logs(seed, count) -> None:
    random = np.random.default_rng(seed)
    sizes = np.exp(random.uniform(10, 24, count))
    losses = 20 * sizes**-0.07 * np.exp(0.01 * random.normal(size=count))
    law, line = power_law.fit(sizes, losses), stats.linregress(np.log(sizes), np.log(losses))
    half = stats.t.ppf(0.975, count - 2) * line.stderr
    assert (law.b, law.log_a) == pytest.approx((line.slope, line.intercept), rel=1e-8)
    assert (law.low, law.high) == pytest.approx((line.slope - half, line.slope + half), rel=1e-6)
    assert math.sqrt(power_law.covariance(law, law)[0, 0]) == pytest.approx(
        line.intercept_stderr, rel=1e-6
    )


def test_weights_are_repetitions_in_the_estimate() -> None:
    once = power_law.fit([1e6, 1e6, 1e7, 1e8], [4.0, 4.0, 3.5, 2.9])
    twice = power_law.fit([1e6, 1e7, 1e8], [4.0, 3.5, 2.9], [2, 1, 1])
    assert (twice.log_a, twice.b) == pytest.approx((once.log_a, once.b))
    assert (twice.freedom, once.freedom) == (1, 2)


def test_a_law_needs_losses_with_a_logarithm() -> None:
    with pytest.raises(ValueError, match="nan"):
        power_law.fit([1e8, 1e9], [3.0, math.nan])


FIVE = np.array([2.34e8, 3.01e8, 4.35e8, 1.1e9, 2.2e9])


@pytest.mark.parametrize(
    ("shared", "is_paired", "least", "most"),
    [
        (0.8, True, 0.93, 0.98),
        (0.0, False, 0.93, 0.985),
    ],
)
def test_the_interval_holds_the_true_share_as_often_as_it_says(
    shared, is_paired, least, most
) -> None:
    """400 simulated studies of five sizes whose log losses have an sd of 0.003, of whose variance
    the share `shared` is common to both variants; 15 % are saved. Unpaired, what the variants share
    only widens the interval."""
    random, held = np.random.default_rng(0), 0
    truth = 7 * np.array([[1.0], [0.85**0.05]]) * FIVE**-0.05
    for _ in range(400):
        common = math.sqrt(shared) * random.normal(size=len(FIVE))
        own = math.sqrt(1 - shared) * random.normal(size=(2, len(FIVE)))
        laws = [power_law.fit(FIVE, losses) for losses in truth * np.exp(0.003 * (common + own))]
        assert all(law.falls for law in laws)
        found = power_law.between(*laws, laws[0].loss(laws[0].largest), is_paired)
        held += found.low <= 0.15 <= found.high
    assert least <= held / 400 <= most


def test_joint_covariance_is_that_of_seemingly_unrelated_regressions() -> None:
    losses = 20 * FIVE**-0.08 * np.exp(0.002 * np.random.default_rng(1).normal(size=(2, 5)))
    laws = [power_law.fit(FIVE, each) for each in losses]
    design = np.stack([np.ones(5), np.log(FIVE)], axis=1)
    residuals = [
        np.log(x) - design @ [law.log_a, law.b] for x, law in zip(losses, laws, strict=True)
    ]
    expected = np.kron(np.cov(residuals, ddof=0) * 5 / 3, np.linalg.inv(design.T @ design))
    found = np.block([[power_law.covariance(one, other) for other in laws] for one in laws])
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("losses", "falls"),
    [
        ([2.5, 2.51, 2.499], False),
        ([2.5, 2.52, 2.54], False),
        ([2.68, 2.63, 2.55], True),
        ([2.68, 2.63], True),
    ],
)
def test_a_law_falls_where_its_interval_does_and_two_sizes_have_none(losses, falls) -> None:
    law = power_law.fit(SIZES[: len(losses)], losses)
    assert law.falls == falls
    low = power_law.between(law, law, 2.7).low
    assert math.isnan(law.low) == math.isnan(low) == (len(losses) == 2)


WORKLOADS = ("c4_lm_234m", "c4_lm", "c4_lm_435m", "c4_lm_1b")


def made_studies(hand_made, counts, configs=({},) * 4, law=(20.0, -0.08)):
    """Studies of one size each: Standard 20 n^-0.08, LASER the same at 0.85 n, two seeds."""
    directories = []
    for workload, count, more in zip(WORKLOADS, counts, configs, strict=False):
        made = hand_made(
            name=workload, workload=workload, metric="loss", config={"workload": workload} | more,
            record={"paper_table": "lm_scaling"},
        )  # fmt: skip
        for variant, seed in itertools.product(("standard", "laser"), (0, 1)):
            size = count / {"standard": 1.0, "laser": 0.85}[variant]
            loss = law[0] * size ** law[1] * math.exp((seed - 0.5) * 0.001)
            row = made.measured(400, "loss", loss, apart=0.0)
            made.trial("compare", variant, 0, seed, [row], meta={"parameters": int(count)})
        directories.append(made.finish())
    return directories


@pytest.fixture(scope="module")
def sizes(tmp_path_factory) -> list:
    """Returns the tables of three sizes of one experiment."""
    begin = functools.partial(begin_study_in, tmp_path_factory.mktemp("sizes"))
    return tables_of(made_studies(begin, SIZES, configs=[{"batch_size": 8}] * 3))


def tables_of(directories) -> list:
    return [error_table.build(read_study(path), None, "loss") for path in directories]


def test_sizes_fits_and_savings_of_a_law_that_is_known(sizes) -> None:
    page = scaling.page(model_sizes.of_tables(sizes, 20 * 3e8**-0.08))
    rows, fits, savings = (table.texts().values.tolist() for table in page.tables)
    assert rows[0] == ["c4_lm_234m", "234,000,000", "Standard", "2", "2.681", "4.2805"]
    assert [row[2] for row in fits] == ["-0.08000", "-0.08000"]
    ((name, fewer, baseline, variant, _, printed),) = savings
    assert (name, baseline, variant) == ("LASER", "3e+08", "2.55e+08")
    assert (fewer, printed) == ("15.00 %", "15.65 %")
    assert page.data().groupby(["variant", "parameters"]).size().tolist() == [2] * 6


@pytest.mark.parametrize("count", ["NaN", '"many"', "-5", "{"])
def test_a_number_of_parameters_that_is_none_is_not_believed(hand_made, count) -> None:
    roots = made_studies(hand_made, [1000, 2000, 4000])
    for meta in roots[0].rglob("meta_data_0.json"):
        meta.write_text(f'{{"parameters": {count}}}')
    tables = tables_of(roots)
    (problem,) = scaling.of_family(tables).problems
    assert "meta_data_0.json" in str(problem)
    assert scaling.draw(tables) is None


TREND_SIZES = {"pydoc_lm_a": 1000, "pydoc_lm_b": 4000, "pydoc_lm_c": 16_000}


def made_trend(hand_made, ratios):
    """Each size: Standard at 500 to 4000 steps, 4 − log₂(steps/1000)/10 nats, and at 1000 variants
    whose loss Standard has after 1000 times the ratio; three seeds."""
    roots = []
    for number, (workload, count) in enumerate(TREND_SIZES.items()):
        for steps in (500, 1000, 2000, 4000):
            made = hand_made(
                name=f"{workload}_{steps}", workload=workload, metric="loss",
                config={"workload": workload},
            )  # fmt: skip
            rows = {"standard": 1.0}
            rows |= {name: own[number] for name, own in ratios.items() if steps == 1000}
            for variant, ratio in rows.items():
                for seed, noise in enumerate((-0.01, 0.0, 0.01)):
                    loss = 4 - math.log2(ratio * steps / 1000) / 10 + noise * ratio**0.1
                    row = made.measured(steps, "loss", loss, apart=0.0)
                    row |= {"accumulated_submission_time": steps * (0.03 if ratio > 1 else 0.02)}
                    meta = {"parameters": count, "model_flops_per_step": 1e9}
                    made.trial("compare", variant, 0, seed, [row], steps=steps, meta=meta)
            roots.append(made.finish())
    return roots


def test_the_slope_of_the_compute_ratio(hand_made, capsys) -> None:
    """LASER's ratios 1.2, 1.5, 1.7 at sizes four-fold apart: slope and interval by scipy. FoX's
    lies beyond the budgets at one size, so that it has none."""
    ratios = {"laser": (1.2, 1.5, 1.7), "standard+fox": (2.0, 3.0, 5.0)}
    roots = made_trend(hand_made, ratios)
    trend = scaling.trend_of(tables_of(roots))
    (row,) = trend.slopes.itertuples()
    line = stats.linregress(np.log([*TREND_SIZES.values()]), np.log(ratios["laser"]))
    half = stats.t.ppf(0.975, 1) * line.stderr
    span = math.log(16)
    assert (row.variant, row.sizes) == ("laser", 3)
    expected = (line.slope, line.slope - half, line.slope + half)
    assert (row.slope, row.low, row.high) == pytest.approx(expected, abs=2e-4)
    assert row.change == pytest.approx(math.exp(line.slope * span), abs=1e-3)
    # A test of one degree of freedom at shift s has a power of 80 % by the noncentral t.
    shift = math.log(row.detectable) / span / line.stderr
    limit = stats.t.ppf(0.975, 1)
    power = stats.nct.sf(limit, 1, shift) + stats.nct.cdf(-limit, 1, shift)
    assert power == pytest.approx(0.8, abs=0.01)
    assert "16,000" in trend.without["standard+fox"]
    assert main(["scaling", *map(str, roots)]) == 0
    printed = capsys.readouterr().out
    assert "1.50 [" in printed
    assert "No slope for" in printed


def test_verdicts_at_two_sizes(hand_made) -> None:
    """LASER is better than Standard at the two larger sizes alone, FoX everywhere; LASER is worse
    than FoX at all three: 2, 2 and 3 of 3 pairs."""
    ratios = {"laser": (1.0, 1.5, 1.7), "standard+fox": (2.0, 3.0, 3.5)}
    trend = scaling.trend_of(tables_of(made_trend(hand_made, ratios)))
    assert trend.decisions.values.tolist() == [
        [1000, 4000, 3, 2], [1000, 16_000, 3, 2], [4000, 16_000, 3, 3],
    ]  # fmt: skip


@pytest.mark.parametrize("rate_noise", [0.0, 0.02])
def test_the_interval_of_a_slope_holds_it(rate_noise) -> None:
    """Five sizes of five seeds, whose log ratio has an SD of 0.029; a rate that is chosen at each
    size moves it by 0.02 or not at all. By the seeds alone it would hold in 75 % with that."""
    random, held = np.random.default_rng(5), 0
    sizes = np.array([57_504, 104_688, 164_160, 319_968, 721_792])
    truth = 0.08 + 0.03 * np.log(sizes)
    for _ in range(2000):
        noise = random.normal(0, 0.029, (5, 5)).mean(axis=0) + random.normal(0, rate_noise, 5)
        rows = pd.DataFrame({"parameters": sizes, "ratio": np.exp(truth + noise)})
        found = scaling._slope(rows)
        held += found["low"] <= 0.03 <= found["high"]
    assert 0.92 <= held / 2000 <= 0.98


def test_options_of_scaling_are_of_one_kind(hand_made, capsys) -> None:
    roots = [str(root) for root in made_trend(hand_made, {"laser": (1.2, 1.5, 1.7)})]
    assert main(["scaling", *roots, "--loss=3"]) == 2
    assert main(["scaling", *roots[1::4], "--times=nowhere"]) == 2
    assert capsys.readouterr().err.count("--loss is for one study a size") == 2


def test_two_studies_of_one_size_are_refused(hand_made) -> None:
    directories = made_studies(hand_made, [*SIZES, 435e6])
    tables = tables_of(directories)
    with pytest.raises(experiment.MixedStudiesError, match="435,000,000") as error:
        model_sizes.of_tables(tables)
    assert all(str(path) in str(error.value) for path in directories[2:])
    page = scaling.of_family(tables)
    assert "435,000,000" in str(page.problems[0])
    assert (page.tables, scaling.draw(tables)) == ((), None)


def test_a_size_of_another_experiment_is_refused(sizes, other_experiments) -> None:
    """Another value of any key that results depend on; other data are another experiment, too."""
    *tables, last = sizes
    others = other_experiments(last)
    for name, other in others.items():
        with pytest.raises(experiment.MixedStudiesError, match=rf" {re.escape(name)} \("):
            model_sizes.of_tables([*tables, other])
        assert all(other not in family for family in model_sizes.families([*tables, other])), name
    with pytest.raises(
        experiment.MixedStudiesError, match=r"8: c4_lm_234m, c4_lm; \d+: c4_lm_435m"
    ):
        model_sizes.of_tables([*tables, others["batch_size"]])


@pytest.mark.parametrize(
    ("workloads", "is_one"),
    [
        (("c4_lm_234m", "c4_lm_1b"), True),
        (("c4_lm_2b:superglue", "c4_lm_1b:superglue"), True),
        (("c4_lm_2b:superglue", "c4_lm_1b"), False),
        (("digits_vit", "fashion_vit"), False),
        (("c4_lm", "wikipedia_bert"), False),
    ],
)
def test_sizes_of_one_model_have_the_same_data(sizes, workloads, is_one) -> None:
    tables = [
        dataclasses.replace(table, workload=workload)
        for table, workload in zip(sizes, workloads, strict=False)
    ]
    assert bool(model_sizes.families(tables)) == is_one
    if not is_one:
        with pytest.raises(experiment.MixedStudiesError, match="workload"):
            model_sizes.of_tables(tables)


def test_the_shipped_sizes_are_one_family(hand_made) -> None:
    """The others take the point that the smallest selected. The 2.2 B study computes in another
    precision and is none of them."""
    names = ("c4_lm_234m_paper", "c4_lm_paper", "c4_lm_435m_paper", "c4_lm_2b_paper")
    configs = [config.parse(name, []).to_dict() for name in names]
    for name, own in zip(WORKLOADS, configs, strict=True):
        own["name"], own["workload"] = name, name
        own["space"] = own["space"].replace("c4_lm_234m_paper", "c4_lm_234m")
    tables = tables_of(made_studies(hand_made, [*SIZES, 2e9], configs=configs))
    ((*family,),) = model_sizes.families(tables)
    assert family == tables[:3]
    with pytest.raises(experiment.MixedStudiesError, match="matmul_precision"):
        model_sizes.of_tables(tables)


def test_sizes_without_results_are_refused(hand_made, capsys) -> None:
    roots = made_studies(hand_made, SIZES[:2])
    for status in (path for root in roots for path in root.rglob(layout.STATUS)):
        layout.write_json(status, {"state": "pending", "reason": None})
    for path in (path for root in roots for path in root.rglob(layout.EVAL_MEASUREMENTS)):
        path.unlink()
    assert main(["scaling", *map(str, roots)]) == 2
    assert "c4_lm_234m/compare" in capsys.readouterr().err


def test_families_are_of_one_configuration(hand_made) -> None:
    """Two of AdamW, one of LAMB: one law, of two sizes. What logs do not state is a note."""
    configs = [{"optimizer": name} for name in ("adamw", "lamb", "adamw")]
    tables = tables_of(made_studies(hand_made, SIZES, configs=configs))
    families = [[table.study.name for table in each] for each in model_sizes.families(tables)]
    assert families == [["c4_lm_234m", "c4_lm_435m"]]
    del tables[2].study.config["name"], tables[2].study.config["optimizer"]
    [note] = [each for each in model_sizes.of_tables(tables[::2]).problems if each.kind == "note"]
    assert note.text.startswith("c4_lm_435m: no ")
    assert "optimizer" in note.text


def test_no_share_without_a_loss_that_falls(hand_made) -> None:
    found = model_sizes.of_tables(tables_of(made_studies(hand_made, SIZES, law=(2.5, 0.01))))
    assert found.savings["obstacle"].tolist() == ["standard"]
    assert found.savings["share"].isna().all()
    assert scaling.page(found).tables[2].texts().iloc[0].tolist() == ["LASER", "none (see notes)"]


def test_seeds_that_both_variants_have_are_pairs(hand_made) -> None:
    directories = made_studies(hand_made, SIZES)
    tables = tables_of(directories)
    assert model_sizes.of_tables(tables).savings["is_paired"].tolist() == [True]
    unshared = [dataclasses.replace(t, study=dataclasses.replace(t.study, shares_seeds=False))
                for t in tables]  # fmt: skip
    assert model_sizes.of_tables(unshared).savings["is_paired"].tolist() == [False]
    path = next(directories[0].glob("compare/laser/*/trial_2/status.json"))
    layout.write_json(path, {"state": "failed", "reason": "disk"})
    assert model_sizes.of_tables(tables_of(directories)).savings["is_paired"].tolist() == [False]


def test_two_studies_have_no_interval_and_one_no_law(sizes) -> None:
    fit = model_sizes.of_tables(sizes[:2], loss=2.3)
    assert fit.savings["low"].isna().all()
    assert fit.savings["is_extrapolated"].all()
    _, fits, savings = (table.texts() for table in scaling.page(fit).tables)
    assert fits["95% interval\nof b (t)"].tolist() == ["none (2 sizes)"] * 2
    assert savings["Fewer"].iloc[0].endswith("†")
    single = model_sizes.of_tables(sizes[:1])
    assert (single.laws, len(single.savings)) == ({}, 0)
    assert scaling.draw(sizes[:1]) is None


def test_the_figure_has_a_mark_for_every_seed_and_a_line_for_every_law(sizes) -> None:
    rows = [len(layer["data"]) for layer in scaling.draw(sizes)["layer"]]
    assert rows == [2 * 3 * 2, 2 * 50, 1]
    assert "c4_lm_234m: Parameters 234,000,000" in scaling.PLOTS[0].alt_text(sizes)


def test_the_command_counts_a_study_once(hand_made, capsys) -> None:
    first, second = made_studies(hand_made, SIZES[:2])
    assert main(["scaling", str(first), str(second)]) == 0
    assert "234,000,000" in capsys.readouterr().out
    again = first.parent / ".." / first.parent.name / first.name
    assert main(["scaling", str(first), str(again), str(second)]) == 2
    assert str(first) in capsys.readouterr().err
