"""Results files as studies: a table against scipy, what is wrong with a file, what counts."""

import csv
import io
import itertools
import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis import cli
from analysis.compare import error_table, frames
from analysis.load import selection
from analysis.load.records import NotAStudyError
from analysis.load.studies import read_each, read_study
from analysis.views import ledger, results_file

HEADER = "workload,variant,seed,metric,value"


def test_a_table_of_a_file_is_scipy_s(tmp_path, capsys) -> None:
    """3 variants of 8 seeds: every printed digit, and 15 of those in CSV."""
    random = np.random.default_rng(3)
    noise = random.normal([[0.0], [-0.04], [-0.004]], 0.01, (3, 8))
    losses = dict(zip(("adamw", "muon", "soap"), 3.3 + noise, strict=True))
    rows = [
        f"gpt,{variant},{seed},loss,{value!r}"
        for variant, values in losses.items()
        for seed, value in enumerate(values.tolist())
    ]
    path = tmp_path / "shoot-out.csv"
    path.write_text("\n".join([HEADER, *rows]))
    base = losses.pop("adamw")
    tests = {name: stats.ttest_rel(values, base) for name, values in losses.items()}
    p_of = {name: test.pvalue for name, test in tests.items()}
    holm = {"muon": 2 * p_of["muon"], "soap": max(2 * p_of["muon"], p_of["soap"])}
    assert 0.001 < holm["muon"] < 0.05 < holm["soap"]
    expected = {
        name: [
            *(f"{np.median(x):.4f}", f"{np.exp(np.median(x)):.3f}", f"{x.mean():.4f}"),
            *(f"{x.mean() - base.mean():+.4f}", f"{holm[name]:.3f}"),
        ]
        for name, x in losses.items()
    }
    assert cli.main(["table", str(path), "--baseline=adamw"]) == 0
    lines = [line.replace("|", " ").split() for line in capsys.readouterr().out.splitlines()]
    printed = {line[0]: line for line in lines if line and line[0] in losses}
    assert cli.main(["table", str(path), "--baseline=adamw", "--format=csv"]) == 0
    assert [*printed] == [*losses]
    for name, columns in printed.items():
        assert [cell for cell in columns[2:] if cell != "–"][:5] == expected[name]
    for row in csv.DictReader(io.StringIO(capsys.readouterr().out)):
        if row["split"] == "validation" and (test := tests.get(row["variant"])):
            interval = test.confidence_interval()
            numbers = (test.pvalue, holm[row["variant"]], interval.low, interval.high)
            names = ("p", "p_holm", "difference_low", "difference_high")
            assert [float(row[x]) for x in names] == pytest.approx(numbers, rel=1e-13)
            assert row["verdict"] == {"muon": "better", "soap": "cannot tell"}[row["variant"]]


