"""Seeds that have no number, and runs of different lengths: which verdicts are withheld."""

import csv
import io

import pytest

from analysis.compare import build
from analysis.load.studies import read_study
from analysis.views import verdicts
from analysis.views.table import error_table as table_view
from analysis.views.table import tidy_csv
from sweeps.records import layout

GOOD = [0.10, 0.101, 0.102, 0.103, 0.104]
BAD = [0.20, 0.202, 0.204, 0.206, 0.207]
HEADER = "global_step,train/wer,validation/wer,test/wer,preemption_count"


@pytest.fixture
def made(hand_made):
    """Returns a study of Standard and LASER, 5 seeds each, that `build` writes."""
    return hand_made()


def table_of(made, standard, laser, states=None, **options):
    """`states` maps (variant, seed) to a state other than done."""
    for variant, errors in {"standard": standard, "laser": laser}.items():
        for seed, error in enumerate(errors):
            state = (states or {}).get((variant, seed), "done")
            rows = [made.evaluation(200, 0.5), made.evaluation(400, error)]
            made.trial("compare", variant, 0, seed, rows, state=state)
    made.select({"standard": 0, "laser": 0})
    return build.error_table(read_study(made.finish()), **options)


def lost(variant, *seeds, state="diverged"):
    return {(variant, seed): state for seed in seeds}


def verdict(table) -> str:
    return table.rows[1].splits["test"].comparison.verdict


def test_of_seeds_that_all_went_well_nothing_is_withheld(made) -> None:
    table = table_of(made, BAD, GOOD)
    assert (verdict(table), table.rows[1].seeds, table.rows[1].lost) == ("better", "5", {})
    assert not any("Lost seeds" in note for note in table_view.page(table).notes)


@pytest.mark.parametrize(
    ("standard", "laser", "of", "expected"),
    [
        (BAD, GOOD, "laser", "cannot tell"),
        (BAD, GOOD, "standard", "better"),
        (GOOD, BAD, "laser", "worse"),
        (GOOD, BAD, "standard", "cannot tell"),
    ],
)
@pytest.mark.parametrize("state", ["diverged", "failed"])
def test_a_lost_seed_is_worse_than_any(made, standard, laser, of, expected, state) -> None:
    table = table_of(made, standard, laser, lost(of, 3, 4, state=state))
    comparison = table.rows[1].splits["test"].comparison
    assert comparison.p_holm < 0.001
    assert comparison.verdict == expected
    assert comparison.withheld == ("lost seeds" if expected == "cannot tell" else "")
    row = next(row for row in table.rows if row.variant == of)
    assert (row.n, row.planned, row.lost, row.unfinished) == (3, 5, {state: 2}, 0)


def test_both_lost_seeds_so_neither_direction_can_be_told(made) -> None:
    both = lost("laser", 4) | lost("standard", 3)
    assert verdict(table_of(made, BAD, GOOD, both)) == "cannot tell"


def test_lost_seeds_are_said_in_the_table_the_notes_the_csv_and_the_verdict(made) -> None:
    table = table_of(made, BAD, GOOD, lost("laser", 3, 4))
    document = table_view.page(table)
    assert document.tables[0].sections[1][0][1].text == "3 of 5 (2 diverged)"
    note = next(note for note in document.notes if note.startswith("Lost seeds (LASER)"))
    assert note.endswith("Cannot tell for that, whatever p is: LASER.")
    lines = list(csv.DictReader(io.StringIO(tidy_csv.to_csv(table))))
    laser = next(line for line in lines if (line["variant"], line["split"]) == ("laser", "test"))
    assert (laser["planned"], laser["lost"], laser["unfinished"]) == ("5", "diverged=2", "0")
    assert (laser["verdict"], laser["withheld"]) == ("cannot tell", "lost seeds")
    assert verdicts.of_table(table)[1].word == "cannot tell"


def test_unfinished_seeds_are_not_lost(made) -> None:
    states = lost("laser", 3, state="running") | lost("laser", 4, state="pending")
    table = table_of(made, BAD, GOOD, states)
    row = table.rows[1]
    assert (verdict(table), row.lost, row.unfinished) == ("better", {}, 2)
    assert row.seeds == "3 of 5 (2 unfinished)"


def test_a_validation_that_is_never_finite_is_lost(made) -> None:
    table = table_of(made, BAD, [*GOOD[:4], float("nan")])
    assert table.rows[1].n == 5  # step 200 is finite
    directory = made.root / made.planned["compare"][-1]["path"]
    rows = [made.evaluation(400, float("nan"))]
    (directory / layout.EVAL_MEASUREMENTS).write_text(made.csv_text(rows))
    table = build.error_table(read_study(made.root))
    assert (table.rows[1].lost, verdict(table)) == ({"non-finite": 1}, "cannot tell")


