"""Pages without verdicts name the caveats of their trials, and withhold what these forbid."""

import pytest

from analysis.cli import main
from analysis.compare import error_table
from analysis.load.studies import read_study
from analysis.views import scaling, speedup, time
from sweeps.records import layout

BASE = (3.0, 3.1, 3.2, 3.05, 3.15)


def study_of(hand_made, name, variants, shift, workload="c4_lm", steps=400, parameters=10**6):
    """Returns a finished study of losses, five seeds of each variant."""
    config = {"seeds": 5, "workload": workload, "steps": steps}
    made = hand_made(variants, name=name, config=config, metric="loss", workload=workload)
    meta = {"model_flops_per_step": 1e9, "parameters": parameters}
    keys = {"steps": steps, "meta": meta, "data_digest": "a" * 64}
    for variant in variants:
        for seed, base in enumerate(BASE):
            loss = 0.1 * base + shift + (0.0 if variant == "standard" else 0.002 * seed - 0.1)
            rows = [made.measured(steps // 2, "loss", 5.0), made.measured(steps, "loss", loss)]
            timed = [row | {"accumulated_submission_time": row["global_step"]} for row in rows]
            made.trial("compare", variant, 0, seed, timed, **keys)
    made.finish()
    return made


def wait(made) -> None:
    """Leaves the baseline's last seed pending."""
    made.leave_pending("standard", 4)


def mix(made) -> None:
    """Trains the last seed of every variant on other data."""
    for variant in {entry["variant"] for entry in made.planned["compare"]}:
        made.change(variant, 4, data_digest="b" * 64)


def tables_of(studies, preliminary=False):
    return [error_table.build(read_study(each.root), preliminary=preliminary) for each in studies]


CHANGES = pytest.mark.parametrize(
    ("change", "reason"), [(wait, "unfinished"), (mix, "different data")]
)


@pytest.fixture
def sizes(hand_made):
    named = (("c4_lm_57m", 57, 4.0), ("c4_lm_124m", 124, 3.6), ("c4_lm", 300, 3.2))
    return [
        study_of(
            hand_made, f"size_{n}", ("standard", "laser"), shift, workload, parameters=n * 10**6
        )
        for workload, n, shift in named
    ]


@CHANGES
def test_a_saving_of_parameters_is_withheld(sizes, change, reason, capsys) -> None:
    (row,) = scaling.of_tables(tables_of(sizes)).savings.itertuples()
    assert (row.withheld, row.obstacle) == ("", "")
    for each in sizes if change is mix else sizes[1:2]:
        change(each)
    (row,) = scaling.of_tables(tables_of(sizes)).savings.itertuples()
    assert f"size_124: {reason}" in row.withheld
    assert main(["scaling", *(str(each.root) for each in sizes)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "none (see notes)" in printed
    assert ("size_124, c4_lm_124m: Unfinished" in printed) == (change is wait)
    if change is wait:
        (row,) = scaling.of_tables(tables_of(sizes, preliminary=True)).savings.itertuples()
        assert row.withheld == ""


@pytest.fixture
def budgets(hand_made):
    every = [study_of(hand_made, "b400", ("standard", "laser"), 0.2)]
    for steps, shift in ((200, 0.4), (800, 0.0), (1600, -0.1)):
        every.append(study_of(hand_made, f"b{steps}", ("standard",), shift, steps=steps))
    return every


@pytest.mark.parametrize("place", [0, 2], ids=["the variant's study", "a budget"])
def test_a_speed_up_waits_for_all_trials(budgets, place, capsys) -> None:
    (row,) = speedup.of_tables(tables_of(budgets)).rows.itertuples()
    assert (row.why, row.needed > 0) == ("", True)
    wait(budgets[place])
    (row,) = speedup.of_tables(tables_of(budgets)).rows.itertuples()
    name = budgets[place].config["name"]
    assert row.why == f"withheld ({name}: unfinished)"
    assert main(["speedup", *(str(each.root) for each in budgets)]) == 0
    assert f"{name}, c4_lm: Unfinished" in " ".join(capsys.readouterr().out.split())


@CHANGES
def test_a_speed_up_to_the_target_is_withheld(budgets, change, reason, capsys) -> None:
    made = budgets[0]
    options = {"target": 2.0, "metric": "loss"}
    (table,) = tables_of([made])
    assert set(time.build(table, **options).rows["withheld"]) == {""}
    change(made)
    (table,) = tables_of([made])
    rows = time.build(table, **options).rows.set_index("variant")
    assert rows["withheld"]["laser"] == reason
    assert main(["time", str(made.root), "--target=2.0", "--metric=loss"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count(f"withheld ({reason})") == 2
    assert ("Unfinished" if change is wait else "different data: aaaaaaaaaaaa") in printed
    assert "--preliminary" not in printed


def test_downstream_and_spikes_name_the_caveats(budgets, answered, capsys) -> None:
    made = budgets[0]
    for entry in made.planned["compare"]:
        answered.write(made.root / entry["path"], {"next": {"acc": [1, 0, 1, 1]}})
        losses = "".join(f"{step},{5 - 0.01 * step}\n" for step in range(1, 401))
        text = f"global_step,loss\n{losses}"
        (made.root / entry["path"] / layout.MEASUREMENTS).write_text(text)
    mix(made)
    wait(made)
    for command in ("downstream", "spikes"):
        assert main([command, str(made.root)]) == 0, command
        printed = " ".join(capsys.readouterr().out.split())
        assert "Unfinished (planned trials that have not ended: Standard 1)" in printed
        assert "different data" in printed
        assert "--preliminary" not in printed
