"""Text, Markdown, LaTeX and CSV of one small study that was worked by hand."""

import csv
import io
import pathlib
import shutil
import subprocess

import pytest

from analysis.compare import build
from analysis.load.studies import read_study
from analysis.render.latex import render as to_latex
from analysis.render.pages import Cell, Column, Page, Table
from analysis.render.text import markdown
from analysis.render.text import render as to_text
from analysis.views.table import error_table as table_view
from analysis.views.table import tidy_csv

GOLDEN = pathlib.Path(__file__).with_name("golden_table.md")
AWKWARD = r"50% of a_b & {c} #1 $x$ ~ ^ \ < >"


@pytest.fixture
def table(hand_made):
    """Returns a table with a comparison, a single seed, a missing trial and a reference row."""
    made = hand_made(points=({"learning_rate": 0.001, "beta2": 0.99},))
    errors = {"standard": (0.3, 0.5, 0.7), "laser": (0.2, 0.3, 0.4), "laser+temp": (0.25,)}
    for variant, values in errors.items():
        for seed, error in enumerate(values):
            made.trial("compare", variant, 0, seed, [made.evaluation(400, error)])
    made.trial("compare", "laser+temp", 0, 1, None, state="failed", reason="out of memory")
    made.select(dict.fromkeys(errors, 0))
    row = {"train/error": None, "validation/error": 0.02, "test/error": 0.015}
    made.reference([{"name": "1 nearest neighbour, raw_pixels"} | row], "stand-in for ImageNet")
    return build.error_table(read_study(made.finish()))


@pytest.fixture
def full_table(hand_made):
    """Returns the eight rows of a study that is the paper's."""
    made = hand_made(name="full", record={"paper_table": "vit_error"})
    for rank, variant in enumerate(made.eight_variants):
        for seed in range(3):
            error = 0.3 - rank / 100 + seed / 1000
            made.trial("compare", variant, 0, seed, [made.evaluation(400, error)])
    made.select(dict.fromkeys(made.eight_variants, 0))
    return build.error_table(read_study(made.finish()))


def test_markdown_is_the_golden_file(table) -> None:
    assert markdown(table_view.page(table)) == GOLDEN.read_text(encoding="utf-8")


def test_text_without_a_terminal_is_plain_and_whole(table) -> None:
    text = to_text(table_view.page(table))
    assert "\x1b" not in text
    assert "| LASER + temp                                | 1 of 2 (1 failed) | *0.2400 |" in text
    assert "[0.0616, 0.5584] |" in text
    assert "| [-0.4484, +0.0484] |" in text
    assert "1 nearest neighbour, raw_pixels (reference)" in text
    assert "reference: stand-in for ImageNet" in text
    assert "failed: compare/laser+temp/imagenet_vit_jax/trial_2: out of memory (no eval_" in text


def test_text_on_a_terminal_has_colour_and_fits_it(table) -> None:
    text = to_text(table_view.page(table), terminal=True, width=100)
    assert "\x1b[1m" in text


def test_best_of_each_group_is_bold_in_latex(table) -> None:
    latex = to_latex(table_view.page(table))
    assert latex.count(r"\toprule") == latex.count(r"\bottomrule") == 4
    standard, laser, temp = (
        next(line for line in latex.splitlines() if line.strip().startswith(name))
        for name in ("Standard &", "LASER &", "LASER + temp &")
    )
    assert "Standard & 3 & 0.4900 & 0.5000 & 0.5100 &" in standard
    assert (
        "LASER & 3 & 0.2900 & 0.3000 & 0.3100 & 0.3100 & $-$0.2000 & 0.074 & cannot tell" in laser
    )
    assert r"\textbf{0.2400} & \textbf{0.2500} & \textbf{0.2600}" in temp
    assert r"raw\_pixels (reference)" in latex


def test_paper_and_measured_stand_side_by_side(full_table) -> None:
    header, _, *rows = [
        line for line in markdown(table_view.page(full_table)).splitlines() if line.startswith("|")
    ][:10]
    assert header.startswith(
        "| Variant | n | Train paper | Train measured | Validation paper | Validation measured | "
        "Test paper | Test measured |"
    )
    assert rows[0].startswith(
        "| Standard | 3 | 0.1678 | 0.2910 | 0.2532 | 0.3010 | 0.3749 | 0.3110 |"
    )
    assert rows[6].startswith(
        "| LASER + QK-normalization | 3 | **0.1427** | 0.2310 | **0.2372** | 0.2410 | "
        "**0.3588** | 0.2510 |"
    )


