"""The paper's figures: digits as given, each beside the study that reproduces it."""

import csv
import json

import pytest

from analysis.compare.error_table import build
from analysis.load import paper
from analysis.load.studies import read_study
from analysis.views import sentences
from sweeps.study import keys
from tests.analysis.conftest import VARIANTS

FLOAT32, BFLOAT16 = (
    {"compute_dtype": name, "param_dtype": name} for name in ("float32", "bfloat16")
)
# Printed in the paper: table, workload, config, variant, split, digits, bold.
PRINTED = [
    ("vit_error", "imagenet_vit", {}, "laser+per_dim_temp", "test", "0.3698", False),
    ("conformer_wer", "librispeech_conformer", {}, "standard", "validation", "0.083192", False),
    ("conformer_wer", "librispeech_conformer", {}, "laser+qk_norm", "test", "0.049231", True),
    ("lm_test_loss", "c4_lm_234m", {}, "standard", "test", "2.681", False),
    ("lm_test_loss", "c4_lm", {}, "laser", "test", "2.595", True),
    ("lm_test_loss", "c4_lm_435m", {}, "laser", "test", "2.555", True),
    ("lm_lamb", "c4_lm", {}, "standard", "train", "2.749", False),
    ("lm_lamb", "c4_lm", {}, "laser", "test", "2.741", False),
    ("lm_precision", "c4_lm_2b", FLOAT32, "standard", "test", "2.344", False),
    ("lm_precision", "c4_lm_2b", BFLOAT16, "standard", "test", "2.350", False),
    ("lm_scaling", "c4_lm", {}, "standard", "test", "2.641", False),
    ("lm_scaling", "c4_lm_2b", {}, "laser", "test", "2.326", False),
    ("bert_mlm_error", "wikipedia_bert_2b", {}, "laser", "test", "0.2125", False),
]
# Not printed: no such row, split, size or combination of dtypes.
ABSENT = [
    ("vit_error", "imagenet_vit_glu", {}, "standard", "test", None, False),
    ("vit_error", "imagenet_vit", {}, "diff", "test", None, False),
    ("conformer_wer", "librispeech_conformer", {}, "standard+per_dim_temp", "test", None, False),
    ("lm_test_loss", "c4_lm", {}, "laser", "validation", None, False),
    ("lm_precision", "c4_lm_2b", {"compute_dtype": "bfloat16"}, "laser", "test", None, False),
    ("lm_scaling", "c4_lm_1b", {}, "standard", "test", None, False),
]


@pytest.mark.parametrize(
    ("table", "workload", "settings", "variant", "split", "text", "bold"), PRINTED + ABSENT
)
def test_a_cell_is_what_the_paper_prints(
    table, workload, settings, variant, split, text, bold
) -> None:
    cell = paper.cell(table, paper.TABLES[table].metric, workload, settings, variant, split)
    assert cell == (text and paper.PaperCell(float(text), text, bold))


def test_every_figure_beside_ours_is_reached_by_a_study() -> None:
    """Only BERT's relative difference is no result of a variant."""
    reached = {
        (column.file, cell.text)
        for name, table in paper.TABLES.items()
        for column in table.columns
        for workload in table.models
        for settings in (FLOAT32, BFLOAT16)
        for variant in VARIANTS
        if (cell := paper.cell(name, table.metric, workload, settings, variant, column.split))
    }
    files = {file for file, _ in reached}
    printed = {(file, row["value"]) for file in files for row in paper.lines(file)}
    assert printed - reached == {("text_bert.csv", "0.93")}


def test_every_figure_of_a_suite_is_reached() -> None:
    folder = paper.DIRECTORY.parents[1] / "workloads/downstream/suites"
    for name, suite in paper.SUITES.items():
        printed = {
            (row["dataset_or_metric"], row["method"]): row["value"]
            for row in paper.lines(suite.file)
            if row["dataset_or_metric"] != "Average"
        }
        reached = {
            (suite.tasks[task], suite.methods[variant]): paper.of_suite(name, variant, task).text
            for task in suite.tasks
            for variant in suite.methods
        }
        assert reached == printed, name
        assert all(paper.of_suite(name, variant, None) for variant in suite.methods)
        tasks = json.loads((folder / f"{name}.json").read_text("utf-8"))["tasks"]
        assert {task: entry["paper"] for task, entry in tasks.items()} == suite.tasks
    assert paper.of_suite("paper_7b", "laser+temp", "cb") is None
    assert paper.of_suite("pydoc", "laser", "next") is None


def test_files_are_the_given_ones_to_the_digit(shared) -> None:
    for path in (shared / "paper").glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            assert list(csv.DictReader(file)) == paper.lines(path.name)


def test_sweeps_and_analysis_name_the_same_tables() -> None:
    assert set(paper.TABLES) == set(keys.PAPER_TABLES)


def test_an_unknown_table_is_a_problem_that_lists_those_there_are(hand_made) -> None:
    study = read_study(hand_made(record={"paper_table": "tab9"}).finish())
    assert study.paper_table == ""
    assert str(study.problems[0]).startswith(
        "unreadable: study.json: paper_table is 'tab9', not one of vit_error, conformer_wer, "
    )


def table_of(hand_made, **more):
    return hand_made(metric="loss", seeds={"standard": (2.9,)}, **more).table()


@pytest.mark.parametrize(
    ("workload", "record", "named"),
    [
        ("c4_lm_1b", {"paper_table": "lm_scaling"}, "c4_lm_1b in float32"),
        ("c4_lm_8b", {"paper_note": "downstream accuracies alone"}, "downstream accuracies alone"),
    ],
    ids=["a size that is not printed", "a note on another quantity"],
)
def test_without_a_papers_column_the_page_says_why(hand_made, workload, record, named) -> None:
    table = table_of(hand_made, workload=workload, record=record)
    assert not table.is_paper
    assert any(named in line for line in sentences.details(table))


def test_the_papers_column_is_of_its_own_metric_only(hand_made) -> None:
    table = table_of(hand_made, workload="c4_lm", record={"paper_table": "lm_test_loss"})
    assert table.is_paper
    assert not build(table.study, metric="perplexity").is_paper
