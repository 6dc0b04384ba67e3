"""The ledger: a line for each verdict, its page, what `check` asks, and docs/ledger."""

import dataclasses
import re

import numpy as np
import pytest

from analysis.cli import main
from analysis.compare import error_table, frames, together
from analysis.load.studies import read_each, read_study
from analysis.render import pages
from analysis.views import check, ledger, sentences
from tests.floor_plan import ROOT

HOSTILE = "<script>alert(1)</script>"


def _study(hand_made, name, hypothesis, errors, **meta):
    made = hand_made(name=name, config={"hypothesis": hypothesis})
    made.record = {"git_commit": "0123456789abcdef", "date": "2026-11-28"}
    for variant, values in errors.items():
        made.add_seeds(variant, values, meta=meta or None)
    return made.finish()


def test_every_verdict_has_a_line(hand_made, tmp_path):
    apart = [0.30, 0.31, 0.32, 0.33]
    better = {"standard": apart, "laser": [0.2, 0.211, 0.222, 0.233]}
    unclear = {"standard": apart, "laser": [0.33, 0.30, 0.32, 0.31]}
    roots = [
        _study(hand_made, "decided", "LASER errs less.", better),
        _study(hand_made, "open", "", unclear, git_commit_hash="fedcba9876543210"),  # newer
        _study(hand_made, "budget", "", {"standard": apart}),  # nothing is compared: no line
    ]
    out = tmp_path / "ledger.csv"
    assert main(["ledger", *map(str, roots), f"--out={out}"]) == 0
    header, *lines = out.read_text().splitlines()
    assert header.split(",") == list(ledger.COLUMNS)
    words = (("LASER errs less.", "better", "0123456789ab"), ("cannot tell", "fedcba987654"))
    for line, texts in zip(lines, words, strict=True):
        assert all(text in line for text in (*texts, "2026-11-28"))
    tables = [error_table.build(read_study(root)) for root in roots]
    differences = ledger.page(tables).data()["difference"].tolist()
    assert differences == pytest.approx([-0.0985, 0.0], abs=1e-12)


@pytest.mark.parametrize(
    ("hypotheses", "expected"),
    [
        (["A"], "A"),
        (["A", "A"], "A"),
        (["A", "B"], "A; changed on 2026-12-01: B"),
        ([None, "B"], "none; changed on 2026-12-01: B"),
        (["A", ""], "A; changed on 2026-12-01: none"),
        (["A", "B", "A"], "A; changed on 2026-12-01: B; changed on 2026-12-02: A"),
    ],
)
def test_the_hypothesis_is_that_of_the_start(hand_made, hypotheses, expected):
    """`run --config.hypothesis` on a finished study stood beside the date of the start."""
    made = hand_made(
        config={"hypothesis": hypotheses[-1]},
        seeds=dict.fromkeys(("standard", "laser"), (0.3, 0.31, 0.32)),
    )
    (plan,) = made.plans()
    made.record["runs"] = [
        {**plan, "hypothesis": text, "date": date, "git_commit": commit}
        for text, date, commit in zip(
            hypotheses,
            ("2026-11-28", "2026-12-01", "2026-12-02"),
            ("aaaa111", "bbbb222", "cccc333"),
            strict=False,
        )
    ]
    (line,) = ledger.page([made.table()]).data().to_dict("records")
    start = (line["hypothesis"], line["date"], line["design_commit"])
    assert start == (expected, "2026-11-28", "aaaa111")


