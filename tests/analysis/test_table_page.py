"""The page on a table: its tables, notes and verdicts, of errors, WER and loss; by hand."""

import dataclasses
import math
import pathlib
import re

import numpy as np
import pytest
from scipy import stats

from analysis.compare import sensitivity
from analysis.compare.error_table import ErrorTable, build
from analysis.compare.frames import TO_REACH, results
from analysis.load.studies import read_study
from analysis.render import printing
from analysis.views import plots, sentences
from analysis.views import table as table_view


def add_seeds(made, variant: str, values) -> None:
    """Each seed is best in the middle: lower means better, and the last step is not chosen."""
    for seed, value in enumerate(values):
        pairs = ((1, value + 3), (200, value), (400, value + 0.5))
        rows = [made.measured(step, made.metric, number) for step, number in pairs]
        made.trial("compare", variant, 0, seed, rows)


@pytest.fixture
def images(hand_made):
    """Returns a study with a comparison, a single seed, a missing trial and a reference row."""
    made = hand_made(
        points=({"learning_rate": 0.001, "beta2": 0.99},),
        seeds={"standard": (0.3, 0.5, 0.7), "laser": (0.2, 0.3, 0.4), "laser+temp": (0.25,)},
    )
    made.trial("compare", "laser+temp", 0, 1, None, state="failed", reason="out of memory")
    row = {"train/error": None, "validation/error": 0.02, "test/error": 0.015}
    made.reference([{"name": "1 nearest neighbour, raw_pixels"} | row], "stand-in for ImageNet")
    return made


@pytest.fixture
def speech(hand_made):
    """Returns the paper's six rows, one of them with three seeds and one with two. Test WER of
    LASER - Standard: -0.02 -0.04 -0.06, whose p is that of -0.1 -0.2 -0.3."""
    made = hand_made(
        name="conformer",
        workload="librispeech_conformer",
        metric="wer",
        record={"paper_table": "conformer_wer"},
    )
    for variant, values in {
        "standard": (0.10, 0.14, 0.18),
        "standard+temp": (0.14, 0.14),
        "standard+qk_norm": (0.12,),
        "laser": (0.08, 0.10, 0.12),
        "laser+temp": (0.09,),
        "laser+qk_norm": (0.07,),
    }.items():
        add_seeds(made, variant, values)
    return made


@pytest.fixture
def text(hand_made):
    """Returns three groups: Standard, LASER and both kinds of Diff; perplexities 20, 40 and 60 on
    test in the first row, 30, 32 and 34 in the second."""
    made = hand_made(name="pydoc", workload="pydoc_lm", metric="loss")
    perplexities = {
        "standard": (20, 40, 60),
        "laser": (30, 32, 34),
        "diff": (36,),
        "diff_laser": (35,),
        "diff_laser+qk_norm": (50,),
    }
    for variant, values in perplexities.items():
        add_seeds(made, variant, [math.log(value) - 0.01 for value in values])
    losses = {"train/loss": 3.9, "validation/loss": 4.0, "test/loss": math.log(58)}
    made.reference([{"name": "bigram"} | losses], "stand-in for C4: Python's own documentation")
    return made


@pytest.mark.parametrize(
    ("name", "golden"), [("images", "table"), ("speech", "wer"), ("text", "loss")]
)
def test_the_tables_are_the_golden_file(request, name, golden) -> None:
    table = request.getfixturevalue(name).table()
    page = table_view.page(table, details=True)
    tables = dataclasses.replace(page, notes=(), problems=())
    file = pathlib.Path(__file__).with_name(f"golden_{golden}.md")
    assert printing.to_markdown(tables) == file.read_text("utf-8")
    short = table_view.page(table)
    assert len(short.tables) == 1
    assert short.notes[:-1] == page.notes[: len(short.notes) - 1]


