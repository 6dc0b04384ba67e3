"""Diagnostics of trials: files whole and damaged, and the table of their last records."""

import json

import numpy as np
import pytest

from analysis.compare import build
from analysis.load.files import diagnostics as diagnostic_records
from analysis.load.studies import read_study
from analysis.render.latex import render as to_latex
from analysis.render.text import markdown
from analysis.render.text import render as to_text
from analysis.views.diagnostics import page as diagnostics


def _parse(text):
    return diagnostic_records.parse(text.encode())


def test_columns_are_steps_by_layers_in_order(diagnosed):
    lines = [
        diagnosed.line(step, index, entropy=step + index / 10)
        for step in (200, 100)
        for index in (1, 0)
    ]
    read = _parse(diagnosed.text(lines))
    assert read.problems == ()
    assert read.steps.tolist() == [100, 200]
    assert read.layers == ("encoderblock_0/attention", "encoderblock_1/attention")
    np.testing.assert_allclose(read.values["entropy"], [[100, 100.1], [200, 200.1]])
    assert read.histogram.shape == (2, 2, 25)
    assert read.histogram.sum(axis=-1).tolist() == [[1000, 1000]] * 2
    assert (read.examples, read.edges[0], read.edges[-1]) == (8, -12, 0)


def test_many_trials_are_parsed_once(diagnosed, tmp_path):
    """8 variants of 20 seeds are 160; every view of a report goes through all of them."""
    for trial in range(160):
        (tmp_path / str(trial)).mkdir()
        text = diagnosed.text([diagnosed.line(0, 0)])
        (tmp_path / str(trial) / diagnostic_records.FILE).write_text(text)
    first, again = (
        [diagnostic_records.of_trial(tmp_path / str(trial)) for trial in range(160)]
        for _ in range(2)
    )
    assert all(one is other for one, other in zip(first, again, strict=True))


def test_layers_are_ordered_by_depth_not_by_name(diagnosed):
    lines = [diagnosed.line(0, index) for index in range(12)]
    assert _parse(diagnosed.text(lines)).layers[-1] == "encoderblock_11/attention"


def test_what_does_not_exist_is_nan_and_what_is_not_finite_is_said(diagnosed):
    lines = [
        diagnosed.line(0, 0, logit_grad_norm=None),
        diagnosed.line(10, 0, entropy=None, histogram=None, nonfinite=["entropy", "histogram"]),
        diagnosed.line(20, 0, entropy=None, nonfinite=["entropy"]),
    ]
    read = _parse(diagnosed.text(lines))
    assert np.isnan(read.values["logit_grad_norm"][:, 0]).tolist() == [True, False, False]
    assert np.isnan(read.histogram[:, 0, 0]).tolist() == [False, True, False]
    layer = "encoderblock_0/attention"
    assert read.problems == (
        f"nonfinite: entropy in 2 records, first at step 10 in {layer}",
        f"nonfinite: histogram in 1 records, first at step 10 in {layer}",
    )


def test_an_attempt_is_cut_where_the_next_one_resumed(diagnosed):
    """Steps 0, 10, 20 of the first attempt, then 10 again by the second: 20 was abandoned."""
    lines = [diagnosed.line(step, 0, entropy=1.0) for step in (0, 10, 20)]
    lines.append(diagnosed.line(10, 0, attempt=1, entropy=2.0))
    read = _parse(diagnosed.text(lines))
    assert read.steps.tolist() == [0, 10]
    assert read.values["entropy"][:, 0].tolist() == [1, 2]


def test_a_truncated_file_loses_its_last_step_and_nothing_else(diagnosed):
    lines = [diagnosed.line(step, index) for step in (0, 10) for index in (0, 1)]
    read = _parse(diagnosed.text(lines)[:-9])
    assert read.steps.tolist() == [0]
    assert read.problems == (
        "truncated in its last line (5), which is left out",
        "incomplete at step 10, which is left out: 1 of 2 layers",
    )


DAMAGED = (
    ('{"global_step": 1', "not JSON"),
    ("[1, 2]", "not a JSON object"),
    ({"global_step": -1}, "global_step is -1"),
    ({"global_step": 1.5}, "global_step is 1.5"),
    ({"index": True}, "index is True"),
    ({"layer": 3}, "layer is 3"),
    ({"entropy": "2"}, "entropy is '2'"),
    ({"entropy": float("nan")}, "entropy is nan"),
    ({"histogram": [1, 2]}, "histogram is not 25 counts"),
    ({"histogram": [-1] * 25}, "histogram is not 25 counts"),
)


