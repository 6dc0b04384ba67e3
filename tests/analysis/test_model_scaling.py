"""Power laws against scipy, the parameters saved, the paper's 15.65 %, and the command."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis import report
from analysis.cli import main
from analysis.compare import build, families, scaling
from analysis.load import paper
from analysis.load.studies import read_study
from analysis.render.text import render as to_text
from analysis.statistics import power_law
from analysis.views import scaling as scaling_view
from sweeps.records import layout

SIZES = [234e6, 301e6, 435e6]
LAW = (20.0, -0.08)
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
        assert found.delta_low < 0 < found.delta_high
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
    assert law.b == pytest.approx(line.slope, rel=1e-8)
    assert law.log_a == pytest.approx(line.intercept, rel=1e-8)
    assert (law.low, law.high) == pytest.approx((line.slope - half, line.slope + half), rel=1e-6)
    assert math.sqrt(law.covariance[0, 0]) == pytest.approx(line.intercept_stderr, rel=1e-6)


def test_weights_are_repetitions_in_the_estimate() -> None:
    once = power_law.fit([1e6, 1e6, 1e7, 1e8], [4.0, 4.0, 3.5, 2.9])
    twice = power_law.fit([1e6, 1e7, 1e8], [4.0, 3.5, 2.9], [2, 1, 1])
    assert (twice.log_a, twice.b) == pytest.approx((once.log_a, once.b))
    assert (twice.freedom, once.freedom) == (1, 2)


@settings(max_examples=20)
@given(st.floats(5, 50), st.floats(-0.3, -0.01), st.floats(0.5, 1.5))
def test_an_exact_law_is_found_and_its_saving_is_exact(a, b, factor) -> None:
    """The variant reaches every loss with `factor` times the parameters."""
    sizes = np.array([1e8, 3e8, 1e9, 2e9])
    baseline = power_law.fit(sizes, a * sizes**b)
    variant = power_law.fit(sizes, a * (sizes / factor) ** b)
    assert baseline.b == pytest.approx(b)
    found = power_law.between(baseline, variant, baseline.loss(5e8))
    assert found.baseline == pytest.approx(5e8)
    assert found.share == pytest.approx(1 - factor, abs=1e-6)
    assert found.low == pytest.approx(found.delta_low, abs=1e-4)


def test_bootstrap_and_delta_method_agree_where_both_are_good() -> None:
    random = np.random.default_rng(3)
    sizes = np.geomspace(1e8, 1e10, 12)
    noise = 0.001 * random.normal(size=(2, 12))
    baseline = power_law.fit(sizes, 20 * sizes**-0.08 * np.exp(noise[0]))
    variant = power_law.fit(sizes, 20 * (sizes / 0.85) ** -0.08 * np.exp(noise[1]))
    found = power_law.between(baseline, variant, 20 * 1e9**-0.08)
    assert (found.low, found.high) == pytest.approx(
        (found.delta_low, found.delta_high), abs=0.1 * (found.high - found.low)
    )
    assert found.low < 0.15 < found.high
    assert power_law.between(baseline, variant, found.loss) == found  # seeded


def test_the_interval_holds_the_true_share_as_often_as_it_says() -> None:
    """500 simulated studies of 5 sizes; the delta method's t interval, 95 %."""
    random = np.random.default_rng(0)
    sizes = np.array([2.34e8, 3.01e8, 4.35e8, 1.1e9, 2.2e9])
    held, loss = 0, 20 * 1e9**-0.08
    for _ in range(500):
        noise = np.exp(0.002 * random.normal(size=(2, 5)))
        laws = [power_law.fit(sizes, 20 * (sizes / factor) ** -0.08 * each)
                for factor, each in zip((1.0, 0.85), noise, strict=True)]  # fmt: skip
        low, high = power_law._delta(*laws, loss, False)
        held += low <= 0.15 <= high
    assert 0.93 <= held / 500 <= 0.985


def test_two_sizes_have_no_interval_and_one_no_law() -> None:
    law = power_law.fit([1e8, 1e9], [3.0, 2.5])
    assert law.loss(1e9) == pytest.approx(2.5)
    assert math.isnan(law.low)
    assert math.isnan(power_law.between(law, law, 2.7).low)
    with pytest.raises(ValueError, match="two sizes"):
        power_law.fit([1e8, 1e8], [3.0, 2.5])
    with pytest.raises(ValueError, match="above 0"):
        power_law.fit([1e8, 1e9], [3.0, math.nan])
    flat = power_law.fit([1e8, 1e9], [3.0, 3.0])
    if flat.b == 0.0:
        with pytest.raises(ValueError, match="b = 0"):
            power_law.between(flat, flat, 2.7)