def test_the_page_in_other_formats(images) -> None:
    page = table_view.page(images.table())
    lines = printing.to_csv([page]).splitlines()
    assert len(lines) == 1 + 3 * 3 + 3
    single = dict(zip(lines[0].split(","), lines[9].split(","), strict=True))
    assert (single["variant"], single["split"], single["n"]) == ("laser+temp", "test", "1")
    assert single["sd"] == single["interval_low"] == single["p"] == ""
    name = "a|b*c_d`e [1, 2] _f_ [g](h) <i> < 1"
    escaped = r"**a\|b\*c_d\`e [1, 2] \_f\_ [g]\(h) \<i> < 1**"
    assert printing.to_markdown(dataclasses.replace(page, title=name)).startswith(escaped)


def test_the_frame_has_full_precision_and_references(images) -> None:
    frame = results(images.table(), None)
    laser = frame.query("variant == 'laser' and split == 'test'").iloc[0]
    assert laser[["median", "seeds"]].tolist() == [pytest.approx(0.31, abs=1e-12), "0 1 2"]
    assert tuple(frame.iloc[-2][["kind", "label", "split", "median"]]) == (
        *("reference", "1 nearest neighbour, raw_pixels", "validation", 0.02),
    )


@pytest.mark.parametrize("trials", [0, 1])
def test_variants_without_a_number_have_dashes(hand_made, trials) -> None:
    made = hand_made()
    for variant in ("standard", "laser", "laser+temp"):
        rows = [made.evaluation(400, 0.3)] if variant == "laser" and trials else None
        made.trial("compare", variant, 0, 0, rows, state="done" if rows else "pending")
    table = made.table()
    standard, laser, temp = table_view.page(table, details=True).tables[0].texts().values.tolist()
    none = "0 of 1 (1 unfinished)"
    assert standard == ["Standard", none, *"––––––", "baseline"]
    assert temp == ["LASER + temp", none, *"––––––", "no number"]
    if trials:
        numbers = ["0.2900", "0.3000", "0.3100", "0.3100", "–", "–"]
        assert laser == ["LASER", "1", *numbers, "cannot tell"]


@pytest.mark.parametrize(("first", "shown"), [(0, None), (1, "11"), (10, None)])
def test_the_n_of_a_test_that_leaves_runs_out(hand_made, first, shown) -> None:
    """Of 12 seeds each 12, 11 or 2 are in both; 2 are too few to pair, and all runs compare."""
    made = hand_made()
    errors = [0.5 + 0.01 * (seed * 7 % 5) for seed in range(12)]
    made.add_seeds("standard", errors)
    made.add_seeds("laser", [error - 0.1 for error in errors], first=first)
    frame = table_view.page(made.table()).tables[0].frame
    assert frame.get("n of\ntest", [None, None])[1] == shown


def test_perplexities(hand_made, text) -> None:
    """Losses ln 2 and ln 8: the median of 2 and 8 is 5; exp of the median loss would be 4. A loss
    of 1000 has no finite perplexity."""
    made = hand_made(workload="c4_lm", metric="loss")
    add_seeds(made, "standard", [math.log(value) - 0.01 for value in (2, 8)])
    frame = table_view.page(made.table()).tables[0].frame
    assert frame["Test\nperplexity"][0] == pytest.approx(5)
    add_seeds(made, "laser", (1000.0,))
    table = made.table(metric="perplexity")
    assert table.rows[1].splits["test"].values == {}
    assert {problem.kind for problem in table.problems} == {"missing"}
    table = text.table(metric="perplexity")
    assert table.rows[0].splits["test"].values == pytest.approx({0: 20, 1: 40, 2: 60})
    assert table.references[0].values["test"] == pytest.approx(58)


@pytest.mark.parametrize("damage", ["nothing measured", "another's record", "deleted"])
def test_the_plan_or_the_others_say_the_metric(hand_made, damage) -> None:
    """Before any trial began; of a trial whose record is another's; of one that was deleted."""
    made = hand_made(workload="c4_lm", metric="loss", stages=("grid",))
    for seed in (0, 1):
        rows = None if damage == "nothing measured" else [made.measured(400, "loss", 3.0)]
        made.trial("grid", "standard", 0, seed, rows, state="done" if rows else "pending")
    if damage != "deleted":
        for entry in made.planned["grid"]:
            entry["targets"] = {"metric": "loss", "validation": None, "test": None}
    directory = made.finish() / made.planned["grid"][0]["path"]
    (directory / "trial.json").unlink()
    if damage == "another's record":
        (directory / "trial.json").write_text('{"id": "another"}')
    (directory / "eval_measurements.csv").unlink(missing_ok=True)
    study = read_study(made.root)
    assert study.runs[0].metric == ("accuracy" if damage == "deleted" else "loss")
    assert build(study).metric.name == "loss"


