"""Scores on the tasks of suites: values by hand, what cannot be compared, and every way out."""

import csv
import dataclasses
import io
import pathlib

import numpy as np
import pytest

from analysis import report
from analysis.cli import main
from analysis.compare import build, downstream
from analysis.load.studies import read_study
from analysis.render import latex
from analysis.render.text import markdown
from analysis.statistics import questions
from analysis.views import catalog
from analysis.views.downstream import figure
from sweeps.records import layout

# Of 10 questions LASER has 4 that Standard has not, and Standard 1.
STANDARD, LASER = [1, 1, 1, 1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 0, 1, 1, 1, 1, 0, 0]
PAGE = catalog.get("downstream").page


@pytest.fixture
def begun(hand_made, answered):
    """Returns a function that writes a study of one seed, or more, and its answers: variant to
    seed to tasks at step 400."""

    def begin(answers, suite="pydoc", config=None, name="tiny", workload="imagenet_vit", **more):
        variants = list(answers)
        made = hand_made(variants, config=config, name=name, workload=workload, **more)
        for variant, seeds in answers.items():
            made.add_seeds(variant, [0.5 + 0.01 * seed for seed in range(len(seeds))])
        made.finish()
        for entry in made.planned["compare"]:
            tasks = answers[entry["variant"]][entry["seed"]]
            if tasks:
                answered.write(made.root / entry["path"], tasks, suite=suite)
        return made

    return begin


def trial(made, variant, seed=0):
    path = layout.trial_path("compare", variant, made.workload, 0, seed)
    return made.root / path


def table_of(made, **asked):
    return build.error_table(read_study(made.root), **asked)


def suite_of(made, **asked):
    (found,) = downstream.of_table(table_of(made), **asked)
    return found


def pair(standard=STANDARD, laser=LASER):
    return {"standard": [{"next": {"acc": standard}}], "laser": [{"next": {"acc": laser}}]}


def test_one_task_by_hand(begun) -> None:
    found = suite_of(begun(pair()))
    assert found.problems == ()
    base, score = (found.scores[name]["next"] for name in ("standard", "laser"))
    assert (base.value, base.n, base.seeds, base.difference) == (0.4, 10, 1, None)
    each = score.difference
    assert (each.better, each.worse, each.seeds) == (4, 1, 1)
    assert each.value == pytest.approx(0.3)
    assert each.p == each.p_holm == pytest.approx(2 * 6 / 32)
    # The bootstrap of 0.4 of 10 is binomial: 2.5 and 97.5 % are 1 and 7 of them.
    assert (base.low, base.high) == (0.1, 0.7)
    assert found.means["laser"].value == pytest.approx(0.7)
    assert found.means["laser"].difference.value == pytest.approx(0.3)
    assert found.means["laser"].by_seeds.test == "none"


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
    p = found.scores["laser"]["swap"].difference
    assert p.p == pytest.approx(2 / 64)
    assert p.p_holm == pytest.approx(4 * 2 / 64)
    assert found.scores["laser"]["next"].difference.p_holm == 1.0
    assert found.scores["laser+temp"]["next"].difference.p == 1.0


def test_seeds_are_summed_question_by_question(begun) -> None:
    """The same answers of two seeds are no twenty questions."""
    answers = {name: of * 2 for name, of in pair().items()}
    one = suite_of(begun(pair())).scores["laser"]["next"]
    two = suite_of(begun(answers, name="twice")).scores["laser"]["next"]
    assert two.seeds == two.difference.seeds == 2
    assert (two.value, two.low, two.high) == (one.value, one.low, one.high)
    assert two.difference.p == one.difference.p
    assert two.difference.value == pytest.approx(one.difference.value)


def test_only_shared_seeds_are_compared(begun) -> None:
    answers = pair() | {"standard": [{"next": {"acc": STANDARD}}, {"next": {"acc": [1] * 10}}]}
    found = suite_of(begun(answers))
    assert found.scores["standard"]["next"].value == pytest.approx(0.7)
    assert found.scores["laser"]["next"].difference.value == pytest.approx(0.3)
    assert found.scores["laser"]["next"].difference.seeds == 1


