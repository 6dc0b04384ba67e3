"""Scores on the tasks of suites: values by hand, what cannot be compared, and every way out."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from analysis.cli import main
from analysis.compare import suite_scores
from analysis.compare.suite_scores import MEAN
from analysis.render import charts
from analysis.statistics import intervals, questions
from analysis.views import downstream as view
from sweeps.records import layout

# Of 10 questions LASER has 4 that Standard has not, and Standard 1.
STANDARD, LASER = [1, 1, 1, 1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 0, 1, 1, 1, 1, 0, 0]


@pytest.fixture
def begun(hand_made, answered):
    """Returns a function that writes a study of one seed, or more, and its answers: variant to
    seed to tasks at step 400."""

    def begin(answers, suite="pydoc", **more):
        errors = {
            variant: [0.5 + 0.01 * seed for seed in range(len(seeds))]
            for variant, seeds in answers.items()
        }
        made = hand_made(list(answers), seeds=errors, **more)
        made.finish()
        for entry in made.planned["compare"]:
            tasks = answers[entry["variant"]][entry["seed"]]
            if tasks:
                answered.write(made.root / entry["path"], tasks, suite=suite)
        return made

    return begin


def trial(made, variant, seed=0):
    return made.root / layout.trial_path("compare", variant, made.workload, 0, seed)


def suite_of(made, suite=None, metric=None, step=None, **asked):
    (scores,) = suite_scores.of_table(made.table(**asked), suite, metric, step)
    return scores


def row(found, variant, task="next"):
    rows = found.scores[(found.scores["variant"] == variant) & (found.scores["task"] == task)]
    (values,) = rows.to_dict("records")
    return values


def pair(standard=STANDARD, laser=LASER):
    return {"standard": [{"next": {"acc": standard}}], "laser": [{"next": {"acc": laser}}]}


def test_one_task_by_hand(begun) -> None:
    found = suite_of(begun(pair()))
    assert found.problems == ()
    base, score, mean = row(found, "standard"), row(found, "laser"), row(found, "laser", MEAN)
    # The bootstrap of 0.4 of 10 is binomial: 2.5 and 97.5 % are 1 and 7 of them.
    expected = (0.4, 0.1, 0.7, 10, 1)
    assert tuple(base[name] for name in ("score", "low", "high", "n", "seeds")) == expected
    assert (score["right_alone"], score["baseline_alone"], score["seeds_compared"]) == (4, 1, 1)
    assert score["difference"] == pytest.approx(0.3)
    assert score["p"] == score["p_holm"] == pytest.approx(2 * 6 / 32)
    assert (mean["score"], mean["difference"]) == pytest.approx((0.7, 0.3))
    assert np.isnan([base["difference"], mean["seeds_p"]]).all()


def test_holm_is_over_variants_and_tasks(begun) -> None:
    """p of (4, 1), (8, 0) and (4, 4) twice, by tasks and variants: the least counts four times."""
    some, all_right = [1] * 4 + [0] * 6, [1] * 4 + [1] * 6
    turned = [0] * 4 + [1] * 4 + [0] * 2
    answers = {
        "standard": [{"next": {"acc": STANDARD}, "swap": {"acc": some}}],
        "laser": [{"next": {"acc": LASER}, "swap": {"acc": all_right}}],
        "laser+temp": [{"next": {"acc": turned}, "swap": {"acc": turned}}],
    }
    found = suite_of(begun(answers))
    best = row(found, "laser", "swap")
    assert (best["p"], best["p_holm"]) == pytest.approx((2 / 64, 4 * 2 / 64))
    assert row(found, "laser")["p_holm"] == 1.0
    assert row(found, "laser+temp")["p"] == 1.0
    # The family of means is the two variants.
    means = [row(found, name, MEAN) for name in ("laser", "laser+temp")]
    least = min(mean["p"] for mean in means)
    assert min(mean["p_holm"] for mean in means) == pytest.approx(2 * least)


def test_seeds_are_summed_question_by_question(begun) -> None:
    """The same answers of two seeds are no twenty questions."""
    twice = {name: seeds * 2 for name, seeds in pair().items()}
    one, two = (
        row(suite_of(begun(of, name=str(len(of["laser"])))), "laser") for of in (pair(), twice)
    )
    assert (one["seeds"], two["seeds"], two["seeds_compared"]) == (1, 2, 2)
    same = ("score", "low", "high", "difference", "p")
    assert [two[name] for name in same] == pytest.approx([one[name] for name in same], rel=1e-12)


@pytest.mark.parametrize(
    ("shares_seeds", "seeds", "difference"),
    # 0.4 and 1.0 of the baseline's two runs, 0.7 of the one of the other.
    [(True, (1, 1), 0.3), (False, (1, 2), 0.0)],
)
def test_differences_are_of_shared_seeds_or_of_all(begun, shares_seeds, seeds, difference) -> None:
    answers = pair() | {"standard": [{"next": {"acc": STANDARD}}, {"next": {"acc": [1] * 10}}]}
    table = begun(answers).table()
    study = dataclasses.replace(table.study, shares_seeds=shares_seeds)
    table = dataclasses.replace(table, study=study)
    (found,) = suite_scores.of_table(table, None, None, None)
    assert row(found, "standard")["score"] == pytest.approx(0.7)
    score = row(found, "laser")
    assert (score["seeds_compared"], score["seeds_baseline"]) == seeds
    assert score["difference"] == pytest.approx(difference, abs=1e-12)
    assert row(found, "laser", MEAN)["difference"] == pytest.approx(difference, abs=1e-12)
    assert score["difference_low"] < difference < score["difference_high"]


def test_mean_over_tasks_weighs_tasks_alike(begun) -> None:
    answers = {
        "standard": [{"next": {"acc": [1] * 2 + [0] * 8}, "swap": {"acc": [1] * 3 + [0]}}],
        "laser": [{"next": {"acc": [1] * 4 + [0] * 6}, "swap": {"acc": [1] * 2 + [0] * 2}}],
    }
    found = suite_of(begun(answers))
    assert row(found, "standard", MEAN)["score"] == pytest.approx((0.2 + 0.75) / 2)
    mean = row(found, "laser", MEAN)
    assert mean["difference"] == pytest.approx((0.2 - 0.25) / 2)
    sums = [[1 * (2 <= q < 4) for q in range(10)], [-1 * (q == 2) for q in range(4)]]
    drawn = questions.resampled_means([np.array(s) for s in sums])
    expected = intervals.percentile_interval(drawn.mean(axis=1))
    assert (mean["difference_low"], mean["difference_high"]) == expected


def test_means_over_tasks_are_compared_by_seeds(begun) -> None:
    """Differences 0.3 and 0.1 of two seeds: by Student's t with one degree of freedom."""
    answers = pair()
    answers["standard"] *= 2
    answers["laser"] = [{"next": {"acc": LASER}}, {"next": {"acc": [1] * 5 + [0] * 5}}]
    mean = row(suite_of(begun(answers)), "laser", MEAN)
    half = 12.7062 * 0.1
    assert (mean["seeds_low"], mean["seeds_high"]) == pytest.approx((0.2 - half, 0.2 + half), 1e-5)
    assert mean["seeds_p_holm"] == pytest.approx(2 * np.arctan(1 / 2) / np.pi)


