"""The error table as data: which trials enter, what is compared, what is said of the rest."""

import math
import shutil

import pytest

from analysis.compare import build
from analysis.load.metrics import MissingMetricError
from analysis.load.studies import read_study
from analysis.views.table import error_table as table_view
from sweeps.records import layout

ERRORS = {"standard": (0.3, 0.5, 0.7), "laser": (0.2, 0.3, 0.4)}


def add_seeds(made, stage, variant, errors, point=0):
    for seed, error in enumerate(errors):
        rows = [made.evaluation(100, 0.8), made.evaluation(400, error)]
        made.trial(stage, variant, point, seed, rows)


@pytest.fixture
def study(hand_made):
    """Returns standard (0.3 0.5 0.7) against laser (0.2 0.3 0.4) on validation, two points."""
    made = hand_made(points=({"learning_rate": 0.001}, {"learning_rate": 0.01}))
    add_seeds(made, "tune", "standard", (0.4,), point=0)
    for variant, errors in ERRORS.items():
        add_seeds(made, "compare", variant, errors)
    made.select({"standard": 0, "laser": 0})
    return made


def table_of(made, **options):
    return build.error_table(read_study(made.finish()), **options)


def test_errors_at_the_step_that_validation_chose(study) -> None:
    table = table_of(study)
    standard, laser = table.rows
    assert [row.label for row in table.rows] == ["Standard", "LASER"]
    assert (table.stage, table.metric.name, table.decisive) == ("compare", "error", "test")
    assert standard.n == laser.n == 3
    assert standard.splits["validation"].summary.median == pytest.approx(0.5)
    assert standard.splits["test"].summary.mean == pytest.approx(0.51)
    assert list(laser.splits["train"].values.values()) == pytest.approx([0.19, 0.29, 0.39])
    assert table.problems == ()


def test_test_error_comes_from_the_step_of_the_best_validation_not_of_the_best_test(
    hand_made,
) -> None:
    made = hand_made(("standard",))
    rows = [
        made.evaluation(100, 0.3, test=0.05),
        made.evaluation(200, 0.2, test=0.25),
        made.evaluation(300, 0.2, test=0.15),
        made.evaluation(400, 0.4, test=0.01),
    ]
    made.trial("compare", "standard", 0, 0, rows)
    made.select({"standard": 0})
    table = table_of(made)
    assert table.rows[0].splits["test"].values == pytest.approx({0: 0.25})


def test_the_comparison_pairs_seeds_with_the_baseline(study) -> None:
    """Test differences -0.1, -0.2, -0.3: p = 0.0742 (worked in the statistics' tests)."""
    standard, laser = table_of(study).rows
    assert standard.splits["test"].comparison is None
    comparison = laser.splits["test"].comparison
    assert comparison.difference == pytest.approx(-0.2)
    assert comparison.p == comparison.p_holm == pytest.approx(0.0742, abs=5e-5)
    assert comparison.verdict == "cannot tell"


def test_holm_counts_the_variants_that_were_tested(study) -> None:
    add_seeds(study, "compare", "laser+temp", (0.2, 0.41, 0.6))
    add_seeds(study, "compare", "standard+temp", (0.31,))
    study.select(dict.fromkeys(("standard", "laser", "laser+temp", "standard+temp"), 0))
    rows = {row.variant: row.splits["test"].comparison for row in table_of(study).rows}
    assert math.isnan(rows["standard+temp"].p_holm)
    assert rows["standard+temp"].verdict == "cannot tell"
    assert rows["laser+temp"].p_holm == pytest.approx(2 * rows["laser+temp"].p)
    assert rows["laser"].p_holm == pytest.approx(rows["laser"].p)


def test_trials_of_another_point_do_not_enter(study) -> None:
    """Left from an earlier selection: planned, done, and much better."""
    add_seeds(study, "compare", "laser", (0.001, 0.001, 0.001), point=1)
    laser = table_of(study).rows[1]
    assert laser.n == 3
    assert laser.point == 0
    assert laser.splits["validation"].summary.median == pytest.approx(0.3)


def test_trials_that_are_not_done_are_named_and_not_counted(study) -> None:
    rows = [study.evaluation(100, 0.01)]
    study.trial("compare", "laser", 0, 3, rows, state="diverged", reason="loss is nan")
    study.trial("compare", "laser", 0, 4, rows, state="running")
    study.trial("compare", "laser", 0, 5, None, state="pending")
    table = table_of(study)
    assert table.rows[1].n == 3
    assert [problem.split(": ")[0] for problem in table.problems] == [
        "diverged",
        "unfinished",
        "missing",
    ]


def test_problems_of_other_stages_stay_with_the_runs_command(study) -> None:
    study.trial("tune", "standard", 1, 0, None, state="diverged", reason="loss is nan")
    table = table_of(study)
    assert table.problems == ()
    assert any("1 problems in trials outside" in note for note in table_view.page(table).notes)
    assert [problem.split(": ")[0] for problem in read_study(study.root).problems] == ["diverged"]


def test_a_table_of_the_tuning_stage(study) -> None:
    table = table_of(study, stage="tune")
    assert [(row.variant, row.n) for row in table.rows] == [("standard", 1)]