def test_the_page_has_every_verdict_and_leads_to_its_study(hand_made, parse_page, tmp_path):
    """The hypothesis is in each row and below; markup is escaped; an address of another kind is no
    link."""
    values = {"standard": [0.30, 0.31, 0.32, 0.33], "laser": [0.2, 0.211, 0.222, 0.233]}
    _study(hand_made, "a", "", values, command="train --lr=1", url="javascript:alert(1)")
    _study(hand_made, "b #1", HOSTILE, values, command="train", url="https://example.org/b")
    out = tmp_path / "site.html"
    assert main(["ledger", str(tmp_path / "experiments"), f"--site={out}"]) == 0
    page = parse_page(out.read_text("utf-8"))
    links = ["#study-0", "#study-1", "experiments/a", "https://example.org/b"]
    assert [each["href"] for each in page.of("a")] == [*links, "experiments/b%20%231"]
    assert [attributes["id"] for attributes in page.of("section")] == ["study-0", "study-1"]
    assert page.words.count(HOSTILE) == 2
    assert {"train --lr=1", "javascript:alert(1)"} <= set(page.words)


PLAN = '{"hypothesis": "Does it?", "seeds": 3, "date": "2026-12-01"}'
WHOLE = {"standard": [0.1, 0.2, 0.3], "laser": [0.1, 0.2, 0.2]}


@pytest.mark.parametrize(
    ("values", "plan", "code", "texts"),
    [
        (WHOLE, PLAN, 0, ("Missing: Command, Source",)),
        (WHOLE, '{"looks": [2, 3], "margin": "5%"}', 0, ("| 2, 3 ", "| 5% ")),
        (WHOLE, "{}", 0, ("Missing: Hypothesis, Seeds planned, Started, Command, Source",)),
        # A run that gave no number is a result; one that is not there must be mended.
        (WHOLE | {"laser": [0.1, 0.2, ""]}, PLAN, 0, ("diverged",)),
        (WHOLE | {"laser": ["", "", ""]}, PLAN, 0, ("3 diverged",)),
        (WHOLE | {"laser": [0.1, 0.2]}, "{}", 1, ("laser: no run of seeds 2",)),
        (WHOLE | {"laser": [0.1, 0.2]}, PLAN, 1, ("laser: no run of seeds 2", "unfinished")),
        ({"gate": [0.1], "laser": [0.2]}, PLAN, 1, ("no run of the baseline 'standard'",)),
        (WHOLE, '{"seeds": "3"}', 1, ("seeds is",)),
        (WHOLE | {"laser": ["x"]}, PLAN, 2, ("line 5",)),
    ],
)
def test_check_says_what_must_be_mended_and_what_is_missing(
    tmp_path, capsys, values, plan, code, texts
):
    rows = [
        f"w,{variant},{seed},loss,{value},c0ffee,abc123"
        for variant, numbers in values.items()
        for seed, value in enumerate(numbers)
    ]
    header = "workload,variant,seed,metric,value,commit,design_commit"
    (tmp_path / "results.csv").write_text("\n".join([header, *rows]))
    (tmp_path / "study.json").write_text(plan)
    assert main(["check", str(tmp_path)]) == code
    printed = "".join(capsys.readouterr())
    assert all(text in printed for text in texts)


LEDGER = ROOT / "docs" / "ledger"


def test_the_ledger_s_page_is_that_of_its_files():
    """Cells as printed, which no version of a library changes; `analysis ledger docs/ledger
    --site=docs/ledger/index.html` writes it anew."""
    tables = [error_table.build(study) for study in read_each(LEDGER)]
    assert all(check.page(table).problems == () for table in tables)
    made = ledger.site(tables, LEDGER)
    assert _cells((LEDGER / "index.html").read_text("utf-8")) == _cells(made)
    assert sum(path.stat().st_size for path in LEDGER.rglob("*.*")) <= 2e6


def _cells(page):
    """Returns what the verdicts' table and the facts of each study say, with links."""
    cell, hidden = r"<(?:t[hd]|dd)\b[^>]*>(.*?)</", r"<details>.*?</details>"
    return re.findall(cell, re.sub(hidden, "", page, flags=re.S), re.S)


EVIDENCE = (ROOT / "docs" / "evidence.md").read_text("utf-8").replace("−", "-")
# The first table below a link to a results file.
OF_FILES = re.findall(r"\(ledger/(\w+)/results\.csv\).*?\n\n(\|.*?)\n\n", EVIDENCE, re.S)