def test_checkpoints_and_seeds_are_two_columns(begun, answered) -> None:
    """Seeds at .4 and .6, then both at .6: by hand 0.1 sqrt 2 / 2 and the same over seeds."""
    first, last = {"next": {"acc": STANDARD}}, {"next": {"acc": [1] * 6 + [0] * 4}}
    made = begun({"standard": [last, last]})
    answered.write(trial(made, "standard", 0), first, step=300)
    answered.write(trial(made, "standard", 1), last, step=300)
    found = suite_of(made)
    names = ("checkpoints", "checkpoint_seeds", "checkpoint_mean", "sd_checkpoints", "sd_seeds")
    expected = (2, 2, 0.55, (0.2 / 2**0.5 + 0) / 2, 0.1 / 2**0.5)
    for task in ("next", MEAN):
        assert [row(found, "standard", task)[name] for name in names] == pytest.approx(expected)
    assert row(suite_of(made, last=1), "standard")["checkpoints"] == 1
    assert row(suite_of(made, step=300), "standard")["score"] == pytest.approx(0.5)


def test_metrics_can_be_chosen(begun) -> None:
    tasks = {"next": {"acc": STANDARD, "acc_norm": LASER}, "swap": {"acc": STANDARD}}
    made = begun({"standard": [tasks]})
    assert suite_of(made).metrics == {"next": "acc", "swap": "acc"}
    found = suite_of(made, metric="acc_norm")
    assert found.metrics == {"next": "acc_norm"}
    score = row(found, "standard")
    assert (score["score"], score["metrics"]) == (0.7, {"acc": 0.4, "acc_norm": 0.7})


