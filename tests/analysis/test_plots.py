"""Plots: files that are pictures, with what they must hold on their axes."""

import itertools
import math
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from matplotlib import image
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from analysis.compare import build
from analysis.load.studies import read_study
from analysis.render import style
from analysis.views import catalog, curves, hyperparameters, intervals

POINTS = tuple(
    {"learning_rate": rate, "beta2": beta2, "warmup_factor": 0.05}
    for rate, beta2 in ((1e-4, 0.9), (1e-3, 0.99), (3e-3, 0.9), (1e-2, 0.99))
)


@pytest.fixture
def table(hand_made):
    """Returns eight variants of three seeds, four tuned points of which one diverged."""
    made = hand_made(points=POINTS)
    for point in range(3):
        rows = [made.evaluation(400, 0.2 + 0.1 * abs(point - 1))]
        made.trial("tune", "standard", point, 0, rows)
    made.trial("tune", "standard", 3, 0, None, state="diverged", reason="loss is nan")
    for rank, variant in enumerate(made.eight_variants):
        for seed in range(3):
            errors = [(step, 0.05 * math.exp(-step / 90) + 0.001 * (9 - rank + seed**2))
                      for step in (1, 100, 200, 300, 400)]  # fmt: skip
            made.trial("compare", variant, 1, seed, [made.evaluation(*pair) for pair in errors])
    made.select(dict.fromkeys(made.eight_variants, 1))
    row = {"validation/error": 0.02, "test/error": 0.015}
    made.reference([{"name": "nearest"} | row], "stand-in")
    return build.error_table(read_study(made.finish()))


@pytest.mark.slow
def test_pictures_are_written(table, tmp_path: pathlib.Path) -> None:
    lines = list(catalog.write_plots([table], tmp_path / "pictures"))
    assert [line.split()[0] for line in lines] == ["wrote"] * 5
    names = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert names == [
        *("effects.png", "errors.png", "hyperparameters.png"),
        *("learning_curves.png", "time_to_target.png"),
    ]
    for path in (tmp_path / "pictures").iterdir():
        pixels = image.imread(path)
        assert path.stat().st_size > 15_000
        assert pixels.shape[0] > 400
        assert pixels.shape[1] > 700
        assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 50


