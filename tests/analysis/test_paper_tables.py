"""The paper's tables as printed, and every statement about what holds in them, recomputed."""

import csv
import json
import pathlib
import statistics

import pytest

from analysis.cli import main
from analysis.load import paper
from analysis.render.text import markdown
from analysis.render.text import render as to_text
from analysis.views import paper as paper_tables

GIVEN = pathlib.Path(__file__).resolve().parents[3] / "shared" / "paper"


def values(file: str, heading: str | None = None, **where: str) -> dict[str, float]:
    """Returns the printed numbers of a file, by task (or by method under `heading`)."""
    rows = [row for row in paper.lines(file) if all(row[k] == v for k, v in where.items())]
    if heading:
        return {row["method"]: float(row["value"]) for row in rows
                if row["dataset_or_metric"] == heading}  # fmt: skip
    return {row["dataset_or_metric"]: float(row["value"]) for row in rows}


def noted(key: str, *texts: str) -> None:
    """Asserts that the table's notes say `texts`."""
    said = " ".join(paper.PRINTED[key].notes)
    for text in texts:
        assert text in said


@pytest.mark.parametrize(
    ("method", "printed", "recomputed"),
    [
        ("LASER", "63.39", "63.51"),
        ("Standard", "62.34", "62.47"),
        ("Standard+temp", "62.49", "62.49"),
        ("LASER+per-dim-temp", "63.52", "63.65"),
        ("Standard+per-dim-temp", "62.56", "62.67"),
    ],
)
def test_one_shot_means(method, printed, recomputed) -> None:
    rows = values("tab_one_shot.csv", method=method)
    assert len(rows) == 16
    assert f"{statistics.fmean(rows.values()):.2f}" == recomputed
    claims = {row["method"]: row["value"] for row in paper.lines("claims.csv")
              if row["dataset_or_metric"] == "one-shot mean accuracy (caption)"}  # fmt: skip
    assert claims[method] == printed
    noted("one_shot", printed, recomputed)


def test_one_shot_largest_differences() -> None:
    laser, standard = (values("tab_one_shot.csv", method=name) for name in ("LASER", "Standard"))
    apart = {task: round(laser[task] - standard[task], 2) for task in laser}
    assert sorted(apart.values())[-2:] == [2.42, 5.0]
    assert (apart["COPA"], apart["MultiRC"]) == (5.0, 2.42)
    assert 3.38 not in apart.values()
    assert {task for task, value in apart.items() if value < 0} == {
        "WiC", "OpenBookQA", "Winograd"
    }  # fmt: skip
    noted("one_shot", "COPA +5.00", "MultiRC +2.42", "WiC, OpenBookQA and Winograd", "ARC")


@pytest.mark.parametrize(
    ("file", "means"),
    [
        ("tab_7b_results.csv", {"LASER": "53.97", "Standard": "52.53"}),
        ("tab_diff_results.csv", {"Diff+LASER": "51.52", "DiffTransformer": "50.59"}),
        ("tab_superglue_results.csv", {"LASER": "44.01", "Standard": "42.35"}),
    ],
)
def test_printed_averages_are_those_of_the_rows(file, means) -> None:
    for method, mean in means.items():
        rows = values(file, method=method)
        printed = rows.pop("Average")
        assert printed == float(mean)
        assert statistics.fmean(rows.values()) == pytest.approx(printed, abs=0.006)


def test_superglue_s_difference_and_chance() -> None:
    average = values("tab_superglue_results.csv", "Average")
    assert round(average["LASER"] - average["Standard"], 2) == 1.66
    for task in ("RTE", "WSC"):
        assert max(values("tab_superglue_results.csv", task).values()) < 50
    noted("superglue", "44.01 - 42.35 = 1.66", "below chance")


def test_fluctuation_is_of_the_per_dim_columns() -> None:
    """Its rows lie nearer to those of the per-dim temperature on average, and its +- are means."""
    for method, spread in (("LASER", "0.26"), ("Standard", "0.23")):
        rows = values("tab_fluctuation.csv", method=method)
        near, far = (
            statistics.fmean(abs(rows[task] - other[task]) for task in rows)
            for other in (
                values("tab_one_shot.csv", method=f"{method}+per-dim-temp"),
                values("tab_one_shot.csv", method=method),
            )
        )
        assert near < 0.5 < far
        spreads = [float(row["std"]) for row in paper.lines("tab_fluctuation.csv")
                   if row["method"] == method]  # fmt: skip
        assert len(spreads) == 16
        assert f"{statistics.fmean(spreads):.2f}" == spread
    noted("fluctuation", "0.26", "0.23", "per-dim temperature")


def test_hours_to_loss() -> None:
    hours = values("text_hours_to_loss.csv", "hours to test loss 2.327 on TPU v5")
    assert hours == {"Standard": 27.22, "LASER": 24.88}
    assert round(100 * (hours["Standard"] / hours["LASER"] - 1), 1) == 9.4
    assert round(100 * (1 - hours["LASER"] / hours["Standard"]), 1) == 8.6
    noted("hours_to_loss", "9.4 %", "8.6 %")