def test_score_and_difference_are_of_the_same_runs_where_seeds_are_not_shared(begun) -> None:
    """0.4 and 1.0 of the baseline's two runs, 0.7 of the one of the other."""
    answers = pair() | {"standard": [{"next": {"acc": STANDARD}}, {"next": {"acc": [1] * 10}}]}
    table = table_of(begun(answers))
    study = dataclasses.replace(table.study, shares_seeds=False)
    (found,) = downstream.of_table(dataclasses.replace(table, study=study))
    base, score = (found.scores[name]["next"] for name in ("standard", "laser"))
    each = score.difference
    assert (each.seeds, each.seeds_baseline) == (1, 2)
    assert each.value == pytest.approx(score.value - base.value) == pytest.approx(0.0)
    assert found.means["laser"].difference.value == pytest.approx(0.0)
    assert each.low < 0 < each.high
    assert 0.1 < each.p <= 1.0


def test_mean_over_tasks_weighs_tasks_alike(begun) -> None:
    answers = {
        "standard": [{"next": {"acc": [1] * 2 + [0] * 8}, "swap": {"acc": [1] * 3 + [0]}}],
        "laser": [{"next": {"acc": [1] * 4 + [0] * 6}, "swap": {"acc": [1] * 2 + [0] * 2}}],
    }
    found = suite_of(begun(answers))
    assert found.means["standard"].value == pytest.approx((0.2 + 0.75) / 2)
    each = found.means["laser"].difference
    assert each.value == pytest.approx((0.2 - 0.25) / 2)
    sums = [[1 * (2 <= q < 4) for q in range(10)], [-1 * (q == 2) for q in range(4)]]
    drawn = questions.resampled_means([np.array(s) for s in sums])
    assert (each.low, each.high) == questions.interval(drawn.mean(axis=1))


def test_checkpoints_and_seeds_are_two_columns(begun, answered) -> None:
    """Seeds at .4 and .6, then both at .6: by hand 0.1 sqrt 2 / 2 and the same over seeds."""
    first, last = {"next": {"acc": STANDARD}}, {"next": {"acc": [1] * 6 + [0] * 4}}
    made = begun({"standard": [last, last]})
    answered.write(trial(made, "standard", 0), first, step=300)
    answered.write(trial(made, "standard", 1), last, step=300)
    found = suite_of(made)
    assert found.steps == (300, 400)
    spread = found.scores["standard"]["next"].spread
    assert (spread.checkpoints, spread.seeds) == (2, 2)
    assert spread.mean == pytest.approx(0.55)
    assert spread.over_checkpoints == pytest.approx((0.2 / 2**0.5 + 0) / 2)
    assert spread.over_seeds == pytest.approx(0.1 / 2**0.5)
    assert found.means["standard"].spread == spread
    text = markdown(PAGE(table_of(made)))
    assert "| Standard | next | 2 | 2 | 55.00 | 7.07 | 7.07 |" in text


def test_the_step_and_the_number_of_checkpoints_can_be_chosen(begun, answered) -> None:
    made = begun({"standard": [{"next": {"acc": STANDARD}}]})
    answered.write(trial(made, "standard"), {"next": {"acc": LASER}}, step=300)
    assert suite_of(made, step=300).scores["standard"]["next"].value == 0.7
    (found,) = downstream.of_table(table_of(made, last=1))
    assert found.steps == (400,)
    with pytest.raises(ValueError, match=r"no results of step '7' in suite pydoc; there are 300, "):
        suite_of(made, step=7)


def test_metrics_can_be_chosen(begun) -> None:
    tasks = {"next": {"acc": STANDARD, "acc_norm": LASER}, "swap": {"acc": STANDARD}}
    made = begun({"standard": [tasks]})
    assert suite_of(made).metrics == {"next": "acc", "swap": "acc"}
    found = suite_of(made, metric="acc_norm")
    assert found.metrics == {"next": "acc_norm"}
    assert found.scores["standard"]["next"].value == 0.7
    with pytest.raises(ValueError, match="no results of metric 'f1' .* are acc, acc_norm"):
        suite_of(made, metric="f1")