def simulated_coverage(
    sizes, noise, shared, is_paired, simulations, seed=0
) -> tuple[float, float, int]:
    """Returns how often the bootstrap's and the delta method's interval hold a saving of 15 %,
    and of how many simulated pairs of fits a share can be said. `noise` is the sd of a study's
    log loss, `shared` the share of its variance that both variants have in common."""
    random, held, told = np.random.default_rng(seed), np.zeros(2), 0
    truth = 7 * np.array([[1.0], [0.85**0.05]]) * sizes**-0.05
    for _ in range(simulations):
        common = math.sqrt(shared) * random.normal(size=len(sizes))
        own = math.sqrt(1 - shared) * random.normal(size=(2, len(sizes)))
        laws = [power_law.fit(sizes, losses) for losses in truth * np.exp(noise * (common + own))]
        if any(power_law.obstacle(law) for law in laws):
            continue
        told += 1
        found = power_law.between(*laws, laws[0].loss(laws[0].largest), is_paired)
        held += found.low <= 0.15 <= found.high, found.delta_low <= 0.15 <= found.delta_high
    return held[0] / told, held[1] / told, told


FIVE = np.array([2.34e8, 3.01e8, 4.35e8, 1.1e9, 2.2e9])


@pytest.mark.parametrize("shared", [0.0, 0.8])
def test_paired_intervals_hold_the_true_share_as_often_as_they_say(monkeypatch, shared) -> None:
    monkeypatch.setattr(power_law, "RESAMPLES", 999)
    bootstrap, delta, told = simulated_coverage(FIVE, 0.003, shared, True, 400)
    assert told == 400
    assert 0.93 <= bootstrap <= 0.98
    assert 0.93 <= delta <= 0.98


def test_unpaired_intervals_of_shared_seeds_are_too_wide(monkeypatch) -> None:
    monkeypatch.setattr(power_law, "RESAMPLES", 999)
    bootstrap, delta, _ = simulated_coverage(FIVE, 0.003, 0.8, False, 200)
    assert min(bootstrap, delta) >= 0.98


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_what_both_variants_share_cancels_in_a_paired_saving(seed) -> None:
    """The log ratio is the same at every size: whatever the losses' noise, no doubt is left."""
    noise = np.exp(0.001 * np.random.default_rng(seed).normal(size=5))
    laws = [power_law.fit(FIVE, 20 * (FIVE / f) ** -0.08 * noise) for f in (1.0, 0.85)]
    baseline = laws[0]
    paired = power_law.between(*laws, baseline.loss(baseline.largest), True)
    assert paired.share == pytest.approx(1 - 0.85 ** (-0.08 / baseline.b))
    assert paired.delta_high - paired.delta_low < 0.02
    alone = power_law.between(*laws, paired.loss)
    assert alone.delta_high - alone.delta_low > 4 * (paired.delta_high - paired.delta_low)


def test_joint_covariance_is_that_of_seemingly_unrelated_regressions() -> None:
    random = np.random.default_rng(1)
    losses = 20 * FIVE**-0.08 * np.exp(0.002 * random.normal(size=(2, 5)))
    laws = [power_law.fit(FIVE, each) for each in losses]
    design = np.stack([np.ones(5), np.log(FIVE)], axis=1)
    residuals = [
        np.log(x) - design @ [law.log_a, law.b] for x, law in zip(losses, laws, strict=True)
    ]
    expected = np.kron(np.cov(residuals, ddof=0) * 5 / 3, np.linalg.inv(design.T @ design))
    assert power_law.joint_covariance(*laws, True) == pytest.approx(expected, rel=1e-6)
    assert not power_law.joint_covariance(*laws, False)[:2, 2:].any()


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ([2.5, 2.51, 2.499], "may not fall with size"),
        ([2.5, 2.52, 2.54], "does not fall with size"),
        ([2.5, 2.5, 2.5], "not fall with size"),
    ],
)
def test_a_law_that_does_not_fall_says_nothing_of_parameters(losses, words) -> None:
    assert words in str(power_law.obstacle(power_law.fit(SIZES, losses)))
    assert power_law.obstacle(power_law.fit(SIZES, [2.68, 2.63, 2.55])) is None
    assert power_law.obstacle(power_law.fit(SIZES[:2], [2.68, 2.63])) is None


def test_the_number_of_sizes_is_that_of_distinct_ones() -> None:
    law = power_law.fit([1e8, 1e8, 1e9], [3.0, 3.01, 2.5])
    assert (law.sizes, law.freedom) == (2, 0)
    assert math.isnan(law.low)
    assert power_law.fit([1e8, 1e8, 3e8, 1e9], [3.0, 3.01, 2.7, 2.5]).sizes == 3