def test_relative_improvements_that_hold() -> None:
    pair = values("tab_testloss.csv", "C4 test loss", model="decoder-LM-32L-mlp2048-d1024-h8x128")
    assert round(100 * (1 - pair["LASER"] / pair["Standard"]), 2) == 1.74
    bert = values("text_bert.csv", "MLM prediction error rate")
    assert round(100 * (1 - bert["LASER"] / bert["Standard"]), 2) == 0.93
    noted("lm_test_loss", "1.74 %")
    noted("bert_mlm_error", "0.93 %")


def test_vit_and_conformer_pairs() -> None:
    vit = values("tab_vit_error.csv", "Valid Error")
    points = {
        "1.15": vit["Standard"] - vit["LASER"],
        "1.32": vit["Standard + per-dim temp"] - vit["LASER + per-dim temp"],
        "0.83": vit["Standard + QK-normalization"] - vit["LASER + QK-normalization"],
        "0.38": vit["Standard + QK-normalization"] - vit["LASER"],
    }
    assert {text: f"{100 * value:.2f}" for text, value in points.items()} == {t: t for t in points}
    noted("vit_error", *points, "0.2168")
    valid = values("tab_conformer_wer.csv", "Valid WER")
    assert round(100 * (valid["Standard"] - valid["LASER"]), 2) == 0.03
    for heading in ("Train WER", "Valid WER", "Test WER"):
        rows = values("tab_conformer_wer.csv", heading)
        assert rows["Standard + QK-Normalization"] < rows["LASER"]
    noted("conformer_wer", f"{valid['LASER + QK-Normalization']}", "0.030084", "0.03 points")


def test_losses_of_one_model_that_differ() -> None:
    assert values("tab_bf16.csv", "loss FP32")["Standard"] == 2.344
    for key in ("lm_precision", "lm_scaling", "hours_to_loss"):
        noted(key, "2.344", "2.347", "2.327")


def test_tokens_and_points_of_the_search() -> None:
    assert f"{160_000 * 1024 * 1024 / 1e9:.1f}" == "167.8"
    lists = [
        row["value"]
        for row in paper.lines("search_spaces.csv")
        if row["method"] == "feasible_points" and row["value"].startswith("[")
    ]
    assert [len(text.split(",")) for text in lists] == [5, 3]
    noted("search_spaces", "15 = 5 x 3")


def test_every_printed_number_of_every_file_is_in_some_table() -> None:
    printed = {cell.text.split(" ")[0] for document in paper_tables.pages()
               for grid in document.tables for section in grid.sections
               for row in section for cell in row}  # fmt: skip
    files = {path.name for path in paper.DIRECTORY.glob("*.csv")} - {"algoperf_targets.csv"}
    assert files == {file for table in paper.PRINTED.values() for file in table.files}
    for file in files:
        for row in paper.lines(file):
            assert row["value"].split(" ")[0] in printed, (file, row)


@pytest.mark.skipif(not GIVEN.is_dir(), reason="the given figures are not here")
def test_files_are_the_given_ones_to_the_digit() -> None:
    for path in GIVEN.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            assert tuple(csv.DictReader(file)) == paper.lines(path.name)


def test_tables_say_whether_they_are_measured() -> None:
    for key in paper.PRINTED:
        text = to_text(paper_tables.page(key))
        assert ("paper only, not measured" in text) == (key == "bf16_reconstruction"), key
    assert set(paper.TABLES) <= set(paper.PRINTED)


# Questions of each task; k of n to two decimals are a task's possible scores.
QUESTIONS = {
    "WSC": 285, "Winograd": 273, "Winogrande": 1267, "WiC": 638, "StoryCloze": 1871, "RTE": 277,
    "ReCoRD": 10_000, "RaceM": 1436, "RaceH": 3498, "PIQA": 1838, "OpenBookQA": 500, "ArcE": 2376,
    "OpenbookQA": 500, "MultiRC": 4848, "HellaSwag": 10_042, "COPA": 100, "CB": 56, "BoolQ": 3270,
}  # fmt: skip


def is_share(text: str, n: int) -> bool:
    near = round(float(text) / 100 * n)
    return any(f"{100 * k / n:.2f}" == text for k in (near - 1, near, near + 1))


def no_shares(file: str, checkpoints: int = 1, **other: int) -> dict[str, list[str]]:
    """Returns, by method, the tasks whose cell is no k of n questions."""
    found: dict[str, list[str]] = {}
    for row in paper.lines(file):
        task = row["dataset_or_metric"]
        if task != "Average":
            of = found.setdefault(row["method"], [])
            if not is_share(row["value"], checkpoints * (QUESTIONS | other)[task]):
                of.append(task)
    return found


