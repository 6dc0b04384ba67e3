"""AlgoPerf's scores: its own figures on its published logs, its rules by hand, three studies."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.cli import main
from analysis.compare import error_table
from analysis.load import studies
from analysis.views import scores

LOGS = "algoperf_logs/baseline"


def _tables(root):
    return [error_table.build(each) for each in studies.read_each(root)]


@pytest.fixture
def three(shared, tmp_path):
    """The published logs as three submissions of three studies, their times multiplied."""
    for name, numbers, vit, conformer in (
        ("first", (0, 1, 2), 1.0, 1.0),
        ("second", (2, 3, 4), 1.5, 0.9),
        ("third", (0, 3, 4), 5.0, 2.2),
    ):
        for study in numbers:
            for path in (shared / LOGS).glob(f"study_{study}/*/trial_*/eval_measurements.csv"):
                frame = pd.read_csv(path)
                factor = vit if "vit" in path.parts[-3] else conformer
                frame[["accumulated_submission_time", "score"]] *= factor
                copy = tmp_path / name / path.relative_to(shared / LOGS)
                copy.parent.mkdir(parents=True)
                frame.to_csv(copy, index=False)
    return tmp_path


def test_scores_are_algoperf_s_own(three) -> None:
    """What compute_performance_profiles and compute_leaderboard_score of scoring/ give for these
    logs with `score` for time, tau from 1 to 4 in 100 places, 8 base workloads."""
    found = scores.of_tables(_tables(three), 8)
    hours = {
        "imagenet_vit": [70196.777745, 105930.058818, 346799.624805],
        "librispeech_conformer": [54769.413890, 47993.759408, 123654.894755],
    }
    pd.testing.assert_frame_equal(found.times, pd.DataFrame(hours, found.times.index), atol=1e-5)
    assert found.scores.tolist() == pytest.approx([0.244318, 0.229167, 0.058712], abs=5e-7)
    rises = {
        name: [(round(tau, 4), share) for tau, share in row[row.diff().ne(0)].items()]
        for name, row in found.shares.iterrows()
    }
    assert rises == {
        "first": [(1.0, 0.125), (1.1515, 0.25)],
        "second": [(1.0, 0.125), (1.5152, 0.25)],
        "third": [(1.0, 0.0), (2.6061, 0.125)],
    }


@pytest.mark.parametrize(
    ("times", "ratios"),
    [
        # More than 4 times the fastest is never; never is of nobody.
        (
            {"wmt": [10.0, 41.0], "ogbg": [math.inf, 20.0]},
            {"wmt": [1.0, math.inf], "ogbg": [math.inf, 1.0]},
        ),
        # Of a held-out variant: not reached, or too late, and its base does not count.
        (
            {"wmt": [10.0, 20.0], "wmt_glu_tanh": [10.0, math.inf]},
            {"wmt": [1.0, math.inf]},
        ),
        (
            {"wmt": [10.0, 20.0], "wmt_glu_tanh": [10.0, 41.0]},
            {"wmt": [1.0, math.inf]},
        ),
        # The variant counts as not reached where the base is not: no time of its own is left.
        (
            {"wmt": [math.inf, 20.0], "wmt_glu_tanh": [1.0, 40.0]},
            {"wmt": [math.inf, 1.0]},
        ),
    ],
)
def test_algoperf_s_rules_by_hand(times, ratios) -> None:
    index = ["adam", "shampoo"]
    found = scores._ratios(pd.DataFrame(times, index))
    pd.testing.assert_frame_equal(found, pd.DataFrame(ratios, index))


def test_what_three_studies_can_tell(shared) -> None:
    """Of simulated pairs of submissions with the measured spread and the detectable ratio apart,
    Welch's interval of three studies each leaves 1 out in 80 %, and holds the ratio in 95 %."""
    spreads = scores.of_tables(_tables(shared / LOGS)).spreads.set_index("workload")
    assert spreads["studies"].tolist() == [5, 5]
    row = spreads.loc["imagenet_vit"]
    logs = np.random.default_rng(0).normal(0, row["sd"], (2, 20_000, scores.STUDIES))
    logs[1] += math.log(row["detectable"])
    power = np.mean(stats.ttest_ind(*logs, axis=1).pvalue < 0.05)
    assert power == pytest.approx(0.8, abs=0.01)
    half = math.log(row["interval"])
    ends = stats.ttest_ind(*logs, axis=1).confidence_interval()
    assert np.mean(ends.high - ends.low) / 2 == pytest.approx(half, rel=0.07)


def test_one_workload_twice_is_refused(hand_made, capsys) -> None:
    roots = []
    for name in ("one", "two"):
        roots.append(str(hand_made(name=name, seeds={"standard": [0.3, 0.2]}).finish()))
    assert main(["scores", *roots]) == 2
    assert "several studies are of" in capsys.readouterr().err


def test_fewer_workloads_than_the_logs_have_are_refused(tmp_path) -> None:
    tables = []
    for workload, metric in (("ogbg", "mean_average_precision"), ("wmt", "bleu")):
        folder = tmp_path / f"adam/study_0/{workload}_jax/trial_1"
        folder.mkdir(parents=True)
        header = f"global_step,accumulated_submission_time,validation/{metric}"
        (folder / "eval_measurements.csv").write_text(f"{header}\n100,10,99\n")
    tables = _tables(tmp_path)
    assert scores.of_tables(tables).scores.tolist() == [1.0]
    with pytest.raises(ValueError, match="2 base workloads"):
        scores.of_tables(tables, 1)
