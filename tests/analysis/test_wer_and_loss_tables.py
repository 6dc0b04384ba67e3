"""Tables of speech (WER), language (loss, perplexity) and masked language (error) models."""

import math
import pathlib

import pytest

from analysis import cli
from analysis.compare import build
from analysis.compare.error_table import ErrorTable
from analysis.load.studies import read_study
from analysis.render.text import markdown
from analysis.views.table import error_table as table_view

HERE = pathlib.Path(__file__).parent
BIGRAM = {"name": "bigram", "train/loss": 3.9, "validation/loss": 4.0, "test/loss": math.log(58)}


def add_seeds(made, variant: str, values) -> None:
    """Each seed is best in the middle: lower means better, and the last step is not chosen."""
    for seed, value in enumerate(values):
        rows = [
            made.measured(1, made.metric, value + 3),
            made.measured(200, made.metric, value),
            made.measured(400, made.metric, value + 0.5),
        ]
        made.trial("compare", variant, 0, seed, rows)
    made.select({entry["variant"]: 0 for entry in made.planned["compare"]})


def table_of(made, **options) -> ErrorTable:
    return build.error_table(read_study(made.finish()), **options)


def lines_of(made, **options) -> list[str]:
    return markdown(table_view.page(table_of(made, **options))).splitlines()


@pytest.fixture
def speech(hand_made):
    """Returns the paper's six rows, one of them with three seeds and one with two."""
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
    made.reference([BIGRAM], "stand-in for C4: Python's own documentation")
    return made


def test_the_wer_table_is_the_golden_file(speech) -> None:
    """Test WER of LASER - Standard: -0.02 -0.04 -0.06, whose p is that of -0.1 -0.2 -0.3."""
    assert "\n".join(lines_of(speech)) + "\n" == (HERE / "golden_wer.md").read_text("utf-8")


def test_the_loss_table_is_the_golden_file(text) -> None:
    assert "\n".join(lines_of(text)) + "\n" == (HERE / "golden_loss.md").read_text("utf-8")


def test_the_step_is_that_of_the_lowest_validation(speech, text) -> None:
    wer, loss = table_of(speech).rows[0], table_of(text).rows[0]
    assert wer.splits["test"].values == pytest.approx({0: 0.11, 1: 0.15, 2: 0.19})
    assert loss.splits["test"].values == pytest.approx({k: math.log(20 + 20 * k) for k in range(3)})


def test_a_stand_in_without_reference_rows_is_said_too(hand_made) -> None:
    made = hand_made(workload="spoken_digits_conformer", metric="wer")
    add_seeds(made, "standard", (0.1,))
    made.reference([], "stand-in for LibriSpeech: synthesised speech")
    assert "- data: stand-in for LibriSpeech: synthesised speech" in lines_of(made)


def test_lower_is_better(hand_made) -> None:
    """Differences -0.20 -0.21 -0.22: t = -0.21 / (0.01 / sqrt 3) = -36, p = 0.0008."""
    for metric in ("wer", "loss"):
        made = hand_made(name=metric, metric=metric)
        add_seeds(made, "standard", (0.50, 0.60, 0.70))
        add_seeds(made, "laser", (0.30, 0.39, 0.48))
        comparison = table_of(made).rows[1].splits["test"].comparison
        assert comparison.p == pytest.approx(0.0008, abs=5e-5)
        assert comparison.verdict == "better"


def test_the_perplexity_is_the_median_of_the_seeds_own(hand_made) -> None:
    """Losses ln 2 and ln 8: the median of 2 and 8 is 5; exp of the median loss would be 4."""
    made = hand_made(workload="c4_lm", metric="loss")
    add_seeds(made, "standard", [math.log(value) - 0.01 for value in (2, 8)])
    row = next(line for line in lines_of(made) if line.startswith("| Standard |"))
    assert row == "| Standard | 2 | 1.3663 | 1.3763 | 1.3863 | 5.000 | 1.3863 | – | – | baseline |"


def test_perplexity_can_be_asked_for(text, capsys) -> None:
    table = table_of(text, metric="perplexity")
    assert table.rows[0].splits["test"].values == pytest.approx({0: 20, 1: 40, 2: 60})
    assert table.references[0].values["test"] == pytest.approx(58)
    assert not table.has_perplexity
    assert cli.main(["table", str(text.root), "--metric", "perplexity", "--format=csv"]) == 0
    first = capsys.readouterr().out.splitlines()[3].split(",")
    assert first[8:11] == ["test", "perplexity", "3"]
    assert float(first[11]) == pytest.approx(40)


def test_a_loss_beyond_any_perplexity_is_said(hand_made) -> None:
    made = hand_made(workload="c4_lm", metric="loss")
    add_seeds(made, "standard", (1000.0,))
    table = table_of(made, metric="perplexity")
    assert table.rows[0].splits["test"].values == {}
    assert any("no test/loss at step 200" in problem for problem in table.problems)


def test_of_masked_positions_accuracy_becomes_error(hand_made) -> None:
    made = hand_made(workload="wikipedia_bert_2b", record={"paper_table": "bert_mlm_error"})
    made.trial("compare", "laser", 0, 0, [made.evaluation(400, 0.25)])
    made.select({"laser": 0})
    lines = lines_of(made)
    assert "| LASER | 1 | – | 0.2400 | – | 0.2500 | 0.2125 | 0.2600 |" in lines
    assert any("error = 1 - accuracy over masked positions, as a fraction;" in x for x in lines)


def test_runs_show_the_workloads_metric(speech, text, capsys) -> None:
    for made, cells in ((speech, "WER | 0.60000 | 0.10000 | 200 |"), (text, "| 2.98573 | 200 |")):
        assert cli.main(["runs", str(made.finish())]) == 0
        first = next(line for line in capsys.readouterr().out.splitlines() if "trial_1 " in line)
        assert " ".join(first.split()).endswith(cells)


def test_before_any_trial_began_the_plan_says_the_metric(hand_made) -> None:
    made = hand_made(workload="c4_lm", metric="loss")
    made.trial("compare", "standard", 0, 0, None, state="pending")
    made.planned["compare"][0]["targets"] = {"metric": "loss", "validation": None, "test": None}
    root = made.finish()
    (root / made.planned["compare"][0]["path"] / "trial.json").unlink()
    assert read_study(root).runs[0].metric == "loss"
    assert table_of(made).metric.name == "loss"


def test_a_trial_that_says_nothing_does_not_speak_for_the_study(hand_made) -> None:
    """Deleted, and planned by a list without targets; the others measured a loss."""
    made = hand_made(workload="c4_lm", metric="loss", stages=("grid",))
    for seed in (0, 1):
        made.trial("grid", "standard", 0, seed, [made.measured(400, "loss", 3.0)])
    root = made.finish()
    (root / made.planned["grid"][0]["path"] / "trial.json").unlink()
    (root / made.planned["grid"][0]["path"] / "eval_measurements.csv").unlink()
    assert build.error_table(read_study(root)).metric.name == "loss"


def test_a_trial_whose_record_is_anothers_keeps_the_plans_metric(hand_made) -> None:
    made = hand_made(workload="c4_lm", metric="loss")
    made.trial("compare", "standard", 0, 0, [made.measured(400, "loss", 3.0)])
    made.planned["compare"][0]["targets"] = {"metric": "loss"}
    root = made.finish()
    (root / made.planned["compare"][0]["path"] / "trial.json").write_text('{"id": "another"}')
    assert read_study(root).runs[0].metric == "loss"