def test_cells_that_are_no_share_of_the_questions() -> None:
    one_shot = no_shares("tab_one_shot.csv")
    assert len(one_shot.pop("Standard+temp")) == 6
    assert set(map(len, one_shot.values())) == {0}
    assert set(map(len, no_shares("tab_one_shot.csv", 5).values())) == {0}
    noted("one_shot", "6 of 16 are not", "WSC 285, Winograd 273, RTE 277, CB 56")
    assert sum(map(len, no_shares("tab_diff_results.csv").values())) == 7
    assert values("tab_diff_results.csv", method="Diff+LASER")["CB"] == 42.85
    assert f"{100 * 24 / 56:.2f}" == "42.86"
    noted("diff_results", "7 of the 20", "42.85", "24 of 56 are 42.86")
    assert no_shares("tab_superglue_results.csv", WSC=104) == {"LASER": ["WiC"], "Standard": []}
    assert f"{100 * 38 / 104:.2f}" == "36.54"
    noted("superglue", "104 questions", "36.54 are 38 of 104", "56.64", "638")


def test_a_mean_over_tasks_has_a_standard_error_of_0_60_points_over_questions() -> None:
    """docs/analysis.md states it beside the printed 0.26."""
    for method in ("LASER+per-dim-temp", "Standard+per-dim-temp"):
        cells = values("tab_one_shot.csv", method=method)
        variances = [v * (100 - v) / QUESTIONS[task] for task, v in cells.items()]
        assert f"{sum(variances) ** 0.5 / 16:.1f}" == "0.6"


def test_the_spread_of_a_task_divides_by_the_number_of_checkpoints() -> None:
    """Five shares of 56 questions with a mean of 40.00 (k of 22 and 23) or 43.93 (24 and 25)."""
    rows = [row for row in paper.lines("tab_fluctuation.csv") if row["dataset_or_metric"] == "CB"]
    for row, ks in zip(rows, ([22, 22, 22, 23, 23], [24, 24, 25, 25, 25]), strict=True):
        shares = [100 * k / 56 for k in ks]
        assert f"{statistics.fmean(shares):.2f}" == row["value"]
        assert f"{statistics.pstdev(shares):.2f}" == row["std"] == "0.87"
        assert f"{statistics.stdev(shares):.2f}" == "0.98"
    noted("fluctuation", "0.87", "0.98")


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("one_shot", {"LASER": 61.52, "Standard": 60.24, "LASER+per-dim-temp": 61.47,
                      "Standard+per-dim-temp": 60.85}),
        ("7b_results", {}), ("diff_results", {}), ("superglue", {}), ("fluctuation", {}),
    ],
)  # fmt: skip
def test_means_that_do_not_follow_from_their_rows(key, wrong) -> None:
    found = paper.means(key)
    assert {each.method: round(each.implied, 2) for each in found if not each.follows} == wrong
    assert len(found) == (5 if key == "one_shot" else 2)
    if wrong:
        noted(key, f"{min(wrong.values()):.1f} to {max(wrong.values()):.1f}")
        text = markdown(paper_tables.page(key))
        assert "| LASER | 16 | 63.39 | 63.51 | no | 61.52 |" in text
        assert "| Standard+temp | 16 | 62.49 | 62.49 | yes | – |" in text


def test_every_cell_of_a_suite_s_table_is_within_reach() -> None:
    for name, suite in paper.SUITES.items():
        file = paper.PRINTED[suite.key].files[0]
        printed = {
            (row["dataset_or_metric"], row["method"]): row["value"]
            for row in paper.lines(file)
            if row["dataset_or_metric"] != "Average"
        }
        reached = {
            (suite.tasks[task], suite.methods[variant]): paper.of_task(name, variant, task).text
            for task in suite.tasks
            for variant in suite.methods
        }
        assert reached == printed, name
        assert all(paper.of_mean(name, variant) for variant in suite.methods)
    assert paper.of_task("paper_7b", "laser+temp", "cb") is None
    assert paper.of_task("pydoc", "laser", "next") is None
    assert paper.of_mean("pydoc", "laser") is None


def test_suites_and_the_paper_name_the_same_tasks() -> None:
    for name, suite in paper.SUITES.items():
        folder = paper.DIRECTORY.parents[1] / "workloads/downstream/suites"
        tasks = json.loads((folder / f"{name}.json").read_text("utf-8"))["tasks"]
        assert {task: entry["paper"] for task, entry in tasks.items()} == suite.tasks


def test_bold_and_spread_are_printed() -> None:
    text = markdown(paper_tables.page("fluctuation"))
    assert "| WSC | **80.98 ± 0.68** | 79.30 ± 0.44 |" in text
    assert "| LASER | 24.88 | – |" in markdown(paper_tables.page("hours_to_loss"))


def test_the_command_takes_keys(capsys) -> None:
    assert main(["paper", "superglue", "--format=markdown"]) == 0
    assert capsys.readouterr().out.startswith("**Paper, table tab:superglue_results")
    assert main(["paper", "nonsense"]) == 2
    assert "there are vit_error" in capsys.readouterr().err
