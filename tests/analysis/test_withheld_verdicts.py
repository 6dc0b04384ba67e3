"""Verdicts and comparisons that are withheld: what a later run plans, and caveats of trials."""

import shutil

import pytest

from analysis.cli import main
from analysis.compare import error_table, model_sizes
from analysis.compare.frames import results
from analysis.load.studies import read_each, read_study
from analysis.statistics.looks import thresholds
from analysis.views import ledger, runs, sentences, speedup, summary, time
from sweeps.records import layout

FIVE = ("standard", "laser", "standard+gate", "standard+temp", "laser+temp")
SHIFTS = dict(zip(FIVE, (0.0, -0.00558, 0.002, -0.001, 0.003), strict=True))
# Paired differences from the baseline: LASER's p is 0.0298, after Holm over four 0.119.
NOISE = (0.000, 0.004, -0.011, 0.003, -0.005, 0.008, 0.001, 0.000)


@pytest.fixture
def five(hand_made):
    """Returns a finished study of five variants and eight seeds at one point: differences from the
    baseline are a shift plus a fixed noise."""
    made = hand_made(FIVE, config={"seeds": 8, "hypothesis": "LASER errs less."})
    for variant in FIVE:
        noise = NOISE if variant != "standard" else (0.0,) * 8
        made.add_seeds(variant, [0.3 + 0.01 * s + SHIFTS[variant] + noise[s] for s in range(8)])
    return made


def plan_again(made, variants=None, seeds=None, record=None) -> None:
    """Writes what `run` with other --config.variants or --config.seeds writes: study.json, the
    selection, and a shorter trials.json. No trial's directory changes."""
    record = record if record is not None else made.plans()
    made.planned["compare"] = [
        entry
        for entry in made.planned["compare"]
        if entry["variant"] in (variants or FIVE) and entry["seed"] < (seeds or 8)
    ]
    made.config["variants"] = list(variants or FIVE)
    made.config["seeds"] = seeds or 8
    made.select(dict.fromkeys(variants or FIVE, 0))
    made.record["runs"] = [*record, *made.plans()]
    made.finish()


BOTH = {"laser": "better", "standard+gate": "worse"}


def verdicts(table) -> dict[str, str]:
    return {name: each.verdict for name, each in table.comparisons.items()}


def reasons(table) -> dict[str, str]:
    return {name: each.withheld for name, each in table.comparisons.items()}


def compared(table) -> dict[str, tuple]:
    return {
        name: (each.pairs, each.p_holm, each.verdict) for name, each in table.comparisons.items()
    }


@pytest.mark.parametrize(
    ("variants", "seeds"),
    [(("standard", "laser"), None), (None, 5), (("standard", "laser"), 3), (("laser",), None)],
    ids=["fewer variants", "fewer seeds", "fewer of both", "without the baseline"],
)
@pytest.mark.parametrize("recorded", [True, False], ids=["runs", "of an older version"])
def test_a_later_run_with_less_changes_no_verdict(five, variants, seeds, recorded) -> None:
    """p (Holm) 0.119 became 0.030, `better`; with five seeds n was 5."""
    before = compared(five.table())
    assert before["laser"] == (8, pytest.approx(0.119, abs=5e-4), "cannot tell")
    plan_again(five, variants, seeds)
    if not recorded:
        record = layout.read_json(five.root / layout.STUDY)
        del record["runs"]
        layout.write_json(five.root / layout.STUDY, record)
    table = error_table.build(read_study(five.root))
    assert compared(table) == before
    assert [(row.variant, row.n, row.unfinished) for row in table.rows] == [
        (name, 8, 0) for name in sorted(FIVE, key=[row.variant for row in table.rows].index)
    ]
    assert table.problems == ()
    assert any("counted all the same" in text for text in sentences.caveats(table))