def test_a_test_metric_that_is_not_finite_is_lost_on_that_split(made) -> None:
    table_of(made, BAD, GOOD)
    directory = made.root / made.planned["compare"][-1]["path"]
    rows = [made.evaluation(400, 0.1, test=float("nan"))]
    (directory / layout.EVAL_MEASUREMENTS).write_text(made.csv_text(rows))
    row = build.error_table(read_study(made.root)).rows[1]
    assert row.splits["test"].non_finite == 1
    assert row.splits["test"].comparison.verdict == "cannot tell"
    assert row.splits["validation"].comparison.verdict == "better"


@pytest.mark.parametrize(
    ("state", "seeds"),
    [("diverged", "0 of 3 (3 diverged)"), ("pending", "0 of 3 (3 unfinished)")],
)
def test_a_variant_of_which_no_seed_has_a_number(hand_made, state, seeds) -> None:
    made = hand_made()
    made.stages = ("grid",)
    for seed in range(3):
        made.trial("grid", "standard", 0, seed, [made.evaluation(400, 0.2)])
        made.trial("grid", "laser", 0, seed, None, state=state)
    table = build.error_table(read_study(made.finish()))
    assert table.rows[1].seeds == seeds


def test_a_trial_that_is_done_and_ends_before_its_last_step_is_unfinished(made) -> None:
    """Its file lost the evaluation at step 400: step 200 is no number of a whole run."""
    table_of(made, BAD, GOOD)
    directory = made.root / made.planned["compare"][-1]["path"]
    (directory / layout.EVAL_MEASUREMENTS).write_text(made.csv_text([made.evaluation(200, 0.01)]))
    table = build.error_table(read_study(made.root))
    row = table.rows[1]
    assert (row.n, row.unfinished, row.seeds) == (4, 1, "4 of 5 (1 unfinished)")
    assert 4 not in row.splits["test"].values
    assert any("done, but it ends at step 200 of 400" in problem for problem in table.problems)


def test_of_two_trials_of_one_seed_the_first_counts_and_is_named(made) -> None:
    made.trial("compare", "laser", 0, 0, [made.evaluation(400, 0.1)])
    made.trial("compare", "laser", 0, 7, [made.evaluation(400, 0.9)])
    made.trial("compare", "standard", 0, 0, [made.evaluation(400, 0.2)])
    made.select({"standard": 0, "laser": 0})
    second = made.planned["compare"][1]
    second["seed"] = 0
    directory = made.root / second["path"]
    record = layout.read_json(directory / layout.TRIAL)
    layout.write_json(directory / layout.TRIAL, record | {"seed": 0})
    table = build.error_table(read_study(made.finish()))
    row = table.rows[1]
    assert row.n == row.planned == len(row.splits["test"].values) == 1
    assert row.splits["validation"].values == pytest.approx({0: 0.1})
    (problem,) = table.problems
    assert problem.startswith("duplicated: ")
    assert problem.endswith("too; the first counts")
    assert build.first_of_each_seed([]) == []


@pytest.fixture
def logs(tmp_path):
    """Returns a function that writes AlgoPerf's logs: a submission to its seeds' last steps and
    WERs."""

    def write(submissions):
        for name, runs in submissions.items():
            for seed, (step, wer) in enumerate(runs):
                directory = tmp_path / name / f"study_{seed}" / "speech_jax" / "trial_1"
                directory.mkdir(parents=True)
                text = f"{HEADER}\n{step},{wer},{wer},{wer},0\n"
                (directory / layout.EVAL_MEASUREMENTS).write_text(text)
        return build.error_table(read_study(tmp_path), baseline="adam")

    return write


@pytest.mark.parametrize(("step", "expected"), [(2000, "cannot tell"), (9600, "worse")])
def test_published_runs_of_different_lengths_are_not_judged(logs, step, expected) -> None:
    """By their last errors the one that was at its target in a fifth of the steps is worse."""
    table = logs(
        {
            "adam": [(10_000, 0.1 + k / 1000) for k in range(5)],
            "fast": [(step, 0.2 + k / 1000) for k in range(5)],
        }
    )
    comparison = table.rows[1].splits["test"].comparison
    assert (comparison.verdict, comparison.p < 0.01) == (expected, True)
    notes = [note for note in table_view.page(table).notes if "different lengths" in note]
    assert len(notes) == (expected == "cannot tell")
    if notes:
        assert comparison.withheld == "lengths"
        assert "adam 10,000, fast 2,000" in notes[0]
        assert "`python -m analysis time`" in notes[0]


def test_trials_of_ours_with_other_budgets_are_not_judged(made) -> None:
    table_of(made, BAD, GOOD)
    for entry in made.planned["compare"]:
        if entry["variant"] == "laser":
            directory = made.root / entry["path"]
            record = layout.read_json(directory / layout.TRIAL)
            layout.write_json(directory / layout.TRIAL, record | {"steps": 800})
            rows = [made.evaluation(step, 0.1 + entry["seed"] / 1000) for step in (700, 800)]
            (directory / layout.EVAL_MEASUREMENTS).write_text(made.csv_text(rows))
    table = build.error_table(read_study(made.root))
    assert table.rows[1].splits["test"].comparison.withheld == "lengths"