def test_the_user_s_settings_of_matplotlib_do_not_count(tmp_path) -> None:
    file = tmp_path / "matplotlibrc"
    file.write_text(
        "text.usetex: True\nfont.size: 31\nsavefig.transparent: True\nsavefig.dpi: 20\n"
        "axes.formatter.use_locale: True\nlines.linewidth: 9\n"
    )
    code = (
        "import matplotlib\nassert matplotlib.rcParams['font.size'] == 31\n"
        "from analysis.render import style\n"
        "default = matplotlib.rcParamsDefault\n"
        "found = {key for key in default if matplotlib.rcParams[key] != default[key]}\n"
        "print(found - {'backend'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ
        | {"MATPLOTLIBRC": str(file), "PYTHONPATH": str(pathlib.Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "set()\n"


def test_a_notebook_s_backend_is_not_needed(hand_made) -> None:
    made = hand_made()
    made.add_seeds("standard", (0.3, 0.4))
    made.add_seeds("laser", (0.2, 0.25))
    done = subprocess.run(
        [sys.executable, "-m", "analysis", "summary", str(made.finish())],
        env=os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"},
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_learning_curves_hold_the_median_of_the_seeds(table) -> None:
    figure = curves.draw(table)
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title("left") for axes in panels] == [
        "no modifier",
        "+ temp",
        "+ QK-normalization",
        "+ per-dim temp",
    ]
    standard, laser, reference = panels[0].lines
    assert (to_hex(standard.get_color()), to_hex(laser.get_color())) == ("#0072b2", "#d55e00")
    assert standard.get_marker() != laser.get_marker()
    assert standard.get_xdata().tolist() == [1, 100, 200, 300, 400]
    assert standard.get_ydata()[-1] == pytest.approx(0.05 * math.exp(-400 / 90) + 0.010)
    assert laser.get_ydata()[-1] == pytest.approx(0.05 * math.exp(-400 / 90) + 0.006)
    assert list(reference.get_ydata()) == [0.02, 0.02]
    assert panels[0].get_yscale() == "log"


def test_hyperparameters_that_vary_have_a_panel_each(table) -> None:
    figure = hyperparameters.draw(table)
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_xlabel() for axes in panels] == ["learning_rate", "beta2"]
    rate = panels[0]
    assert rate.get_xscale() == "log"
    dots = np.array([line.get_xydata()[0] for line in rate.lines if line.get_markersize() == 5.5])
    np.testing.assert_allclose(dots, [(1e-4, 0.3), (1e-3, 0.2), (3e-3, 0.3)])
    rings = [line for line in rate.lines if line.get_markersize() == 12]
    assert [ring.get_xdata()[0] for ring in rings] == [1e-3]
    crosses = [line for line in rate.lines if line.get_marker() == "x"]
    assert [cross.get_xdata()[0] for cross in crosses] == [1e-2]


def test_errors_show_every_seed_the_mean_and_the_interval(table) -> None:
    axes = intervals.draw(table).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        row.label for row in table.rows
    ]
    seeds, interval, mean = axes.lines[:3]
    result = table.rows[0].splits["test"]
    assert seeds.get_xdata() == pytest.approx(list(result.values.values()))
    assert interval.get_xdata() == pytest.approx([result.summary.low, result.summary.high])
    assert mean.get_xdata() == pytest.approx([result.summary.mean])


def test_without_trials_that_are_done_no_picture_is_written(hand_made, tmp_path) -> None:
    made = hand_made(("standard",))
    made.trial("compare", "standard", 0, 0, None, state="failed")
    made.select({"standard": 0})
    table = build.error_table(read_study(made.finish()))
    lines = list(catalog.write_plots([table], tmp_path / "pictures"))
    assert all(line.startswith("not written: ") for line in lines)
    assert list((tmp_path / "pictures").iterdir()) == []


def test_an_error_of_zero_keeps_the_axis_linear() -> None:
    assert style.spans_decades(np.array([0.01, 0.5]))
    assert not style.spans_decades(np.array([0.0, 0.5]))
    assert not style.spans_decades(np.array([np.nan]))


def _clocked(hand_made, offsets):
    """Trials evaluated every 100 steps, from steps that differ by seed: error = 1 / step."""
    made = hand_made()
    for seed, offset in enumerate(offsets):
        rows = [made.evaluation(step, 1 / step) for step in range(100 + offset, 401, 100)]
        made.trial("compare", "standard", 0, seed, rows)
    made.select({"standard": 0})
    return build.error_table(read_study(made.finish()))


def test_curves_of_seeds_evaluated_at_other_steps_are_interpolated(hand_made) -> None:
    """As AlgoPerf's logs, which are evaluated by the clock: no step is shared by all seeds."""
    (axes,) = curves.draw(_clocked(hand_made, (0, 30, 60))).axes
    (line,) = (line for line in axes.lines if len(line.get_xdata()) > 2)
    # From the last first evaluation, 160, to the first last one, 330.
    assert list(line.get_xdata()) == [160, 200, 230, 260, 300, 330]
    # At 200: 1/200; between 1/130 and 1/230, 70 of 100 steps on; between 1/160 and 1/260.
    at_200 = sorted((1 / 200, 0.3 / 130 + 0.7 / 230, 0.6 / 160 + 0.4 / 260))
    assert math.isclose(line.get_ydata()[1], at_200[1])


def test_curves_of_shared_steps_are_not_interpolated(hand_made) -> None:
    (axes,) = curves.draw(_clocked(hand_made, (0, 0, 0))).axes
    (line,) = (line for line in axes.lines if len(line.get_xdata()) > 2)
    assert list(line.get_xdata()) == [100, 200, 300, 400]


def test_long_and_odd_names_are_plain_text() -> None:
    assert style.row_label("a" * 30 + "b" * 30) == "a" * 19 + " … " + "b" * 19
    assert style.plain("$x$") == r"\$x\$"
    figure = style.figure(6.0, 2.0)
    figure.subplots()
    style.title(figure, "costs $5 and $6 字")
    with style.any_letters():
        figure.canvas.draw()
    assert figure.get_suptitle() == r"costs \$5 and \$6 字"


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.000844507, 0.00130821, 0.00495846], ["0.00084", "0.0013", "0.005"]),
        ([0.0812162, 0.081354, 0.114739, 0.163753], ["0.0812", "0.0814", "0.115", "0.164"]),
        ([0.125, 0.998123, 1.0], ["0.125", "0.998123", "1"]),
        ([0.1, math.nextafter(0.1, 1)], ["0.1", "0.10000000000000002"]),
    ],
)
def test_labels_are_as_short_as_tells_values_apart(values, labels) -> None:
    assert hyperparameters.short(values) == labels


def test_labels_of_a_few_long_values_do_not_meet(hand_made) -> None:
    rates = (0.000844507, 0.00130821, 0.00174864, 0.00495846)
    close = (0.99812345, 0.99812346, 0.99812347, 0.99812348)
    points = [{"learning_rate": r, "beta2": b} for r, b in zip(rates, close, strict=True)]
    made = hand_made(points=[*points, points[0]])
    for point in range(5):
        made.trial("tune", "standard", point, 0, [made.evaluation(400, 0.3 - 0.01 * point)])
    made.add_seeds("standard", (0.3, 0.4))
    figure = hyperparameters.draw(build.error_table(read_study(made.finish())))
    FigureCanvasAgg(figure).draw()
    for axes in figure.axes:
        boxes = [label.get_tightbbox() for label in axes.get_xticklabels() if label.get_text()]
        slanted = axes.get_xticklabels()[0].get_rotation() > 0
        assert len(boxes) == 4
        assert slanted or all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))
    assert [axes.get_xticklabels()[0].get_rotation() > 0 for axes in figure.axes] == [False, True]