@pytest.mark.parametrize(
    ("steps", "variant", "absent", "counted"),
    [
        ((300,), "laser", "400", {"standard"}),
        ((300, 400), "standard", "300", {"standard", "laser"}),
    ],
)
def test_trials_without_a_checkpoint_are_named(
    begun, answered, steps, variant, absent, counted
) -> None:
    made = begun({"standard": [{"next": {"acc": STANDARD}}], "laser": [None]})
    for step in steps:
        answered.write(trial(made, "laser"), {"next": {"acc": LASER}}, step=step)
    found = suite_of(made)
    (problem,) = found.problems
    place = f"compare/{variant}/imagenet_vit_jax/trial_1"
    assert (problem.kind, problem.trial) == ("missing", place)
    assert absent in problem.text
    assert set(found.scores["variant"]) == {*counted, ""}
    assert set(found.scores["checkpoints"].dropna()) == {1}


def test_a_task_that_is_damaged_leaves_no_mean(begun, answered) -> None:
    tasks = {"next": {"acc": STANDARD}, "swap": {"acc": LASER}}
    made = begun({"standard": [tasks], "laser": [tasks]})
    answered.put(trial(made, "laser") / "downstream/400/pydoc", answered.lines(tasks)[:-1])
    assert [problem.kind for problem in suite_of(made).problems] == ["missing"]
    overview, means, _ = view.page(made.table()).tables
    assert overview.texts().iloc[1].tolist() == ["LASER", "40.00", "–", "–"]
    assert means.texts()["Variant"].tolist() == ["Standard"]


@pytest.mark.parametrize(
    ("stated", "counts"), [({"data_sha256": "other"}, False), ({"majority": 0.5}, True)]
)
def test_other_questions_and_references_are_named(begun, answered, stated, counts) -> None:
    """Answers to other questions are left out as well."""
    made = begun(pair())
    answered.write(trial(made, "laser"), pair()["laser"][0], task=stated)
    found = suite_of(made)
    (problem,) = found.problems
    place = ("compare/laser/imagenet_vit_jax/trial_1", "downstream/400/pydoc/results.json")
    assert (problem.kind, problem.trial, problem.file) == ("mismatch", *place)
    assert ("laser" in set(found.scores["variant"])) is counts


def test_nothing_that_can_be_read_is_a_page_of_problems(begun) -> None:
    made = begun({"standard": [{"next": {"acc": STANDARD}}]})
    (trial(made, "standard") / "downstream/400/pydoc" / layout.SAMPLES).unlink()
    table = made.table()
    page = view.page(table)
    assert page.tables == ()
    assert [problem.kind for problem in page.problems] == ["missing"]
    assert view.draw(table) is None


def test_the_page(begun, answered) -> None:
    made = begun(pair())
    references = {"majority": 0.31, "references": {"chance": 0.25, "word overlap": 0.53}}
    for variant, (tasks,) in pair().items():
        more = references | {"truncated": 3, "published_n": 100}
        answered.write(trial(made, variant), tasks, task=more)
    overview, means, tasks = view.page(made.table()).tables
    assert overview.texts().values.tolist() == [
        ["Standard", "40.00", "40.00"],
        ["LASER", "70.00", "70.00"],
        ["majority class", "31.00", "31.00"],
        ["chance", "25.00", "25.00"],
        ["word overlap", "53.00", "53.00"],
        ["questions", "10", "–"],
        ["published questions", "100", "–"],
        ["contexts cut", "3", "–"],
    ]
    assert overview.bold["Mean"] == [False, True] + 6 * [False]
    assert means.texts().iloc[1].tolist()[:5] == [
        "LASER",
        "1",
        "70.00",
        "[40.00, 100.00]",
        "+30.00",
    ]
    assert tasks.texts().iloc[0].tolist()[-4:] == ["4", "1", "0.375", "0.375"]