def made_studies(hand_made, counts, record=True, configs=(), names=(), law=LAW):
    """Studies of one size each: Standard 20 n^-0.08, LASER the same at 0.85 n, two seeds."""
    directories = []
    for index, count in enumerate(counts):
        workload = ("c4_lm_234m", "c4_lm", "c4_lm_435m", "c4_lm_1b")[index]
        name = names[index] if names else workload
        more = configs[index] if configs else {}
        made = hand_made(
            name=name, workload=workload, metric="loss", config={"workload": workload} | more,
            record={"paper_table": "lm_scaling"},
        )  # fmt: skip
        for variant, factor in (("standard", 1.0), ("laser", 0.85)):
            for seed in (0, 1):
                loss = law[0] * (count / factor) ** law[1] * math.exp((seed - 0.5) * 0.001)
                row = made.measured(400, "loss", loss, apart=0.0)
                directory = made.trial("compare", variant, 0, seed, [row])
                if record:
                    layout.write_json(directory / "meta_data_0.json", {"parameters": int(count)})
        made.select({"standard": 0, "laser": 0})
        directories.append(made.finish())
    return directories


def test_the_command_prints_sizes_fit_and_saving(hand_made, capsys) -> None:
    directories = made_studies(hand_made, SIZES)
    assert main(["scaling", *map(str, directories), f"--loss={20 * 3e8**-0.08}"]) == 0
    text = capsys.readouterr().out
    assert "| c4_lm_234m | 234,000,000 | Standard | 2 | 2.681 |" in text
    assert "15.00 %" in text and "15.65 %" in text  # noqa: PT018
    assert "-0.08000" in text
    assert "cannot be recomputed" in text


@pytest.mark.parametrize("count", ["NaN", '"many"', "-5", "{"])
def test_a_number_of_parameters_that_is_none_is_not_believed(hand_made, capsys, count) -> None:
    roots = made_studies(hand_made, [1000, 2000, 4000])
    for meta in roots[0].rglob("meta_data_0.json"):
        meta.write_text(f'{{"parameters": {count}}}')
    assert main(["scaling", *map(str, roots)]) == 2
    assert "meta_data_0.json" in capsys.readouterr().err
    tables = [build.error_table(read_study(root)) for root in roots]
    (problem,) = scaling_view.of_family(tables).problems
    assert "meta_data_0.json" in problem
    assert scaling_view.draw(tables) is None


def test_a_study_that_is_given_twice_is_read_once(hand_made, capsys) -> None:
    first, *others = made_studies(hand_made, SIZES)
    again = first.parent / ".." / first.parent.name / first.name
    assert main(["scaling", *map(str, (first, again, *others))]) == 0
    text = capsys.readouterr().out
    assert text.count("| c4_lm_234m | 234,000,000 | Standard |") == 1
    assert "duplicated: c4_lm_234m: given more than once, read once" in text
    assert "|     3 |" in text  # sizes


def test_two_studies_of_one_size_are_refused(hand_made, capsys) -> None:
    directories = made_studies(hand_made, [*SIZES, 435e6])
    assert main(["scaling", *map(str, directories)]) == 2
    error = capsys.readouterr().err
    assert "have the same size, 435,000,000 parameters of" in error
    assert f"c4_lm_435m ({directories[2]})" in error
    assert f"c4_lm_1b ({directories[3]})" in error


@pytest.mark.parametrize(
    ("key", "values", "words"),
    [
        ("optimizer", ("adamw", "lamb"), "(adamw: c4_lm_234m, c4_lm_435m; lamb: c4_lm)"),
        ("param_dtype", ("float32", "bfloat16"), "bfloat16: c4_lm"),
        ("compute_dtype", ("float32", "bfloat16"), "bfloat16: c4_lm"),
        ("batch_size", (512, 256), "(512: c4_lm_234m, c4_lm_435m; 256: c4_lm)"),
        ("steps", (160_000, 80_000), "80,000: c4_lm"),
        ("step_hint", (160_000, 80_000), "80,000: c4_lm"),
    ],
)
def test_studies_of_different_experiments_are_refused(
    hand_made, capsys, key, values, words
) -> None:
    configs = [{key: value} for value in (values[0], values[1], values[0])]
    directories = made_studies(hand_made, SIZES, configs=configs)
    assert main(["scaling", *map(str, directories)]) == 2
    error = capsys.readouterr().err
    assert f"differ in {key} (" in error
    assert words in error
    assert "name the studies of one family" in error
    assert main(["scaling", str(directories[0]), str(directories[2])]) == 0