def test_a_trial_no_longer_planned_counts_only_once_it_has_ended(five) -> None:
    """Lost seeds count as lost; trials that have not ended, or have no whole record, do not count
    and are named."""
    laser = five.root / "compare/laser/imagenet_vit_jax"
    for number, state in ((8, "diverged"), (7, "running"), (6, "pending")):
        layout.write_json(laser / f"trial_{number}" / layout.STATUS, {"state": state})
    (laser / "trial_5" / layout.TRIAL).write_text("{")
    five.record["runs"] = five.plans()
    plan_again(five, seeds=4, record=[])
    table = five.table()
    row = table.by_variant["laser"]
    assert (row.n, row.lost) == (4, {"diverged": 1})
    notes = [note.trial for note in table.study.study_notes]
    assert notes == [f"compare/laser/imagenet_vit_jax/trial_{k}" for k in (5, 6, 7)]
    page = runs.page(table.study)
    assert {problem.kind for problem in page.problems} == {"diverged"}
    assert any("(17 of 37 trials" in note for note in page.notes)


def test_a_dropped_variant_stands_at_the_point_that_all_share(hand_made) -> None:
    """Trials at a point of an earlier selection stay out of its row, as of the others'."""
    made = hand_made(points=({"learning_rate": 0.1}, {"learning_rate": 0.2}))
    for variant in ("standard", "laser"):
        for point in (0, 1):
            made.add_seeds(variant, (0.3 - 0.1 * point,) * 3, point=point)
    made.select({"standard": 0})
    made.record["runs"] = made.plans()
    made.planned["compare"] = [
        entry for entry in made.planned["compare"] if entry["variant"] == "standard"
    ]
    made.record["runs"] = [*made.record["runs"], *made.plans()]
    assert [(row.variant, row.point, row.n) for row in made.table().rows] == [
        ("standard", 0, 3),
        ("laser", 0, 3),
    ]


@pytest.mark.parametrize(("whole", "chosen"), [(3, 1), (2, 0)])
def test_a_point_that_is_no_longer_planned_is_chosen_only_with_all_its_seeds(
    hand_made, whole, chosen
) -> None:
    """Protocol grid with fewer points: the best one must not go with the plan."""
    points = ({"learning_rate": 0.1}, {"learning_rate": 0.2})
    made = hand_made(("standard",), points, stages=("grid",))
    made.add_seeds("standard", (0.3, 0.3, 0.3), "grid")
    made.add_seeds("standard", (0.2,) * whole, "grid", point=1)
    made.planned["grid"] = made.planned["grid"][:3]
    (row,) = made.table().rows
    assert (row.point, row.n) == (chosen, 3)


def unfinished(made, left: dict[str, int]) -> None:
    """Leaves the last seeds of variants pending, without measurements."""
    for variant, count in left.items():
        for seed in range(8 - count, 8):
            made.leave_pending(variant, seed)


@pytest.fixture
def decided(hand_made):
    """Returns a finished study in which LASER is better and the gate worse."""
    made = hand_made(("standard", "laser", "standard+gate"), config={"seeds": 8})
    for variant, shift in (("standard", 0.0), ("laser", -0.1), ("standard+gate", 0.1)):
        noise = 0.001 if shift else 0.0
        made.add_seeds(variant, [0.3 + shift + 0.01 * s + noise * (s % 3) for s in range(8)])
    return made


@pytest.mark.parametrize(
    ("left", "waiting"),
    [
        ({"standard": 3}, "all"),
        ({"laser": 1}, "all"),
        ({"standard+gate": 8}, "all"),
        ({}, "none"),
    ],
)
def test_a_verdict_waits_for_every_planned_trial(decided, left, waiting) -> None:
    assert verdicts(decided.table()) == BOTH
    unfinished(decided, left)
    table = decided.table()
    found = {(each.verdict, each.withheld) for each in table.comparisons.values() if each.is_tested}
    if waiting == "all":
        assert found == {("cannot tell", "unfinished")}
        assert "unfinished" in sentences.headline(table)
    else:
        assert found == {("better", ""), ("worse", "")}
        assert "unfinished" not in sentences.headline(table)
        assert list(sentences.caveats(table)) == []


