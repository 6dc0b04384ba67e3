"""Plots of diagnostics: what their panels hold, and that they are written where there are any."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from analysis.compare import build
from analysis.load.studies import read_study
from analysis.render import style
from analysis.views import catalog
from analysis.views.diagnostics import maps as diagnostic_maps
from analysis.views.diagnostics import page as diagnostic_plots


def _table(hand_made, diagnosed, variants=("standard", "laser"), layers=3, **changes):
    made = hand_made(variants)
    for variant in variants:
        for seed in range(3):
            path = made.trial("compare", variant, 0, seed, [made.evaluation(400, 0.2)])
            numbers = {"share_below_1e-3": 0.1 * (seed + 1)} | changes
            diagnosed.write(path, (0, 100, 200), layers, **numbers)
    made.select(dict.fromkeys(variants, 0))
    return build.error_table(read_study(made.finish()))


def _draw(name, table):
    (plot,) = (each for each in diagnostic_plots.PLOTS if each.file == name)
    return plot.draw(table)


def _panels(figure):
    return [axes for axes in figure.axes if axes.get_visible()]


@pytest.mark.parametrize("layers", [1, 2, 32])
def test_every_plot_draws_any_depth(hand_made, diagnosed, layers):
    table = _table(hand_made, diagnosed, layers=layers)
    for plot in diagnostic_plots.PLOTS:
        figure = plot.draw(table)
        assert isinstance(figure, Figure)
        assert figure.get_figwidth() == 10
        assert plot.caption in plot.words(table)


def test_lines_hold_the_median_and_bands_the_range_of_seeds(hand_made, diagnosed):
    panels = _panels(_draw("attention_shares.png", _table(hand_made, diagnosed)))
    over, by_layer = panels[:2]
    standard, laser, reference = over.lines
    assert standard.get_xdata().tolist() == [0, 100, 200]
    assert standard.get_ydata() == pytest.approx([0.2] * 3)
    assert (standard.get_color(), laser.get_color()) == (style.BLUE, style.VERMILLION)
    assert reference.get_ydata()[0] == 0.8
    band = over.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((0.1, 0.3))
    assert by_layer.lines[0].get_xdata().tolist() == [0, 1, 2]
    assert over.get_ylim() == by_layer.get_ylim()
    assert over.get_ylim()[0] == 0


def test_gradients_of_all_layers_are_one_norm(hand_made, diagnosed):
    table = _table(hand_made, diagnosed)
    panels = _panels(_draw("attention_gradients.png", table))
    expected = 1e-2 * np.sqrt(1 + 0.25 + 0.0625)
    assert panels[0].lines[0].get_ydata() == pytest.approx([expected] * 3)
    by_layer = _panels(_draw("attention_gradients_by_layer.png", table))
    assert by_layer[0].lines[0].get_ydata() == pytest.approx([1e-2, 5e-3, 2.5e-3])


def test_families_have_a_column_each_and_share_axes(hand_made, diagnosed):
    variants = ("standard", "laser", "standard+temp", "laser+temp")
    panels = _panels(_draw("attention_entropy.png", _table(hand_made, diagnosed, variants)))
    assert [axes.get_title("left") for axes in panels[:2]] == ["no modifier", "+ temp"]
    assert len(panels) == 8
    assert panels[0].get_ylim() == panels[1].get_ylim()


def test_the_map_of_probabilities_holds_shares_that_add_to_one(hand_made, diagnosed):
    table = _table(hand_made, diagnosed)
    figure = diagnostic_maps.histogram(table)
    standard = figure.axes[0]
    inner, underflow = (
        np.asarray(mesh.get_array()).reshape(3, -1) for mesh in standard.collections[:2]
    )
    assert inner.shape == (3, 24)
    total = np.asarray(inner.sum(axis=1) + underflow.sum(axis=1))
    assert total == pytest.approx([1, 1, 1])
    # 10^-7 closes its bin: 300 of 1,000 at step 200 lie in the one below it.
    assert inner[0, 9] == pytest.approx(0.3)


def test_what_no_trial_has_is_not_drawn(hand_made, diagnosed):
    nothing = dict.fromkeys(("logit_grad_norm", "query_grad_norm", "key_grad_norm",
                             "value_grad_norm", "histogram"))  # fmt: skip
    table = _table(hand_made, diagnosed, **nothing)
    for name in ("attention_gradients.png", "attention_gradient_maps.png",
                 "attention_probabilities.png"):  # fmt: skip
        assert _draw(name, table) is None
    assert _draw("attention_entropy.png", table) is not None


def test_plots_are_written_where_there_are_diagnostics(hand_made, diagnosed, tmp_path):
    table = _table(hand_made, diagnosed, floored_channels=None)
    lines = list(catalog.write_plots([table], tmp_path))
    written = {path.name for path in tmp_path.iterdir()}
    assert {plot.file for plot in diagnostic_plots.PLOTS} <= written
    assert len([line for line in lines if "attention_" in line]) == 8


def test_on_a_phone_panels_stand_below_each_other(hand_made, diagnosed):
    table = _table(hand_made, diagnosed, ("standard", "laser", "laser+temp"))
    with style.narrowed():
        for plot in diagnostic_plots.PLOTS:
            figure = plot.draw(table)
            assert figure.get_figwidth() < 5
            lefts = {round(axes.get_subplotspec().colspan.start) for axes in _panels(figure)
                     if axes.get_subplotspec()}  # fmt: skip
            assert lefts == {0}


def test_maps_of_gradients_tick_at_recorded_steps_and_say_what_has_no_colour(hand_made, diagnosed):
    figure = _draw("attention_gradient_maps.png", _table(hand_made, diagnosed))
    assert figure.axes[0].get_xticks().tolist() == [0, 100, 200]
    assert not figure.legends
    made = hand_made(name="zeros")
    for variant in ("standard", "laser"):
        path = made.trial("compare", variant, 0, 0, [made.evaluation(400, 0.2)])
        steps = [*range(0, 1300, 100), 1250]
        lines = [
            diagnosed.line(step, 0, logit_grad_norm=0.0 if step == 0 else 1e-3) for step in steps
        ]
        (path / "diagnostics.jsonl").write_text(diagnosed.text(lines))
    made.select({"standard": 0, "laser": 0})
    figure = _draw("attention_gradient_maps.png", build.error_table(read_study(made.finish())))
    assert figure.axes[0].get_xticks().tolist() == [0, 300, 600, 900, 1200]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [diagnostic_maps.ZERO]
