"""Trials that do not count are named, and a plan that was changed in their favour gives no verdict."""

import dataclasses
import json
import shutil

import pytest

from analysis.cli import main
from analysis.compare import error_table, sentences, summary
from analysis.load.studies import read_each, read_study
from sweeps.records import layout

POINTS = ({"learning_rate": 0.001}, {"learning_rate": 0.002}, {"learning_rate": 0.003})
BASE = (0.30, 0.31, 0.32, 0.305, 0.315)


def table_of(made, **options):
    return error_table.build(read_study(made.root), **options)


def verdicts(table) -> dict[str, tuple[str, str]]:
    return {name: (each.verdict, each.withheld) for name, each in table.comparisons.items()}


def told(table) -> str:
    return " ".join(sentences.caveats(table))


@pytest.fixture
def two_points(hand_made):
    """Returns a study in which LASER is worse at point 0 and better at point 1, and a function that
    compares at a point, as `run --selection=new` does."""
    made = hand_made(points=POINTS[:2], config={"seeds": 5})
    for point, shift in ((0, 0.03), (1, -0.03)):
        for seed, error in enumerate(BASE):
            for variant, more in (("standard", 0.0), ("laser", shift + 0.001 * seed)):
                made.trial("compare", variant, point, seed, [made.evaluation(400, error + more)])
    every = list(made.planned["compare"])

    def compare_at(point: int, keep: bool = True):
        made.planned["compare"] = [entry for entry in every if entry["point"] == point]
        if not keep:
            for entry in every:
                if entry["point"] != point:
                    shutil.rmtree(made.root / entry["path"])
        made.select({"standard": point, "laser": point})
        made.finish()
        return table_of(made)

    return compare_at


def test_another_selection_gives_no_verdict(two_points) -> None:
    """`worse` at point 0 became `better` at point 1, and nothing said so."""
    for point, other in ((0, 1), (1, 0)):
        table = two_points(point)
        assert verdicts(table) == {"laser": ("cannot tell", "other points")}
        assert f"at point {other}, not counted: Standard, LASER: 5 seeds (0 to 4)" in told(table)
        assert table.by_variant["laser"].n == 5
    assert set(summary.of_tables([table]).cells["left_out"]) == {"other points"}
    alone = two_points(1, keep=False)
    assert verdicts(alone) == {"laser": ("better", "")}
    assert told(alone) == ""


def test_preliminary_does_not_show_what_other_points_withhold(two_points) -> None:
    made = two_points(1).study
    table = error_table.build(made, preliminary=True)
    assert verdicts(table) == {"laser": ("cannot tell", "other points")}


@pytest.mark.parametrize("command", ["table", "summary", "ledger", "report", "plots", "runs"])
def test_every_command_names_the_other_points(two_points, command, capsys, tmp_path) -> None:
    root = two_points(1).study.directory
    out = tmp_path / {"report": "r.html", "plots": "plots"}.get(command, "page.txt")
    assert main([command, str(root), *([] if command == "runs" else [f"--out={out}"])]) == 0
    printed = capsys.readouterr().out
    if command not in ("plots", "runs"):
        printed = out.read_text("utf-8")
    printed = " ".join(printed.split())
    if command == "runs":
        assert "counted all the same" not in printed
        assert "not planned now, counted" not in printed
    else:
        assert "at point 0, not counted" in printed


@pytest.mark.parametrize("seeds", [3, 4], ids=["as many seeds", "more seeds"])
def test_grid_points_that_are_dropped_for_more_seeds_are_named(hand_made, seeds) -> None:
    """The baseline is best at point 2. With four seeds of point 0 alone, LASER was `better`."""
    made = hand_made(points=POINTS, stages=("grid",), config={"protocol": "grid", "seeds": seeds})
    shifts = {("standard", 0): 0.0, ("standard", 2): -0.06, ("laser", 0): -0.03}
    for point in range(3):
        for variant in ("standard", "laser"):
            for seed in range(seeds if point == 0 else 3):
                error = BASE[seed] + shifts.get((variant, point), 0.02)
                error += 0.001 * seed * (variant == "laser")
                made.trial("grid", variant, point, seed, [made.evaluation(400, error)])
    made.planned["grid"] = [entry for entry in made.planned["grid"] if entry["point"] == 0]
    made.finish()
    table = table_of(made)
    if seeds == 3:
        assert table.by_variant["standard"].point == 2
        assert not any(row.uncounted for row in table.rows)
        assert table.comparisons["laser"].withheld == ""
    else:
        assert table.by_variant["standard"].point == 0
        assert table.comparisons["laser"].withheld == "other points"
        for point in (1, 2):
            assert f"at point {point}, not counted: Standard, LASER: 3 seeds (0 to 2)" in told(
                table
            )


def test_a_variant_that_took_another_point_holds_back_only_itself(hand_made) -> None:
    """Protocol tune_each: the gate was compared at point 0 before, the others were not."""
    names = ("standard", "laser", "standard+gate")
    made = hand_made(names, POINTS[:2], config={"protocol": "tune_each", "seeds": 5})
    for variant, point, shift in (
        *zip(names, (0, 0, 1), (0.0, -0.05, 0.05), strict=True),
        (names[2], 0, 0),
    ):
        for seed, error in enumerate(BASE):
            rows = [made.evaluation(400, error + shift + 0.001 * seed * (variant != "standard"))]
            made.trial("compare", variant, point, seed, rows)
    made.planned["compare"] = made.planned["compare"][:15]
    made.select({"standard": 0, "laser": 0, "standard+gate": 1})
    made.finish()
    assert verdicts(table_of(made)) == {
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
    made = hand_made()
    made.add_seeds("standard", BASE[:3])
    made.add_seeds("laser", BASE[1:4])
    (plan,) = made.plans()
    made.record["runs"] = [plan | {key: value} for value in values]
    made.finish()
    found = [each for each in sentences.caveats(table_of(made)) if "changed" in each]
    assert [text in each for each in found] == [True] * bool(text)


def test_a_study_of_an_older_version_has_a_plan(hand_made) -> None:
    made = hand_made()
    made.add_seeds("standard", BASE[:3])
    made.finish()
    record = json.loads((made.root / layout.STUDY).read_text())
    del record["runs"]
    layout.write_json(made.root / layout.STUDY, record)
    study = read_study(made.root)
    assert study.problems == ()
    assert [(plan.seeds, plan.points, plan.baseline) for plan in study.plans] == [
        (3, 0, "standard")
    ]