@pytest.fixture
def compared(hand_made) -> ErrorTable:
    """Five seeds: LASER is 0.05 better, sd 0.001; +temp is not told apart; QK is worse. Test errors
    are 0.01 above validation: the baseline has median and mean 0.3125; LASER has 0.259, 0.281,
    0.24, 0.27, 0.2625."""
    made = hand_made(variants=("standard", "laser", "laser+temp", "laser+qk_norm"))
    base = np.array([0.30, 0.32, 0.28, 0.31, 0.3025])
    for variant, shifts in {
        "standard": (0, 0, 0, 0, 0),
        "laser": (-0.051, -0.049, -0.050, -0.050, -0.050),
        "laser+temp": (-0.02, 0.03, -0.01, 0.02, 0.005),
        "laser+qk_norm": (0.10, 0.11, 0.12, 0.11, 0.11),
    }.items():
        made.add_seeds(variant, (base + np.array(shifts)).tolist())
    return made.table()


def test_verdicts_of_every_variant(compared) -> None:
    words = {row.label: sentences.word(compared, row) for row in compared.rows}
    assert words == {
        "Standard": "baseline",
        "LASER": "better",
        "LASER + temp": "cannot tell",
        "LASER + QK-normalization": "worse",
    }
    headline = sentences.headline(compared)
    places = [
        headline.index(f"{label} (") for label in ("LASER", *list(words)[3:], *list(words)[2:3])
    ]
    assert places == sorted(places)
    assert "LASER (-0.0500, p " in headline
    power = sensitivity.of_table(compared, "test", {})["laser+temp"].detectable.value
    assert re.search(rf"\+ temp \(\+0\.0050, p = [\d.]+; detectable: {power:.2g}\)", headline)
    assert headline.count("detectable") == 1
    figure = plots.effects(compared).dropna(subset="difference")
    assert np.allclose(figure["difference"], [-0.05, 0.005, 0.11])
    assert figure["verdict"].tolist() == ["better", "cannot tell", "worse"]


def _too_few(table) -> list[str]:
    return [note for note in table_view.page(table).notes if note.startswith("Too few seeds")]


@pytest.mark.parametrize(
    ("seeds", "others", "least", "enough"),
    [(3, 0, "0.25", 6), (5, 0, "0.062", 6), (2, 0, "0.5", 6), (3, 1, "0.5", 7), (6, 0, "", 0)],
)
def test_equal_differences_need_as_many_seeds_as_sign_flips_say(
    hand_made, seeds, others, least, enough
) -> None:
    """2 / 2^n: 0.0625 of 5 and 0.03125 of 6; twice that beside another variant whose p is large."""
    names = ("standard", "laser", "diff")[: 2 + others]
    made = hand_made(names)
    base = [0.5 + 0.01 * seed**2 for seed in range(seeds)]
    made.add_seeds("standard", base)
    made.add_seeds("laser", [error - 0.1 for error in base])
    if others:
        made.add_seeds("diff", [error + 0.01 * (-1) ** seed for seed, error in enumerate(base)])
    notes = _too_few(made.table())
    assert len(notes) == bool(enough)
    for note in notes:
        assert "LASER:" in note
        assert f"below {least}." in note
        assert f"{enough} seeds" in note