def test_a_stage_that_has_not_begun_is_said(study) -> None:
    del study.planned["compare"]
    shutil.rmtree(study.root / "compare")
    table = table_of(study)
    assert [(row.variant, row.n) for row in table.rows] == [("standard", 0), ("laser", 0)]
    assert table.problems == ("missing: compare/trials.json: the stage has not begun",)


def test_a_variant_without_a_chosen_point_is_said(study) -> None:
    study.select({"standard": 0})
    table = table_of(study)
    assert (table.rows[1].point, table.rows[1].n) == (None, 0)
    assert table.problems == (
        "missing: compare/laser on imagenet_vit: no point was chosen for it by validation",
    )


def test_without_a_selection_each_variants_point_is_chosen_in_the_stage(hand_made) -> None:
    made = hand_made(points=({"learning_rate": 0.1}, {"learning_rate": 0.2}))
    made.stages = ("grid",)
    add_seeds(made, "grid", "standard", (0.3, 0.3), point=0)
    add_seeds(made, "grid", "standard", (0.2, 0.2), point=1)
    add_seeds(made, "grid", "laser", (0.1, 0.1), point=0)
    add_seeds(made, "grid", "laser", (0.2, 0.2), point=1)
    table = table_of(made)
    assert [(row.variant, row.point) for row in table.rows] == [("standard", 1), ("laser", 0)]


def test_an_unknown_stage_lists_those_there_are(study) -> None:
    with pytest.raises(ValueError, match="no stage 'test' in tiny; it has tune, compare"):
        table_of(study, stage="test")


def test_an_unknown_metric_lists_the_columns_there_are(study) -> None:
    with pytest.raises(MissingMetricError, match="no column validation/wer; it has test/accuracy"):
        table_of(study, metric="wer")


def test_loss_is_shown_at_the_step_that_accuracy_chose(hand_made) -> None:
    made = hand_made(("standard",))
    rows = [
        made.evaluation(100, 0.2) | {"validation/loss": 2.0, "test/loss": 2.5},
        made.evaluation(400, 0.3) | {"validation/loss": 1.0, "test/loss": 1.5},
    ]
    made.trial("compare", "standard", 0, 0, rows)
    made.select({"standard": 0})
    table = table_of(made, metric="loss")
    assert table.rows[0].splits["test"].values == {0: 2.5}


def test_accuracy_is_better_when_higher(study) -> None:
    """The same trials as accuracy: the differences turn round."""
    comparison = table_of(study, metric="accuracy").rows[1].splits["test"].comparison
    assert comparison.difference == pytest.approx(0.2)


def test_without_a_test_split_validation_decides(study) -> None:
    root = study.finish()
    for file in root.glob(f"compare/*/*/*/{layout.EVAL_MEASUREMENTS}"):
        file.write_text(file.read_text().replace("test/", "later/"))
    table = build.error_table(read_study(root))
    assert table.decisive == "validation"
    assert table.problems[0] == "missing: no trial has a column test/accuracy"
    assert len(table.problems) == 1 + 3  # those of standard: its tuning trials have the column


def test_a_column_that_one_trial_lacks_is_said_of_that_trial(study) -> None:
    root = study.finish()
    file = root / study.planned["compare"][1]["path"] / layout.EVAL_MEASUREMENTS
    file.write_text(file.read_text().replace("test/", "later/"))
    table = build.error_table(read_study(root))
    assert len(table.rows[0].splits["test"].values) == 2
    assert table.rows[0].n == 3
    assert table.problems == (
        "missing: compare/standard/imagenet_vit_jax/trial_2: no column test/accuracy",
    )


def test_references_are_those_of_the_workload(study) -> None:
    rows = [{"name": "nearest", "train/error": None, "validation/error": 0.02, "test/error": 0.015}]
    study.reference(rows, "stand-in for ImageNet")
    table = table_of(study)
    assert table.reference_note == "stand-in for ImageNet"
    (reference,) = table.references
    assert reference.values == {"train": None, "validation": 0.02, "test": 0.015}


def test_the_papers_cells_stand_beside_a_full_study_only(hand_made, study) -> None:
    assert not table_of(study).is_paper
    full = hand_made(name="full", record={"paper_table": "vit_error"})
    add_seeds(full, "compare", "laser+per_dim_temp", (0.3,))
    full.select({"laser+per_dim_temp": 0})
    table = table_of(full)
    assert table.is_paper
    cell = table.rows[0].splits["validation"].paper
    assert (cell.value, cell.bold) == (0.2475, False)


def test_rows_stand_in_the_papers_order(hand_made) -> None:
    made = hand_made()
    for variant in sorted(made.eight_variants):
        add_seeds(made, "compare", variant, (0.3,))
    made.select(dict.fromkeys(made.eight_variants, 0))
    assert [row.label for row in table_of(made).rows] == [
        "Standard",
        "Standard + temp",
        "Standard + QK-normalization",
        "Standard + per-dim temp",
        "LASER",
        "LASER + temp",
        "LASER + QK-normalization",
        "LASER + per-dim temp",
    ]
