"""Diagnostics of trials: files whole and damaged, and the table of their last records."""

import numpy as np
import pytest

from analysis.compare.error_table import build
from analysis.load import diagnostics as diagnostic_records
from analysis.load.studies import read_study
from analysis.render import charts
from analysis.views import diagnostics


def _parse(text):
    return diagnostic_records.parse(text.encode())


def test_columns_are_steps_by_layers_in_order(diagnosed):
    """Layers are ordered by depth, not by name."""
    lines = [
        diagnosed.line(step, index, entropy=step + index / 10)
        for step in (200, 100)
        for index in (10, 2)
    ]
    read = _parse(diagnosed.text(lines))
    assert read.problems == ()
    assert read.steps.tolist() == [100, 200]
    assert read.layers == ("encoderblock_2/attention", "encoderblock_10/attention")
    np.testing.assert_allclose(read.values["entropy"], [[100.2, 101], [200.2, 201]])
    assert read.histogram.shape == (2, 2, 25)
    assert read.histogram.sum(axis=-1).tolist() == [[1000, 1000]] * 2
    assert (read.examples, read.edges[0], read.edges[-1]) == (8, -12, 0)


def test_what_does_not_exist_is_nan_and_what_is_not_finite_is_named_once(diagnosed):
    lines = [
        diagnosed.line(0, 0, logit_grad_norm=None),
        diagnosed.line(10, 0, entropy=None, histogram=None, nonfinite=["entropy", "histogram"]),
        diagnosed.line(20, 0, entropy=None, nonfinite=["entropy"]),
    ]
    read = _parse(diagnosed.text(lines))
    assert np.isnan(read.values["logit_grad_norm"][:, 0]).tolist() == [True, False, False]
    assert np.isnan(read.histogram[:, 0, 0]).tolist() == [False, True, False]
    assert [problem.kind for problem in read.problems] == ["non-finite"] * 2


def test_an_attempt_is_cut_where_the_next_one_resumed(diagnosed):
    """Steps 0, 10, 20 of the first attempt, then 10 again by the second: 20 was abandoned."""
    lines = [diagnosed.line(step, 0, entropy=1.0) for step in (0, 10, 20)]
    lines.append(diagnosed.line(10, 0, attempt=1, entropy=2.0))
    read = _parse(diagnosed.text(lines))
    assert read.steps.tolist() == [0, 10]
    assert read.values["entropy"][:, 0].tolist() == [1, 2]


def test_a_step_without_all_layers_is_left_out_and_named(diagnosed):
    lines = [diagnosed.line(step, index) for step in (0, 10) for index in (0, 1)]
    read = _parse(diagnosed.text(lines)[:-9])
    assert read.steps.tolist() == [0]
    assert [problem.kind for problem in read.problems] == ["truncated", "missing"]


def _study(hand_made, diagnosed):
    made = hand_made(seeds=dict.fromkeys(("standard", "laser"), (0.2, 0.2, 0.2)))
    for entry in made.planned["compare"]:
        is_standard = entry["variant"] == "standard"
        steps = (0, 100) if is_standard else (0, 100, 200)
        entropy = {"entropy": 1.0 + entry["seed"] ** 2} if is_standard else {}
        diagnosed.write(made.root / entry["path"], steps, 2, **entropy)
    return made


def test_the_table_holds_the_last_record_beside_the_paper(hand_made, diagnosed):
    page = diagnostics.page(_study(hand_made, diagnosed).table())
    (shown,) = page.tables
    rows = shown.texts().set_index("Variant")
    # Seeds have entropies 1, 2, 5: the median is 2. Norms: √(1e-2² + 5e-3²), √2·3e-3, √2·4e-3,
    # √2·5e-2; ranges 2 and 4; 1 floored of 128.
    assert rows.loc["Standard"].tolist() == [
        *("3", "100", "2", "40.0%", "20.0%", "2", "0.5", "0.1", "0.5"),
        *("0.0112", "0.00424", "0.00566", "0.0707", "2", "4", "1", "128"),
    ]
    assert rows.loc["LASER"].tolist()[1:5] == ["200", "2", "60.0%", "30.0%"]
    assert rows.loc[diagnostics.PAPER].tolist()[2:6] == ["–", "80.0%", "20.0%", "–"]
    assert page.problems == ()
    assert len(page.data()) == 3 * 2 * 2 + 3 * 3 * 2