def test_lost_seeds_have_ended(decided) -> None:
    """A lost seed withholds its own verdict for its own reason, and no other's."""
    decided.change("laser", 7, layout.STATUS, state="diverged")
    assert reasons(decided.table()) == {"laser": "lost seeds", "standard+gate": ""}
    unfinished(decided, {"standard+gate": 1})
    assert reasons(decided.table()) == {"laser": "lost seeds", "standard+gate": "unfinished"}
    shown = {
        name: (comparison.verdict, comparison.withheld)
        for name, comparison in decided.table(preliminary=True).comparisons.items()
    }
    assert shown == {
        "laser": ("cannot tell", "lost seeds"),
        "standard+gate": ("worse so far", "unfinished"),
    }


@pytest.mark.parametrize("seeds", [5, 8, 12])
def test_fewer_seeds_do_not_finish_a_study(decided, seeds) -> None:
    """Twelve were planned, eight are there; with 12 planned again the rest is unfinished, too."""
    start = [{**plan, "seeds": 12} for plan in decided.plans()]
    decided.planned["compare"] = [
        entry for entry in decided.planned["compare"] if entry["seed"] < seeds
    ]
    now = [{**plan, "seeds": seeds} for plan in decided.plans()]
    decided.record["runs"] = [*start, *now]
    table = decided.table()
    assert [(row.n, row.planned, row.unfinished) for row in table.rows] == [(8, 12, 4)] * 3
    assert {each.withheld for each in table.comparisons.values()} == {"unfinished"}


def test_a_dropped_variant_holds_back_only_itself(decided) -> None:
    """It had three of eight seeds; Holm's correction counts it, with or without trials."""
    unfinished(decided, {"standard+gate": 5})
    start = decided.plans()
    decided.planned["compare"] = [
        entry for entry in decided.planned["compare"] if entry["variant"] != "standard+gate"
    ]
    decided.record["runs"] = [*start, *decided.plans()]
    decided.config["variants"] = ["standard", "laser"]
    comparisons = decided.table().comparisons
    laser, gate = comparisons["laser"], comparisons["standard+gate"]
    assert (laser.verdict, laser.withheld, gate.withheld) == ("better", "", "unfinished")
    assert laser.p_holm == pytest.approx(2 * laser.p)
    shutil.rmtree(decided.root / "compare/standard+gate")
    (only,) = decided.table().comparisons.values()
    assert (only.verdict, only.p_holm) == ("better", pytest.approx(2 * only.p))


def test_a_variant_that_is_planned_and_not_begun_counts(decided) -> None:
    """`run` with one variant more has planned, and compares it after its search."""
    plans = decided.plans()
    plans.append({**plans[0], "variants": [*plans[0]["variants"], "diff"]})
    decided.record["runs"] = plans
    table = decided.table()
    assert table.by_variant["diff"].unfinished == 8
    for each in table.comparisons.values():
        assert each.withheld == "unfinished"
    assert table.family == 3
    # It can never be compared where its search lost every trial.
    decided.trial("tune", "diff", 0, 0, None, state="diverged")
    assert verdicts(decided.table()) == BOTH


def test_a_stage_that_has_not_begun_and_a_search_are_judged_by_their_own_trials(decided) -> None:
    shutil.rmtree(decided.root / "compare")
    listed = decided.planned.pop("compare")
    decided.add_seeds("standard", (0.3, 0.31, 0.32, 0.33), "tune")
    decided.add_seeds("laser", (0.2, 0.2101, 0.2204, 0.2309), "tune")
    decided.record["runs"] = [{"seeds": 8, "variants": [e["variant"] for e in listed]}]
    assert [row.unfinished for row in decided.table().rows] == [0, 0, 0]
    assert verdicts(decided.table(stage="tune")) == {"laser": "better"}
    decided.trial("tune", "laser", 0, 4, None, state="running")
    assert reasons(decided.table(stage="tune")) == {"laser": "unfinished"}