@pytest.mark.parametrize(("study", "printed"), OF_FILES, ids=[name for name, _ in OF_FILES])
def test_a_table_of_the_evidence_is_that_of_its_file(study, printed):
    """But its column of compute, which other studies tell."""
    head, _, *lines = [re.split(r" ?\| ?", line)[1:-1] for line in printed.splitlines()]
    table = error_table.build(*read_each(LEDGER / study))
    rows = frames.results(table, None).query("split == 'test' and kind == 'variant'")
    base = rows["mean"][rows["verdict"] == "baseline"].item()
    for cells, row in zip(lines, rows.itertuples(), strict=True):
        ends = row.difference, row.difference_low, row.difference_high
        expected = {
            "variant": row.label,
            head[1]: f"{row.mean:.4f}",
            "difference [95 %]": pages.estimate(*ends, 4, signed=True),
            "relative": f"{100 * row.difference / base:+.1f} %".replace("+nan %", "–"),
            "p (Holm)": pages.p_text(row.p_holm),
            "detectable": pages.decimals(row.detectable),
            "verdict": row.verdict,
        }
        assert expected.items() <= dict(zip(head, cells, strict=True)).items()


def _three(hand_made, **configs):
    """Two studies with equal runs of the baseline, and one with its own."""
    base, other = [0.30, 0.31, 0.32, 0.33], [0.301, 0.312, 0.323, 0.331]
    errors = {
        "first": {"standard": base, "laser": [0.28, 0.292, 0.301, 0.312]},
        "second": {
            "standard": base,
            "laser+temp": [0.29, 0.307, 0.31, 0.32],
            "standard+temp": [0.301, 0.31, 0.321, 0.329],
        },
        "third": {"standard": other, "laser": [0.302, 0.31, 0.324, 0.33]},
    }
    return [
        error_table.build(read_study(_study(hand_made, name, "", values)))
        for name, values in errors.items()
    ]


def test_all_comparisons_are_corrected_at_once(hand_made):
    """Four in three studies: the smallest p times 4, the next times 3, never below a smaller."""
    tables = _three(hand_made)
    p_values = sorted(x.p for table in tables for x in table.comparisons.values())
    expected = np.maximum.accumulate(np.minimum(1, np.multiply(p_values, [4, 3, 2, 1])))
    found = together.p_over_all(tables)
    assert sorted(p for of_table in found for p in of_table.values()) == pytest.approx(expected)
    assert ledger.page(tables).data()["p_all"].tolist() == [
        p for of_table in found for p in of_table.values()
    ]
    looked = dataclasses.replace(tables[0], looks=(2, 4))
    found = together.p_over_all([looked, *tables[1:]])
    assert np.isnan(found[0]["laser"])
    p = tables[1].comparisons["laser+temp"].p
    assert found[1]["laser+temp"] == pytest.approx(4 * p)


def test_verdicts_that_one_correction_takes_back_are_named(hand_made):
    tables = _three(hand_made)
    (text, _) = sentences.over_studies(tables)
    assert "over all 4 comparisons" in text
    held = tables[1].comparisons["laser+temp"]
    assert held.p_holm < 0.05 < together.p_over_all(tables)[1]["laser+temp"]
    assert "1 of 2 verdicts stay; not LASER + temp (second, p = 0.0" in text
    assert "at once" not in "".join(sentences.over_studies(tables[:1]))


def test_rows_with_the_same_runs_of_the_baseline_are_named(hand_made):
    tables = _three(hand_made)
    assert together.shared_baselines(tables) == [(tables[:2], 4), (tables[2:], 4)]
    assert together.shared_baselines([tables[0], tables[2]]) == [(tables[:1], 4), (tables[2:], 4)]
    *_, text = sentences.over_studies(tables)
    assert "3 rows of first, second with 4 of Standard" in text