ONE_SHOT = [["82.00", "42.86", "62.34"], ["87.00", "44.64", "63.39"]]


@pytest.mark.parametrize(
    ("record", "expected"), [({"paper_table": "lm_scaling"}, ONE_SHOT), ({}, [])]
)
def test_the_paper_s_numbers_stand_beside_the_paper_s_study_alone(begun, record, expected) -> None:
    tasks = {"copa": {"acc": STANDARD}, "cb": {"acc": LASER}}
    made = begun(
        {"standard": [tasks], "laser": [tasks]},
        suite="paper_one_shot",
        workload="c4_lm_2b",
        record=record,
        metric="accuracy",
    )
    page = view.page(made.table())
    overview, means, _ = (table.texts() for table in page.tables)
    theirs = overview[overview["Variant"].str.startswith("paper")].values.tolist()
    assert [line[1:] for line in theirs] == expected
    assert [("Paper" in means), page.data()["paper"].notna().any()] == 2 * [bool(record)]
    if record:
        assert page.tables[0].bold["copa"][-3:] == [False, True, False]
        assert means["Paper's\ndifference"].tolist() == ["–", "+1.05"]


def test_generated_answers(begun, answered) -> None:
    tasks = {"returns": {"exact_match": LASER, "acc": STANDARD}}
    made = begun({"standard": [tasks]}, suite="returns")
    folder = answered.write(trial(made, "standard"), tasks, suite="returns", task={"majority": 0.6})
    lines = answered.lines(tasks, decodable=True)
    answered.put(folder, [lines[0] | {"decodable": False}, *lines[1:]])
    score = row(suite_of(made), "standard", "returns")
    shares = {"undecodable": score["undecodable"], **score["metrics"]}
    assert shares == pytest.approx({"undecodable": 0.1, "exact_match": 0.7, "acc": 0.4})


def test_csv_has_every_score(begun, tmp_path) -> None:
    assert main(["downstream", str(begun(pair()).root), f"--out={tmp_path / 'x.csv'}"]) == 0
    lines = pd.read_csv(tmp_path / "x.csv")
    assert lines[["kind", "label", "task", "score"]].values.tolist() == [
        ["variant", "Standard", "next", 0.4],
        ["variant", "Standard", MEAN, 0.4],
        ["variant", "LASER", "next", 0.7],
        ["variant", "LASER", MEAN, 0.7],
        ["reference", "chance", "next", 0.25],
        ["reference", "chance", MEAN, 0.25],
    ]
    assert lines.loc[2, ["metrics", "p"]].tolist() == ["acc=0.7", pytest.approx(0.375)]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--suite=glue", ("glue", "pydoc")),
        ("--metric=f1", ("f1", "acc")),
        ("--step=7", ("'7'", "400")),
        ("--baseline=diff", ("diff",)),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(begun, capsys, option, words) -> None:
    assert main(["downstream", str(begun(pair()).root), option]) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words)


def test_another_baseline(begun) -> None:
    made = begun(pair())
    assert row(suite_of(made, baseline="laser"), "standard")["difference"] == pytest.approx(-0.3)
    assert len(view.page(made.table(baseline="diff")).tables) == 2


def test_the_figure_shows_scores_differences_and_references(begun) -> None:
    table = begun(pair()).table()
    (plot,) = view.PLOTS
    spec = charts.specification(plot.draw(table))
    shown = [line for lines in spec["datasets"].values() for line in lines]
    scores = {(line["label"], line["task"]): line["score"] for line in shown if "score" in line}
    assert (scores["LASER", "next"], scores["chance", MEAN]) == pytest.approx((70.0, 25.0))
    assert any(line.get("low") == pytest.approx(-10.0) for line in shown)
    assert "70.00" in plot.alt_text(table)