WRONG = {
    "text.csv": (f"{HEADER}\ngpt,a,0,loss,low\n", "line 2.*float"),
    "seed.csv": (f"{HEADER}\ngpt,a,0,loss,1\ngpt,a,-1,loss,1\n", "line 3.*seed"),
    "large.csv": (f"{HEADER}\ngpt,a,0,loss,1e400\n", "line 2.*out of range"),
    "unknown.csv": (f"{HEADER},lr\ngpt,a,0,loss,1,2\n", "line 2.*unknown: lr"),
    "twice.csv": (f"{HEADER},value\ngpt,a,0,loss,1,2\n", "line 1.*value"),
    "headless.csv": ("gpt,a,0,loss,1\ngpt,a,1,loss,1\n", "line 2.*missing: workload, variant"),
    "short.csv": (f"{HEADER}\ngpt,a,0\n", "line 2.*cells"),
    "long.csv": (f"{HEADER}\ngpt,a,0,loss,1,2\n", "line 2.*a cell without"),
    "empty.csv": ("", "no row"),
    "binary.csv": (b"PK\x03\x04\xff\x00", "line 1.*decode"),
    "list.jsonl": ("[\n]", "line 1"),
    "objects.jsonl": ("[{}]", "line 1.*object"),
    "point.csv": (f"{HEADER},point\ngpt,a,0,loss,1,[1]\n", "line 2.*point"),
    "paths.csv": (f"{HEADER}\n../../gpt,a,0,loss,1\n", "line 2.*workload"),
    "base.csv": (f"{HEADER},baseline\ngpt,a,0,loss,1,a\ngpt,b,0,loss,1,b\n", "baseline is a, b"),
    "way.csv": (f"{HEADER},lower_is_better\ngpt,a,0,accuracy,1,true\n", "lower_is_better of acc"),
    "test.csv": (f"{HEADER},split\ngpt,a,0,loss,1,test\n", "no loss of gpt on validation"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused_by_file_and_line(tmp_path, name) -> None:
    text, reason = WRONG[name]
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(NotAStudyError, match=f"{name}.*{reason}"):
        read_study(tmp_path / name)


def test_a_written_study_is_read_as_the_same(hand_made, tmp_path, capsys) -> None:
    """Two points, a best step before the last one, a lost seed, costs and commits."""
    points = [{"learning_rate": rate, "beta2": 0.99} for rate in (0.1, 0.01)]
    made = hand_made(points=points, stages=("grid",), config={"protocol": "grid", "seeds": 4})
    random = np.random.default_rng(0)
    for variant, point, seed in itertools.product(("standard", "laser"), (0, 1), range(4)):
        meta = {"parameters": 1234, "model_flops_per_step": 7.3e9 / 3, "git_commit_hash": "abc"}
        error = random.uniform(0.1, 0.3) + 0.3 * point
        rows = [
            made.evaluation(step, error + step % 300 / 1000, accumulated_submission_time=step / 7)
            for step in (200, 300, 400)
        ]
        state = "diverged" if (variant, point, seed) == ("laser", 0, 3) else "done"
        made.trial("grid", variant, point, seed, rows, state=state, meta=meta)
    root, folder = made.finish(), tmp_path / "written"
    command = ["results", str(root), f"--out={folder}", "--command=make quick"]
    assert cli.main(command) == 0
    assert "results.csv" in capsys.readouterr().out
    tables = [error_table.build(read_study(path)) for path in (root, folder)]
    assert tables[0].by_variant["laser"].lost == {"diverged": 1}
    before, after = (frames.results(table, None).drop(columns="stage") for table in tables)
    # Of one evaluation a trial there is no spread over the last ones.
    over_last = [name for name in before if name.startswith("last_") and name != "last_step"]
    before, after = (frame.drop(columns=over_last) for frame in (before, after))
    pd.testing.assert_frame_equal(before, after, check_exact=True)
    facts = [ledger.facts(table) for table in tables]
    assert facts[1] == facts[0] | {"Command": ["make quick"]}
    assert cli.main(["results", str(root), f"--out={root}"]) == 2
    assert cli.main(["results", str(folder), f"--out={tmp_path / 'again'}"]) == 0
    again = (tmp_path / "again/results.csv").read_text()
    assert again == (folder / "results.csv").read_text()


def test_rows_of_steps_points_and_directions(tmp_path, capsys) -> None:
    """The last step counts unless the best one is asked for; validation chooses the point; more of
    an unknown metric is better where the file says so; of equal rows the first counts."""
    lines = [
        {"workload": "go", "variant": variant, "seed": seed, "metric": "elo", "step": step}
        | {"value": value + seed + 0.1 * seed * (variant == "b"), "point": {"lr": rate}}
        | {"lower_is_better": False, "baseline": "a"}
        for variant, gain in (("a", 0), ("b", 5))
        for rate, values in ((1, (100, 110, 105)), (2, (90, 120, 80)))
        for seed in range(3)
        for step, value in enumerate((x + gain for x in values), 1)
    ]
    lines += [lines[0] | {"value": 7.0, "step": 3}, lines[0] | {"seed": 3, "value": None}]
    path = tmp_path / "elo" / "results.jsonl"
    path.parent.mkdir()
    path.write_text("\n".join(map(json.dumps, lines)))
    (study,) = read_each(tmp_path)
    table = error_table.build(study)
    assert (table.study.name, table.baseline, table.unfinished) == ("elo", "a", frozenset())
    assert [problem.kind for problem in table.problems] == ["duplicated", "diverged"]
    assert {row.variant: row.hyperparameters or row.point for row in table.rows} == {"a": 0, "b": 0}
    assert table.of(table.by_variant["a"]).values == {0: 105, 1: 106, 2: 107}
    assert table.comparisons["b"].verdict == "better"
    again = results_file.write(table, tmp_path / "deeper" / "again").parent
    reread = error_table.build(read_study(again))
    assert [reread.of(row).values for row in reread.rows] == [
        table.of(row).values for row in table.rows
    ]
    with pytest.raises(ValueError, match="validation/mmlu; it has validation/elo"):
        error_table.build(study, metric="mmlu")
    best = error_table.build(selection.by_best_step(study))
    assert (best.rows[0].point, best.of(best.rows[0]).values) == (1, {0: 120, 1: 121, 2: 122})
    planned = {"seeds": 4, "name": "Go", "hypothesis": "b?", "shares_seeds": False}
    (path.parent / "study.json").write_text(json.dumps(planned))
    table = error_table.build(read_study(path))
    assert (table.study.name, table.unfinished) == ("Go", {"a", "b"})
    assert not table.comparisons["b"].is_paired
    assert cli.main(["ledger", str(tmp_path)]) == 0
    assert "b?" in capsys.readouterr().out
    path.write_text("\n".join(json.dumps(line | {"budget_steps": 3}) for line in lines[:2]))
    assert [run.state for run in read_study(path).runs] == ["running"]
