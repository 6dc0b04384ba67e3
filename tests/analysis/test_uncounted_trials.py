"""Trials that do not count are named, and a plan changed in their favour gives no verdict."""

import shutil

import pytest

from analysis.cli import main
from analysis.compare import error_table
from analysis.load.studies import read_each
from analysis.views import sentences, summary
from sweeps.records import layout

POINTS = ({"learning_rate": 0.001}, {"learning_rate": 0.002})
BASE = (0.30, 0.31, 0.32, 0.305, 0.315)


def shifted(shift: float) -> list[float]:
    """Returns the baseline's errors plus a shift that hardly varies by seed."""
    return [error + shift + 0.001 * seed for seed, error in enumerate(BASE)]


def verdicts(table) -> dict[str, tuple[str, str]]:
    return {name: (each.verdict, each.withheld) for name, each in table.comparisons.items()}


def told(table) -> str:
    return " ".join(sentences.caveats(table))


@pytest.fixture
def two_points(hand_made):
    """Returns a study in which LASER is worse at point 0 and better at point 1, and a function that
    compares at a point, as a run after the removal of selection.json does."""
    made = hand_made(points=POINTS, config={"seeds": 5})
    for point, shift in ((0, 0.03), (1, -0.03)):
        made.add_seeds("standard", BASE, point=point)
        made.add_seeds("laser", shifted(shift), point=point)
    every = list(made.planned["compare"])

    def compare_at(point: int, keep: bool = True):
        made.planned["compare"] = [entry for entry in every if entry["point"] == point]
        if not keep:
            for entry in every:
                if entry["point"] != point:
                    shutil.rmtree(made.root / entry["path"])
        made.select({"standard": point, "laser": point})
        return made.table()

    return compare_at


def test_another_selection_gives_no_verdict(two_points) -> None:
    """`worse` at point 0 became `better` at point 1, and nothing said so."""
    for point, other in ((0, 1), (1, 0)):
        table = two_points(point)
        assert verdicts(table) == {"laser": ("cannot tell", "other points")}
        assert f"at point {other}, not counted: Standard, LASER: 5 seeds (0 to 4)" in told(table)
        assert table.by_variant["laser"].n == 5
    assert verdicts(error_table.build(table.study, preliminary=True)) == verdicts(table)
    assert set(summary.of_tables([table]).cells["left_out"]) == {"other points"}
    alone = two_points(1, keep=False)
    assert verdicts(alone) == {"laser": ("better", "")}
    assert told(alone) == ""


def test_grid_points_that_are_dropped_for_more_seeds_are_named(hand_made) -> None:
    """The baseline is best at point 1. With four seeds of point 0 alone, LASER was `better`."""
    made = hand_made(points=POINTS, stages=("grid",), config={"protocol": "grid", "seeds": 4})
    for point, count in enumerate((4, 3)):
        made.add_seeds("standard", [error - 0.06 * point for error in BASE[:count]], "grid", point)
        made.add_seeds("laser", shifted(0.05 * point - 0.03)[:count], "grid", point)
    made.planned["grid"] = [entry for entry in made.planned["grid"] if entry["point"] == 0]
    table = made.table()
    assert table.by_variant["standard"].point == 0
    assert table.comparisons["laser"].withheld == "other points"
    assert "at point 1, not counted: Standard, LASER: 3 seeds (0 to 2)" in told(table)


def test_a_variant_that_took_another_point_holds_back_only_itself(hand_made) -> None:
    """Protocol tune_each: the gate was compared at point 0 before, the others were not."""
    names = ("standard", "laser", "standard+gate")
    made = hand_made(
        names,
        POINTS,
        config={"protocol": "tune_each", "seeds": 5},
        seeds={"standard": BASE, "laser": shifted(-0.05)},
    )
    made.add_seeds("standard+gate", shifted(0.05), point=1)
    made.add_seeds("standard+gate", shifted(0.0))
    made.planned["compare"] = made.planned["compare"][:15]
    made.select({"standard": 0, "laser": 0, "standard+gate": 1})
    assert verdicts(made.table()) == {
        "laser": ("better", ""),
        "standard+gate": ("cannot tell", "other points"),
    }


@pytest.mark.parametrize(
    ("key", "values", "text"),
    [
        ("seeds", (3, 4, 5), "seeds 3, then 4, then 5"),
        ("seeds", (3, 4, 5, 3), "seeds 3, then 4, then 5, then 3"),
        ("seeds", (1, 3, 3), "seeds 1, then 3"),
        ("points", (30, 30, 2), "points 30, then 2"),
        ("baseline", ("standard", "laser"), "baseline standard, then laser"),
        ("seeds", (3, 3), ""),
    ],
)
def test_every_change_of_the_plan_is_named(hand_made, key, values, text) -> None:
    """Only the first and the last number of seeds were compared."""
    made = hand_made(seeds={"standard": BASE[:3], "laser": BASE[1:4]})
    (plan,) = made.plans()
    made.record["runs"] = [plan | {key: value} for value in values]
    notes = [note for note in sentences.caveats(made.table()) if "changed" in note]
    assert [text in note for note in notes] == [True] * bool(text)