def test_trials_that_are_damaged_or_lack_a_file_are_named(hand_made, diagnosed):
    study = read_study(_study(hand_made, diagnosed).finish())
    first, second, third = (run for run in study.stage("compare") if run.variant == "laser")
    (first.path / diagnostic_records.FILE).unlink()
    (second.path / diagnostic_records.FILE).write_text("{}\n")
    text = (third.path / diagnostic_records.FILE).read_text()
    (third.path / diagnostic_records.FILE).write_text(text[:-5])
    document = diagnostics.page(build(study))
    rows = document.tables[0].frame.set_index("Variant")
    assert rows.loc["LASER", ["n", "Step"]].tolist() == [1, 100]
    kinds = [(problem.kind, problem.trial) for problem in document.problems]
    assert kinds == [
        ("unreadable", second.name),
        ("truncated", third.name),
        ("missing", third.name),
        ("missing", first.name),
    ]


def test_a_file_that_grew_is_read_anew(study, diagnosed):
    study.finish()
    path = study.root / study.planned["compare"][0]["path"]
    assert diagnostic_records.of_trial(path) is None
    diagnosed.write(path, (0,), 1)
    assert diagnostic_records.of_trial(path) is diagnostic_records.of_trial(path)
    diagnosed.write(path, (0, 10), 1)
    assert diagnostic_records.of_trial(path).steps.tolist() == [0, 10]


def _drawn(hand_made, diagnosed, layers=3, **changes):
    made = _study(hand_made, diagnosed)
    for entry in made.planned["compare"]:
        numbers = {"share_below_1e-3": 0.1 * (entry["seed"] + 1)} | changes
        diagnosed.write(made.root / entry["path"], (0, 100, 200), layers, **numbers)
    return made.table()


@pytest.mark.parametrize("layers", [1, 32])
def test_plots_are_drawn_of_any_depth(hand_made, diagnosed, layers):
    table = _drawn(hand_made, diagnosed, layers, floored_channels=None)
    for plot in diagnostics.PLOTS:
        assert plot.applies(table)
        assert charts.specification(plot.draw(table))["datasets"]
        assert plot.alt_text(table).count("Standard") == 1


def test_lines_hold_the_layers_of_each_seed_as_one_number(hand_made, diagnosed):
    found = diagnostics.curves(diagnostics.records(_drawn(hand_made, diagnosed)))
    standard = found[found["variant"] == "standard"].set_index(["panel", "step"])["value"]
    assert standard["share_below_1e-3", 100].tolist() == pytest.approx([0.1, 0.2, 0.3])
    norm = 1e-2 * np.sqrt(1 + 0.25 + 0.0625)
    assert standard["logit_grad_norm", 200].tolist() == pytest.approx([norm] * 3)


def test_the_map_of_probabilities_holds_shares_that_add_to_one(hand_made, diagnosed):
    found = diagnostics.histograms(_drawn(hand_made, diagnosed))
    shares = found.groupby(["variant", "layer"])["share"]
    assert shares.sum().tolist() == pytest.approx([1] * 6)
    assert shares.count().tolist() == [25] * 6
    # 10^-7 closes its bin: 300 of 1,000 at step 200 lie in the one below it.
    of_bin = found[(found["low"] == -7.5) & (found["high"] == -7.0)]["share"]
    assert of_bin.tolist() == pytest.approx([0.3] * 6)


def test_what_no_trial_has_is_not_drawn(hand_made, diagnosed):
    table = _drawn(hand_made, diagnosed, histogram=None, **dict.fromkeys(diagnostics.WEIGHTS))
    assert diagnostics.probabilities(table) is None
    panels = charts.specification(diagnostics.over_training(table))["concat"]
    assert len(panels) == len(diagnostics.PANELS) - 2