def test_what_a_study_does_not_state_is_said(hand_made, capsys) -> None:
    configs = [{"optimizer": "adamw"}, {"optimizer": "adamw"}, {}]
    assert main(["scaling", *map(str, made_studies(hand_made, SIZES, configs=configs))]) == 0
    assert "unknown: c4_lm_435m: no optimizer is stated" in capsys.readouterr().out


def test_a_report_fits_each_family_by_itself(hand_made) -> None:
    """Two of AdamW, one of LAMB: one law, of two sizes, and no word of the third."""
    configs = [{"optimizer": name} for name in ("adamw", "lamb", "adamw")]
    directories = made_studies(hand_made, SIZES, configs=configs)
    tables = [build.error_table(read_study(path), None, "loss") for path in directories]
    assert [[t.study.name for t in each] for each in families.of(tables)] == [
        ["c4_lm_234m", "c4_lm_435m"]
    ]
    [document], _ = report.scaling_laws(tables)
    assert document.title.startswith("c4_lm_234m, c4_lm_435m:")


def test_a_report_names_two_studies_of_one_size(hand_made) -> None:
    directories = made_studies(hand_made, [*SIZES, 435e6])
    tables = [build.error_table(read_study(path), None, "loss") for path in directories]
    [document], figures = report.scaling_laws(tables)
    assert "have the same size" in document.problems[0]
    assert figures == []


def test_no_share_without_a_loss_that_falls(hand_made, capsys) -> None:
    directories = made_studies(hand_made, SIZES, law=(2.5, 0.01))
    assert main(["scaling", *map(str, directories)]) == 0
    text = capsys.readouterr().out
    assert "none (see notes)" in text
    assert "No share of parameters for LASER: of Standard, its loss does not fall" in text
    assert "% |" not in text


@pytest.mark.parametrize("loss", ["nan", "inf", "0", "-2"])
def test_a_loss_to_reach_is_above_0(hand_made, capsys, loss) -> None:
    directories = made_studies(hand_made, SIZES)
    with pytest.raises(SystemExit, match="2"):
        main(["scaling", *map(str, directories), f"--loss={loss}"])
    assert "give a number above 0" in capsys.readouterr().err


def test_seeds_that_both_variants_have_are_pairs(hand_made) -> None:
    directories = made_studies(hand_made, SIZES)
    studies = [read_study(path) for path in directories]
    assert scaling.of_studies(studies).savings["laser"].is_paired
    unshared = [dataclasses.replace(study, shares_seeds=False) for study in studies]
    assert not scaling.of_studies(unshared).savings["laser"].is_paired
    path = next(directories[0].glob("compare/laser/*/trial_2/status.json"))
    layout.write_json(path, {"state": "failed", "reason": "disk"})
    again = [read_study(path) for path in directories]
    assert not scaling.of_studies(again).savings["laser"].is_paired


def test_two_studies_have_no_interval_and_say_so(hand_made) -> None:
    studies = [read_study(path) for path in made_studies(hand_made, SIZES[:2])]
    text = to_text(scaling_view.page(scaling.of_studies(studies, loss=2.3)))
    assert "Fewer than 3 sizes: no residual, so no interval." in text
    assert "none (2 sizes)" in text
    assert "†: extrapolated" in text


def test_one_study_has_no_law(hand_made) -> None:
    [directory] = made_studies(hand_made, SIZES[:1])
    table = build.error_table(read_study(directory), None, "loss")
    found = scaling.of_tables([table])
    assert (found.fits, found.savings) == ({}, {})
    assert scaling_view.draw([table]) is None


def test_figure_of_three_sizes(hand_made) -> None:
    directories = made_studies(hand_made, SIZES)
    tables = [build.error_table(read_study(path), None, "loss") for path in directories]
    [axes] = scaling_view.draw(tables).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["234M", "301M", "435M"]


def test_unknown_numbers_of_parameters_are_asked_for(hand_made, capsys) -> None:
    directories = [str(path) for path in made_studies(hand_made, SIZES[:2], record=False)]
    assert main(["scaling", *directories]) == 2
    assert "--parameters=c4_lm_234m=N" in capsys.readouterr().err
    counts = ("--parameters=c4_lm_234m=234e6", "--parameters=c4_lm=301e6")
    assert main(["scaling", *directories, *counts]) == 0
    assert "234,000,000" in capsys.readouterr().out
    tables = [build.error_table(read_study(path), None, "loss") for path in directories]
    assert scaling_view.draw(tables) is None