@pytest.mark.parametrize(
    ("states", "is_lost"),
    [
        (("done", "diverged"), True),
        (("diverged", "failed"), True),
        (("done", "running"), False),
        (("diverged", "pending"), False),
        (("done", "done"), False),
    ],
)
def test_a_variant_that_was_lost_in_tuning_does_not_hold_back_the_others(
    hand_made, states, is_lost
) -> None:
    """Protocol tune_each: the gate's two tuning trials ended in `states`, or have not, and
    selection.json gives it no point; then the study stayed unfinished for ever."""
    names = ("standard", "laser", "standard+gate")
    made = hand_made(names, config={"protocol": "tune_each", "seeds": 5, "tuning_seeds": 2})
    for variant in names[:2]:
        made.add_seeds(variant, (0.3, 0.3), "tune")
    for seed, state in enumerate(states):
        made.add_seeds("standard+gate", (0.3,), "tune", first=seed, state=state)
    made.add_seeds("standard", BASE, first=2)
    made.add_seeds("laser", shifted(-0.05), first=2)
    made.record["runs"] = [{"seeds": 5, "variants": list(names)}]
    table = made.table()
    row = table.by_variant["standard+gate"]
    assert row.is_lost_in_tuning == is_lost
    assert ("lost in tuning" in row.seeds) == is_lost
    assert row.unfinished == (0 if is_lost else 5)
    expected = ("better", "") if is_lost else ("cannot tell", "unfinished")
    assert verdicts(table) == {"laser": expected}
    assert table.family == 2
    assert any("lost in tuning" in problem.text for problem in table.problems) == is_lost


@pytest.fixture
def better(hand_made):
    return hand_made(config={"seeds": 5}, seeds={"standard": BASE, "laser": shifted(-0.05)})


@pytest.mark.parametrize(
    ("key", "value", "counts"),
    [
        ("study", "other", 4),
        ("batch_size", 4096, 4),
        ("optimizer", "lamb", 4),
        ("steps", 800, 4),
        ("hyperparameters", {"learning_rate": 0.1}, 4),
        # What may differ within a study.
        ("git_commit", "b" * 40, 5),
        ("data_digest", "c" * 64, 5),
        ("mesh", [8, 1, 1], 5),
    ],
)
def test_trials_of_another_experiment_are_no_seeds(better, key, value, counts) -> None:
    """Finished trials that were copied below the study's directory counted as its seeds."""
    for entry in better.planned["compare"]:
        entry |= {"batch_size": 64, "optimizer": "nadamw"}
    plans = better.plans()
    better.planned["compare"] = [e for e in better.planned["compare"] if e["seed"] < 3]
    better.record["runs"] = plans
    for variant in ("standard", "laser"):
        better.change(variant, 3, optimizer="nadamw")
        better.change(variant, 4, **{"optimizer": "nadamw", key: value})
    table = better.table()
    assert [row.n for row in table.rows] == [counts, counts]
    named = [problem.trial for problem in table.problems if problem.kind == "mismatch"]
    others = [f"compare/{v}/imagenet_vit_jax/trial_5" for v in ("laser", "standard")]
    assert sorted(named) == (others if counts == 4 else [])
    assert not [note for note in table.study.study_notes if note.trial in named]


def test_a_copy_of_a_study_is_no_evidence(better) -> None:
    root = better.root.parent
    shutil.copytree(better.finish(), root / "tiny_backup")
    overview = summary.of_tables([error_table.build(study) for study in read_each(root)])
    assert [why.partition(" (")[0] for why in overview.cells["left_out"]] == [
        "",
        "the same trials as tiny",
    ]
    lines = overview.over[overview.over["variant"] == "laser"]
    assert set(lines["workload"]) == {"", "1"}
    (failed,) = lines[lines["quantity"] == "failed_to_train"].itertuples()
    assert failed.n == 5


def test_seeds_that_also_chose_the_point_are_named(better) -> None:
    """A study of an older version: its compared seeds begin with those of the search."""
    assert "chose" not in told(better.table())
    better.add_seeds("standard", (0.3,), "tune", first=9)
    assert "chose" not in told(better.table())
    better.add_seeds("standard", (0.3, 0.3), "tune")
    assert "Standard: 2 seeds (0 to 1)" in told(better.table())


def test_duplicates_cause_no_caveat(better) -> None:
    """A copy of a trial with other data and another commit."""
    for variant in ("standard", "laser"):
        for seed in range(5):
            better.change(variant, seed, data_digest="a" * 64, git_commit="c" * 40)
    trial = better.root / "compare/laser/imagenet_vit_jax/trial_3"
    path = trial.with_name("trial_3.bak") / layout.TRIAL
    shutil.copytree(trial, path.parent)
    other = {"data_digest": "b" * 64, "git_commit": "d" * 40}
    layout.write_json(path, layout.read_json(path) | other)
    assert told(better.table()) == ""


def test_preliminary_is_offered_only_where_it_shows_a_verdict(hand_made) -> None:
    for shift, is_offered in ((-0.1, True), (0.0, False)):
        made = hand_made(
            name=f"shift_{is_offered}",
            config={"seeds": 6},
            seeds={
                "standard": BASE,
                "laser": [e + shift + 0.001 * (-1) ** s for s, e in enumerate(BASE)],
            },
        )
        made.trial("compare", "laser", 0, 5, None, state="pending")
        table = made.table()
        assert "Unfinished" in told(table)
        assert ("--preliminary" in told(table)) == is_offered
        assert "--preliminary" not in " ".join(sentences.caveats(table, of_verdicts=False))


@pytest.mark.parametrize("command", ["ledger", "summary"])
def test_problems_of_several_studies_name_the_study(better, command, capsys) -> None:
    (better.root / "compare/laser/imagenet_vit_jax/trial_3" / layout.MEASUREMENTS).unlink()
    assert main([command, str(better.finish().parent)]) == 0
    assert "missing: tiny/compare/laser/imagenet_vit_jax/trial_3" in capsys.readouterr().out