@pytest.mark.parametrize("command", ["table", "summary", "report", "ledger", "plots"])
def test_every_command_has_the_caveats_and_asked_the_verdicts_that_wait(
    decided, command, capsys, tmp_path
) -> None:
    """A plan that was changed, trials that wait, and two commits that trained the others."""
    for entry in decided.planned["compare"]:
        commit = "aaaa111" if entry["variant"] == "laser" else "bbbb222-dirty"
        meta = decided.root / entry["path"] / "meta_data_0.json"
        layout.write_json(meta, {"git_commit_hash": commit})
    decided.record["runs"] = [{**plan, "seeds": 4} for plan in decided.plans()] + decided.plans()
    unfinished(decided, {"standard": 2})
    out = tmp_path / {"report": "r.html", "plots": "plots"}.get(command, "page.txt")
    printed = {}
    for asked in ((), ("--preliminary",)):
        assert main([command, str(decided.finish()), f"--out={out}", *asked]) == 0
        text = capsys.readouterr().out if command == "plots" else out.read_text("utf-8")
        printed[bool(asked)] = " ".join(text.split())
    words = ("△", "▽") if command == "summary" else ("better so far", "worse so far")
    if command == "plots":
        words = ("`so far` marks verdicts",)
    for word in words:
        assert word in printed[True]
        assert word not in printed[False].replace("(△, ▽: so far)", "")
    assert "--preliminary" in printed[False]
    for caveat in ("Unfinished", "seeds 4, then 8", "at first: 4", "bbbb222-dirty, aaaa111"):
        assert caveat in printed[True]


@pytest.mark.parametrize(
    ("declared", "pending", "look"),
    [((8, 16), 0, 8), ((4, 8), 0, 8), ((4, 12), 0, 0), ((4, 6), 0, 0), ((4, 8), 4, 0)],
    ids=str,
)
def test_verdicts_are_given_at_declared_looks(decided, declared, pending, look) -> None:
    """Eight seeds; by the thresholds at 0.05 / 2, and not by Holm's steps. Trials wait for none."""
    unfinished(decided, dict.fromkeys(("standard", *BOTH), pending))
    decided.record["runs"] = [{**plan, "looks": declared} for plan in decided.plans()]
    table = decided.table()
    assert verdicts(table) == (BOTH if look else dict.fromkeys(BOTH, "cannot tell"))
    assert set(reasons(table).values()) == {"" if look else "unfinished"}
    threshold = thresholds(declared, 0.025)[look or declared[0]]
    assert (table.look, table.threshold) == (look, threshold)
    laser = table.comparisons["laser"]
    assert laser.p_holm == pytest.approx(laser.p * 0.05 / threshold)
    assert {row.planned for row in table.rows} == {max(8, declared[-1])}


def test_seeds_that_were_added_are_named(decided) -> None:
    """A variant that was added later has all seeds of its own first plan."""
    (now,) = decided.plans()
    decided.record["runs"] = [{**now, "seeds": 4, "variants": ["standard", "laser"]}, now]
    assert {row.variant: row.seeds for row in decided.table().rows} == {
        **dict.fromkeys(("standard", "laser"), "8 (4 planned at first)"),
        "standard+gate": "8",
    }


def test_equality_is_a_verdict_as_the_others_are(five, capsys) -> None:
    table = five.table(margin="0.02")
    assert set(verdicts(table).values()) == {"equal"}
    assert "equal within 0.02: Standard + temp (-0.0010, p <" in sentences.headline(table)
    assert "chosen after the start" in " ".join(sentences.caveats(table))
    five.record["runs"] = [{**plan, "margin": "0.02"} for plan in five.plans()]
    assert "chosen at the start" in " ".join(sentences.caveats(five.table()))
    assert "equal" not in verdicts(five.table(metric="accuracy")).values()
    five.change("laser", 7, layout.STATUS, state="diverged")
    unfinished(five, {"standard+temp": 1})
    table = five.table(preliminary=True)
    assert reasons(table)["laser"] == "lost seeds"
    assert verdicts(table)["standard+gate"] == "equal so far"
    for margin in ("5", "0,5%", "0", "nan"):
        assert main(["table", str(five.root), f"--margin={margin}"]) == 2
        assert f"margin '{margin}': give a positive number" in capsys.readouterr().err