def test_a_verdict_is_not_called_impossible(hand_made) -> None:
    """5 unpaired seeds among 7 variants: 7 · 2 / 252 = 0.056. But six others are told apart,
    so that Holm's correction takes 1 · 2 / 252."""
    names = ("standard", *(f"diff+{name}" for name in ("temp", "gate", "xsa", "fox", "sink")))
    names += ("sigmoid", "softpick")
    base = [0.5, 0.51, 0.52, 0.53, 0.54]
    made = hand_made(names, seeds={"standard": base})
    for rank, name in enumerate(names[1:-1]):
        spread = [0.0001 * ((seed + rank) % 3) for seed in range(5)]
        made.add_seeds(name, [x - 0.1 - y for x, y in zip(base, spread, strict=True)])
    made.add_seeds("softpick", [0.7 + 0.01 * seed for seed in range(5)], first=10)
    table = made.table()
    softpick = table.comparisons["softpick"]
    assert (softpick.test, softpick.verdict) == ("permutation", "worse")
    assert 7 * softpick.smallest_p > 0.05
    assert _too_few(table) == []


def test_without_baseline_or_with_one_seed_there_is_no_verdict(hand_made) -> None:
    made = hand_made(seeds={"standard": (0.3,), "laser": (0.2,)})
    table = made.table()
    assert sentences.word(table, table.rows[1]) == "cannot tell"
    assert "-0.1000" in sentences.headline(table)
    other = made.table(baseline="diff")
    assert {sentences.word(other, row) for row in other.rows} == {"not compared"}
    assert "Diff" in sentences.headline(other)
    assert any("'diff'" in note for note in table_view.page(other).notes)
    assert plots.effects(other)["difference"].isna().all()


def test_what_training_took_stands_beside_the_results(hand_made) -> None:
    """Medians over seeds of FLOP a step x steps and of seconds; a dash where none are recorded."""
    made = hand_made()
    for seed, seconds in enumerate((30.0, 10.0, 20.0)):
        rows = [made.evaluation(400, 0.3) | {"accumulated_submission_time": seconds}]
        made.trial("compare", "standard", 0, seed, rows, meta={"model_flops_per_step": 5e6})
    made.add_seeds("laser", (0.3, 0.3, 0.3))
    page = table_view.page(made.table())
    texts = page.tables[0].texts().set_index("Variant")
    assert texts["Training\nFLOP"].tolist() == ["2.00e+09", "–"]
    assert texts["Training\nseconds"].tolist() == ["20", "–"]
    data = page.data().query("split == 'test'").set_index("variant")
    assert data.loc["standard", ["train_flop", "train_seconds"]].tolist() == [2e9, 20]


@pytest.mark.parametrize(("metric", "alternative"), [("error", "less"), ("accuracy", "greater")])
def test_a_target_is_tested_against_the_mean(hand_made, metric, alternative) -> None:
    """By scipy: p, and the first n whose p is below 0.001, at the SD and the ends of its range."""
    made, errors = hand_made(), np.array([0.27, 0.25, 0.33, 0.25])
    for variant, values in {
        "standard": errors,
        "standard+temp": (0.25, 0.25),
        "laser": errors + 0.35,
        "laser+temp": (0.25,),
        "diff": (0.2, 0.3, 0.25),
    }.items():
        made.add_seeds(variant, values)
    made.trial("compare", "diff", 0, 3, [], state="diverged")
    target = 0.31 if metric == "error" else 0.69  # errors on test are 0.01 above
    page = table_view.page(made.table(metric=metric, preliminary=True), target=target)
    lines = page.data().query("split == 'test'").set_index("variant")
    values = [float(value) for value in lines["values"]["standard"].split()]
    p = stats.ttest_1samp(values, target, alternative=alternative).pvalue
    assert lines["target_p"]["standard"] == pytest.approx(p)
    assert lines[[*TO_REACH]].loc["standard"].tolist() == [
        next(n for n in range(2, 999) if stats.t.sf(0.025 / sd * n**0.5, n - 1) < 0.001)
        for sd in np.std(values, ddof=1) * np.sqrt([1, *(3 / stats.chi2.ppf((0.95, 0.05), 3))])
    ]
    assert lines["target_seeds"]["laser"] == math.inf
    reasons = ["", "all seeds equal", "", "one seed", "lost seeds"]
    assert lines["target_untested"][[*made.table().by_variant]].tolist() == reasons
    with pytest.raises(ValueError, match="--target="):
        table_view.page(made.table(), target=3.28)