def test_csv_holds_full_precision_and_blanks_for_what_is_undefined(table) -> None:
    lines = list(csv.DictReader(io.StringIO(tidy_csv.to_csv(table))))
    assert len(lines) == 3 * 3 + 3
    by = {(line["kind"], line["variant"], line["split"]): line for line in lines}
    laser = by["variant", "laser", "test"]
    assert float(laser["median"]) == pytest.approx(0.31, abs=1e-12)
    assert float(laser["difference"]) == pytest.approx(-0.2, abs=1e-12)
    assert laser["seeds"] == "0 1 2"
    assert [float(value) for value in laser["values"].split()] == pytest.approx([0.21, 0.31, 0.41])
    single = by["variant", "laser+temp", "test"]
    assert (single["n"], single["sd"], single["interval_low"], single["p"]) == ("1", "", "", "")
    assert single["interval_method"] == "none"
    assert by["variant", "standard", "test"]["verdict"] == "baseline"
    reference = by["reference", "", "validation"]
    assert (reference["label"], reference["median"]) == ("1 nearest neighbour, raw_pixels", "0.02")


def test_equal_values_and_equal_differences_are_explained(hand_made) -> None:
    made = hand_made()
    for variant, error in (("standard", 0.3), ("laser", 0.2)):
        for seed in range(3):
            made.trial("compare", variant, 0, seed, [made.evaluation(400, error)])
    made.select({"standard": 0, "laser": 0})
    text = to_text(table_view.page(build.error_table(read_study(made.finish()))))
    assert "[0.3000, 0.3000]=" in text
    assert "=: all seeds have the same value" in text
    assert "exact sign-flip" in text


@pytest.mark.parametrize("trials", [0, 1])
def test_variants_without_a_number_have_dashes(hand_made, trials) -> None:
    made = hand_made()
    for variant in ("standard", "laser", "laser+temp"):
        rows = [made.evaluation(400, 0.3)] if variant == "laser" and trials else None
        state = "done" if rows else "pending"
        made.trial("compare", variant, 0, 0, rows, state=state)
    made.select(dict.fromkeys(("standard", "laser", "laser+temp"), 0))
    table = build.error_table(read_study(made.finish()))
    lines = markdown(table_view.page(table)).splitlines()
    none = "0 of 1 (1 unfinished)"
    assert f"| Standard | {none} | – | – | – | – | – | – | baseline |" in lines
    assert f"| LASER + temp | {none} | – | – | – | – | – | – | – |" in lines
    assert ("| LASER | 1 | 0.2900 | 0.3000 | 0.3100 | 0.3100 | – | – | cannot tell |" in lines) == (
        trials == 1
    )
    assert len(tidy_csv.to_csv(table).splitlines()) == 1 + 9
    assert r"\bottomrule" in to_latex(table_view.page(table))


def test_latex_escapes_every_special_character() -> None:
    escaped = to_latex(_document(AWKWARD))
    assert (
        r"50\% of a\_b \& \{c\} \#1 \$x\$ \textasciitilde{} \textasciicircum{} \textbackslash{} "
        r"\textless{} \textgreater{} &"
    ) in escaped


def test_markdown_escapes_what_would_break_a_row() -> None:
    name = "a|b*c_d`e [1, 2] _f_ [g](h) <i> < 1"
    escaped = r"a\|b\*c_d\`e [1, 2] \_f\_ [g]\(h) \<i> < 1"
    assert f"| {escaped} | 1 |" in markdown(_document(name))


def test_text_does_not_take_brackets_for_markup() -> None:
    assert "[red]" in to_text(_document("[red]"))


def _document(name: str) -> Page:
    grid = Table(
        "Caption", (Column("Name", numeric=False), Column("n")), (((Cell(name), Cell("1")),),)
    )
    return Page(name, (grid,), (name,), (name,))


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("packages", ["booktabs", "booktabs,graphicx"])
def test_latex_compiles(table, full_table, tmp_path: pathlib.Path, packages: str) -> None:
    """In draft mode pdflatex sets the pages and needs no font files for a PDF."""
    documents = [table_view.page(table), table_view.page(full_table), _document(AWKWARD)]
    body = "\n".join(to_latex(document) for document in documents)
    (tmp_path / "table.tex").write_text(
        f"\\documentclass{{article}}\n\\usepackage{{{packages}}}\n\\begin{{document}}\n"
        f"{body}\n\\end{{document}}\n",
        encoding="utf-8",
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-draftmode", "table.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    assert ("wide tables stay wide" in done.stdout) == ("graphicx" not in packages)