def test_a_difference_within_the_margin_is_both(decided) -> None:
    table = decided.table(margin="100%")
    assert "; better, within 100%: LASER" in sentences.headline(table)
    assert set(summary.of_tables([table]).cells["mark"]) == {"▲=", "▼="}
    decided.change("standard", 6, layout.STATUS, state="diverged")
    assert {each.within for each in decided.table(margin="100%").comparisons.values()} == {""}


def test_the_frames_and_the_summary_keep_the_reason(decided) -> None:
    unfinished(decided, {"standard": 2})
    frame = results(decided.table(), None).query("split == 'test' and variant == 'laser'")
    assert frame[["verdict", "withheld"]].to_numpy().tolist() == [["cannot tell", "unfinished"]]
    cells = summary.of_tables([decided.table()]).cells
    assert set(cells["verdict"]) == {"withheld"}
    assert set(cells["left_out"]) == {""}
    cells = summary.of_tables([decided.table(preliminary=True)]).cells
    assert set(cells["verdict"]) == {"better so far", "worse so far"}
    assert set(ledger.page([decided.table()]).data()["withheld"]) == {"unfinished"}


def test_two_data_sets_give_no_verdict(decided) -> None:
    """Seed 7 of the baseline and of LASER on other data; the gate has no digest of seed 7."""
    for variant in ("standard", "laser", "standard+gate"):
        for seed in range(8):
            digest = "" if (variant, seed) == ("standard+gate", 7) else "ab" * 32
            decided.change(variant, seed, data_digest=digest)
    assert verdicts(decided.table()) == BOTH
    for variant, expected in (("laser", ""), ("standard", "different data")):
        decided.change(variant, 7, data_digest="cd" * 32)
        table = decided.table()
        assert reasons(table) == {"laser": "different data", "standard+gate": expected}
    (text,) = sentences.caveats(table)
    assert "cdcdcdcdcdcd (Standard, LASER: 1 seed (7))" in text
    assert set(summary.of_tables([table]).cells["left_out"]) == {"different data"}


def test_nothing_to_sum_up_says_why(hand_made, tmp_path) -> None:
    made = hand_made()
    for seed in range(3):
        made.trial("compare", "standard", 0, seed, None, state="pending")
        made.trial("compare", "laser", 0, seed, None, state="pending")
    tables = [error_table.build(study) for study in read_each(made.finish())]
    with pytest.raises(ValueError, match="tiny: Standard has no number in stage compare"):
        summary.of_tables(tables)
    assert {problem.kind for problem in tables[0].problems} == {"missing"}
    made.trial("tune", "standard", 0, 0, None, state="failed")
    assert made.table().problems[-1].kind == "elsewhere"


def test_plans_that_are_damaged_are_named(decided) -> None:
    decided.record["runs"] = [{"seeds": "8", "variants": ["standard", "laser"]}, 7]
    study = read_study(decided.finish())
    assert [plan.seeds for plan in study.plans] == [0]
    assert [problem.kind for problem in study.problems] == ["unreadable"] * 2
    assert decided.table().comparisons["laser"].pairs == 8


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
    (row,) = model_sizes.of_tables(tables_of(sizes)).savings.itertuples()
    assert (row.withheld, row.obstacle) == ("", "")
    for each in sizes if change is mix else sizes[1:2]:
        change(each)
    (row,) = model_sizes.of_tables(tables_of(sizes)).savings.itertuples()
    assert f"size_124: {reason}" in row.withheld
    assert main(["scaling", *(str(each.root) for each in sizes)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "none (see notes)" in printed
    assert ("size_124, c4_lm_124m: Unfinished" in printed) == (change is wait)
    if change is wait:
        (row,) = model_sizes.of_tables(tables_of(sizes, preliminary=True)).savings.itertuples()
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