def test_trials_and_checkpoints_that_are_missing_are_named(begun, answered) -> None:
    made = begun({"standard": [{"next": {"acc": STANDARD}}], "laser": [None]})
    answered.write(trial(made, "laser"), {"next": {"acc": LASER}}, step=300)
    found = suite_of(made)
    place = "compare/laser/imagenet_vit_jax/trial_1"
    assert found.problems == (
        f"missing: {place}: no results of pydoc at step 400; its last is 300",
    )
    assert list(found.scores) == ["standard"]
    answered.write(trial(made, "laser"), {"next": {"acc": LASER}})
    found = suite_of(made)
    assert found.steps == (400,)
    assert (
        "compare/standard/imagenet_vit_jax/trial_1: no results of pydoc at step 300, where "
        in (found.problems[0])
    )


def test_a_task_that_is_damaged_leaves_no_mean(begun) -> None:
    tasks = {"next": {"acc": STANDARD}, "swap": {"acc": LASER}}
    made = begun({"standard": [tasks], "laser": [tasks]})
    folder = trial(made, "laser") / "downstream/400/pydoc"
    record = layout.read_json(folder / layout.RESULTS)
    record["tasks"]["swap"]["metrics"]["acc"] = 0.9
    layout.write_json(folder / layout.RESULTS, record)
    page = PAGE(table_of(made))
    assert "swap has acc 0.7, results.json says 0.9; swap is left out" in page.problems[0]
    text = markdown(page)
    assert "| LASER | **40.00** | – | – |" in text
    assert "No mean of LASER: tasks are missing, and a mean of fewer is another." in text


def test_other_questions_are_named_and_not_compared(begun, answered) -> None:
    made = begun(pair())
    answered.write(trial(made, "laser"), pair()["laser"][0], task={"data_sha256": "other"})
    found = suite_of(made)
    (problem,) = found.problems
    where = "compare/laser/imagenet_vit_jax/trial_1/downstream/400/pydoc"
    assert problem.startswith(f"mismatch: {where}: next asked other questions")
    assert found.scores["laser"] == {}
    assert list(found.scores["standard"]) == ["next"]


def test_other_references_are_named(begun, answered) -> None:
    made = begun(pair())
    answered.write(trial(made, "laser"), pair()["laser"][0], task={"majority": 0.5})
    (problem,) = suite_of(made).problems
    assert problem.startswith("mismatch: laser, seed 0, step 400: majority of next is 0.5, else")


def test_nothing_that_can_be_read_is_a_page_of_problems(begun) -> None:
    made = begun({"standard": [{"next": {"acc": STANDARD}}]})
    (trial(made, "standard") / "downstream/400/pydoc" / layout.SAMPLES).unlink()
    table = table_of(made)
    page = PAGE(table)
    assert page.tables == ()
    assert page.problems[0].startswith("missing: ")
    assert figure.draw(table) is None


def test_without_evaluations_there_is_no_view(study, capsys) -> None:
    study.finish()
    assert PAGE(build.error_table(read_study(study.root))) is None
    assert not figure.PLOTS[0].applies(build.error_table(read_study(study.root)))
    assert main(["downstream", str(study.root)]) == 2
    assert "no trial that is done was asked a suite; `python -m sweeps eval" in (
        capsys.readouterr().err
    )


REFERENCES = {"majority": 0.31, "references": {"chance": 0.25, "word overlap": 0.53}}