@pytest.mark.parametrize(("damage", "words"), DAMAGED)
def test_a_damaged_line_is_named_and_left_out(diagnosed, damage, words):
    bad = damage if isinstance(damage, str) else json.dumps(diagnosed.line(10, 0) | damage)
    text = diagnosed.text([diagnosed.line(0, 0)]) + bad + "\n"
    text += json.dumps(diagnosed.line(20, 0)) + "\n"
    read = _parse(text)
    assert read.steps.tolist() == [0, 20]
    (problem,) = read.problems
    assert problem.startswith(f"damaged in line 3, which is left out: {words}")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "it has no first line"),
        ("nothing\n", "not JSON"),
        ('{"format": "other-2"}\n', "its format is 'other-2'; 'attnperf-diagnostics-1' is known"),
        ('{"format": "attnperf-diagnostics-1"}\n', "no histogram_edges_log10"),
        (
            '{"format": "attnperf-diagnostics-1", "histogram_edges_log10": [0, -1]}\n',
            "do not ascend",
        ),
    ],
)
def test_an_unknown_format_is_said_and_holds_nothing(content, words):
    read = _parse(content)
    assert read.steps.size == 0
    assert words in read.problems[0]


def _study(hand_made, diagnosed, seeds=3):
    made = hand_made(("standard", "laser"))
    for variant in ("standard", "laser"):
        for seed in range(seeds):
            path = made.trial("compare", variant, 0, seed, [made.evaluation(400, 0.2)])
            if variant == "standard":
                diagnosed.write(path, (0, 100), 2, entropy=1.0 + seed**2)
            else:
                diagnosed.write(path, (0, 100, 200), 2)
    made.select({"standard": 0, "laser": 0})
    return made


def _cells(document, grid=0):
    return {row[0].text: row for section in document.tables[grid].sections for row in section}


def test_the_table_holds_the_last_record_beside_the_paper(hand_made, diagnosed):
    table = build.error_table(read_study(_study(hand_made, diagnosed).finish()))
    document = diagnostics.page(table)
    rows = _cells(document)
    texts = [cell.text for cell in rows["Standard"]]
    # Seeds have entropies 1, 2, 5: the median is 2.
    assert texts == ["Standard", "3", "100", "2", "40.0%", "20.0%", "2", "0.5", "0.1", "0.5"]
    assert [cell.text for cell in rows["LASER"]][2:6] == ["200", "2", "60.0%", "30.0%"]
    paper = [cell.text for cell in rows["paper, decoder of 2.2B"]]
    assert paper[4:7] == ["80%", "20%", "–"]
    gradients = [cell.text for cell in _cells(document, 1)["Standard"]][4:]
    # √(1e-2² + 5e-3²), √2·3e-3, √2·4e-3, √2·5e-2; ranges 2 and 4; 1 floored of 128.
    assert gradients == ["0.0112", "0.00424", "0.00566", "0.0707", "2", "4", "1", "128"]
    assert document.problems == ()
    for printer in (to_text, markdown, to_latex):
        assert "decoder of 2.2B" in printer(document)


def test_without_diagnostics_there_is_no_table(hand_made):
    made = hand_made(("standard",))
    made.trial("compare", "standard", 0, 0, [made.evaluation(400, 0.2)])
    made.select({"standard": 0})
    assert diagnostics.page(build.error_table(read_study(made.finish()))) is None


def test_trials_that_are_damaged_or_lack_a_file_are_named(hand_made, diagnosed):
    made = _study(hand_made, diagnosed)
    study = read_study(made.finish())
    first, second, third = (run for run in study.stage("compare") if run.variant == "laser")
    (first.path / diagnostic_records.FILE).unlink()
    (second.path / diagnostic_records.FILE).write_text("{}\n")
    text = (third.path / diagnostic_records.FILE).read_text()
    (third.path / diagnostic_records.FILE).write_text(text[:-5])
    document = diagnostics.page(build.error_table(study))
    rows = _cells(document)
    assert [cell.text for cell in rows["LASER"]][1:3] == ["1", "100"]
    assert f"missing: {first.name}: no diagnostics.jsonl" in document.problems
    assert any(
        problem.startswith(f"{second.name}/diagnostics.jsonl: unreadable: its format is None")
        for problem in document.problems
    )
    assert sum(problem.startswith(third.name) for problem in document.problems) == 2


def test_a_file_that_grew_is_read_anew(tmp_path, hand_made, diagnosed):
    made = hand_made(("standard",))
    path = made.trial("compare", "standard", 0, 0, [made.evaluation(400, 0.2)])
    made.select({"standard": 0})
    (run,) = read_study(made.finish()).stage("compare")
    assert diagnostic_records.of_trial(run.path) is None
    diagnosed.write(path, (0,), 1)
    assert diagnostic_records.of_trial(run.path).steps.tolist() == [0]
    diagnosed.write(path, (0, 10), 1)
    assert diagnostic_records.of_trial(run.path).steps.tolist() == [0, 10]