def test_the_page(begun, answered) -> None:
    made = begun(pair())
    for variant, (tasks,) in pair().items():
        more = REFERENCES | {"truncated": 3, "published_n": 100}
        answered.write(trial(made, variant), tasks, task=more)
    text = markdown(PAGE(table_of(made)))
    assert "| Standard | 40.00 | 40.00 |" in text
    assert "| LASER | **70.00** | **70.00** |" in text
    assert "| majority class | 31.00 | 31.00 |\n| chance | 25.00 | 25.00 |" in text
    assert "| word overlap | 53.00 | 53.00 |\n| questions | 10 | – |" in text
    assert "| LASER | next | 10 | 70.00 | [40.00, 100.00] | +30.00 |" in text
    assert "| 4 | 1 | 0.375 | 0.375 |" in text
    assert "Metrics (each task's primary metric, named beforehand): acc: next." in text
    assert "longer than the model's and was cut: next 3." in text
    assert "Other numbers of questions than published: next 10 for 100." in text
    assert "One checkpoint of one seed: there is no ±" in text
    assert "paper" not in text


PAPER = {"paper_table": "lm_scaling"}


@pytest.fixture
def of_the_paper(begun):
    def begin(record):
        tasks = {"copa": {"acc": STANDARD}, "cb": {"acc": LASER}}
        answers = {"standard": [tasks], "laser": [tasks]}
        return begun(
            answers, suite="paper_one_shot", workload="c4_lm_2b", record=record,
            metric="accuracy",
        )  # fmt: skip

    return begin


def test_the_paper_s_column_stands_beside_the_paper_s_study_alone(of_the_paper) -> None:
    text = markdown(PAGE(table_of(of_the_paper(PAPER))))
    assert "| paper: Standard | 82.00 | 42.86 | 62.34 |" in text
    assert "| paper: LASER | **87.00** | **44.64** | 63.39 |" in text
    assert "| 62.34 | – |\n" in text
    assert "| 63.39 | +1.05 |\n" in text
    assert "| LASER | 16 | 63.39 | 63.51 | no | 61.52 |" in text
    assert "do not follow from its rows: LASER+per-dim-temp 63.52 (rows: 63.65)" in text


def test_the_paper_s_checkpoints_stand_beside_ours(of_the_paper, answered) -> None:
    made = of_the_paper(PAPER)
    for variant in ("standard", "laser"):
        tasks = {"copa": {"acc": STANDARD}, "cb": {"acc": LASER}}
        answered.write(trial(made, variant), tasks, step=300, suite="paper_one_shot")
    text = markdown(PAGE(table_of(made)))
    assert "| Standard | cb | 2 | 1 | 70.00 | 0.00 | – | **43.93 ± 0.87** |" in text
    assert "| LASER | mean over tasks | 2 | 1 | 55.00 | 0.00 | – | 63.58 ± 0.26 |" in text
    assert "agree with the one-shot table's columns of the per-dim temperature" in text


def test_runs_names_what_is_wrong_with_evaluations(begun, capsys) -> None:
    made = begun(pair())
    assert main(["runs", str(made.root)]) == 0
    (trial(made, "laser") / "downstream/400/pydoc" / layout.SAMPLES).unlink()
    assert main(["runs", str(made.root)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "missing: compare/laser/imagenet_vit_jax/trial_1/downstream/400/pydoc/samp" in said


def test_another_study_has_no_paper_s_column(of_the_paper) -> None:
    assert "paper" not in markdown(PAGE(table_of(of_the_paper({})))).replace("paper_one_shot", "")


def generated(exact, ranked):
    return {"returns": {"exact_match": exact, "acc": ranked}}


def test_generated_answers_beside_the_same_model_from_random_weights(begun, answered) -> None:
    mine = {"standard": [generated(LASER, STANDARD)]}
    made = begun(mine, suite="returns", config={"finetune_from": "pretrained"})

    def decodable(made, exact):
        folder = trial(made, "standard") / "downstream/400/returns"
        record = layout.read_json(folder / layout.RESULTS)
        record["tasks"]["returns"]["majority"] = 0.6
        layout.write_json(folder / layout.RESULTS, record)
        lines = answered.lines(generated(exact, STANDARD), decodable=True)
        answered.put(folder, [lines[0] | {"decodable": False}, *lines[1:]])

    decodable(made, LASER)
    text = markdown(PAGE(table_of(made)))
    assert "| Standard | returns | 10 | 70.00 | [40.00, 100.00] | 40.00 | 10.00 | 60.00 | – |" in (
        text
    )
    assert "From random weights: no study of imagenet_vit beside this one has an empty" in text
    other = {"standard": [generated(STANDARD, STANDARD)]}
    random = begun(other, suite="returns", config={"finetune_from": ""}, name="random")
    decodable(random, STANDARD)
    text = markdown(PAGE(table_of(made)))
    assert "| 40.00 | 10.00 | 60.00 | 40.00 |" in text
    assert "trained alike by the study random." in text
    begun(other, suite="returns", config={"finetune_from": ""}, name="third")
    assert "nothing is shown, since random, third do not say" in markdown(PAGE(table_of(made)))


def test_an_interval_without_width_is_explained(begun) -> None:
    text = markdown(PAGE(table_of(begun(pair(STANDARD, [1] * 10)))))
    assert "| 100.00 | [100.00, 100.00] |" in text
    assert "An interval without width: all answers were right, or none" in text


def test_every_format(begun, capsys, tmp_path) -> None:
    made = begun(pair())
    assert main(["downstream", str(made.root)]) == 0
    assert capsys.readouterr().out.startswith("tiny: downstream tasks on imagenet_vit, stage comp")
    for suffix in ("md", "tex", "html", "csv"):
        assert main(["downstream", str(made.root), f"--out={tmp_path / f'x.{suffix}'}"]) == 0
    assert r"\begin{tabular}" in (tmp_path / "x.tex").read_text()
    assert "<table>" in (tmp_path / "x.html").read_text()
    lines = list(csv.DictReader(io.StringIO((tmp_path / "x.csv").read_text())))
    assert [(line["kind"], line["label"], line["task"], line["score"]) for line in lines] == [
        ("variant", "Standard", "next", "0.4"),
        ("variant", "Standard", "mean over tasks", "0.4"),
        ("variant", "LASER", "next", "0.7"),
        ("variant", "LASER", "mean over tasks", "0.7"),
        ("reference", "chance", "next", "0.25"),
        ("reference", "chance", "mean over tasks", "0.25"),
    ]
    assert lines[2]["metrics"] == "acc=0.7"
    assert float(lines[2]["p"]) == pytest.approx(0.375)
    assert (lines[2]["right_alone"], lines[2]["baseline_alone"], lines[2]["seeds_compared"]) == (
        "4", "1", "1",
    )  # fmt: skip
    assert latex.render(PAGE(table_of(made)))


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--suite=glue", "no results of suite 'glue' in tiny; there are pydoc"),
        ("--metric=f1", "no results of metric 'f1' in suite pydoc; there are acc"),
        ("--step=7", "no results of step '7' in suite pydoc; there are 400"),
        ("--baseline=diff", "no variant 'diff' to compare with"),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(begun, capsys, option, said) -> None:
    made = begun(pair())
    assert main(["downstream", str(made.root), option]) == 2
    assert said in capsys.readouterr().err


def test_another_baseline(begun) -> None:
    made = begun(pair())
    (found,) = downstream.of_table(table_of(made, baseline="laser"))
    assert found.scores["standard"]["next"].difference.value == pytest.approx(-0.3)
    (found,) = downstream.of_table(table_of(made, baseline="diff"))
    assert found.scores["standard"]["next"].difference is None
    text = markdown(PAGE(table_of(made, baseline="diff")))
    assert "Nothing is compared: no trial of Diff was asked" in text


def test_plots_and_report_have_it(begun, tmp_path, parse_page) -> None:
    made = begun(pair())
    table = table_of(made)
    written = list(catalog.write_plots([table], tmp_path / "plots"))
    assert f"wrote {tmp_path / 'plots' / 'downstream.png'}" in written
    assert pathlib.Path(tmp_path / "plots/downstream.png").stat().st_size > 10_000
    words = figure.words(table)
    assert "pydoc: Standard 40.00 %, LASER 70.00 %." in words
    page = parse_page(report.page([table], made.root))
    assert any("Right answers in percent, suite pydoc" in word for word in page.words)
    assert any(words == each["alt"] for each in page.of("img"))
