"""Plots and charts: the look of variants, curves, axes, and the files made of them."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis import report
from analysis.compare import frames
from analysis.render import charts
from analysis.views import plots
from attention import table as variants
from sweeps.records import layout
from tests.analysis.conftest import VARIANTS, begin_study_in

POINTS = tuple(
    {"learning_rate": rate, "beta2": beta2, "warmup_factor": 0.05}
    for rate, beta2 in ((1e-4, 0.9), (1e-3, 0.99), (3e-3, 0.9), (1e-2, 0.99))
)
LOSSES = {1: 7.0, 100: 4.8, 200: 4.4, 300: 4.2, 400: 4.0}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Returns eight variants of three seeds, four tuned points of which one diverged."""
    made = begin_study_in(tmp_path_factory.mktemp("plots"), points=POINTS)
    for point in range(3):
        made.add_seeds("standard", [0.2 + 0.1 * abs(point - 1)], "tune", point)
    made.trial("tune", "standard", 3, 0, None, state="diverged", reason="loss is nan")
    for rank, variant in enumerate(VARIANTS):
        for seed in range(3):
            errors = [(step, 0.05 * math.exp(-step / 90) + 0.001 * (9 - rank + seed**2))
                      for step in (1, 100, 200, 300, 400)]  # fmt: skip
            made.trial("compare", variant, 1, seed, [made.evaluation(*pair) for pair in errors])
    made.select(dict.fromkeys(VARIANTS, 1))
    row = {"validation/error": 0.02, "test/error": 0.015}
    made.reference([{"name": "nearest"} | row], "stand-in")
    return made.table()


@pytest.fixture
def unbounded(hand_made):
    """Returns a function: workload, metric, {step: value} to a table of two variants."""

    def make(workload, metric, values, show=None):
        made = hand_made(points=POINTS[:2], workload=workload, metric=metric)
        rows = [made.measured(step, metric, value, 0.0) for step, value in values.items()]
        for point in (0, 1):
            made.trial("tune", "standard", point, 0, rows)
        for variant in ("diff", "diff_laser"):
            made.trial("compare", variant, 0, 0, rows)
        made.select({"standard": 0, "diff": 0, "diff_laser": 0})
        return made.table(metric=show)

    return make


def test_without_completed_trials_no_picture_is_written(hand_made, tmp_path) -> None:
    made = hand_made(("standard",))
    made.trial("compare", "standard", 0, 0, None, state="failed")
    lines = list(report.write_plots([made.table()], tmp_path / "pictures"))
    assert all(line.startswith("not written: ") for line in lines)
    assert list((tmp_path / "pictures").iterdir()) == []


def test_evaluations_are_one_row_each(table) -> None:
    found = frames.curves(table)
    assert list(found) == list(frames.CURVES)
    assert len(found) == 8 * 3 * 5 * 3  # variants, seeds, steps, splits
    last = found[(found["variant"] == "laser") & (found["seed"] == 2) & (found["step"] == 400)]
    values = 0.05 * math.exp(-400 / 90) + 0.001 * (9 - 4 + 4) + np.array([-0.01, 0.0, 0.01])
    np.testing.assert_allclose(last["value"], values)
    assert found["flops"].isna().all()


@pytest.mark.parametrize(
    ("text", "expected"), [('{"model_flops_per_step": 2e9}', 8e11), ("{", math.nan)]
)
def test_floating_point_operations_are_those_that_a_trial_records(study, text, expected) -> None:
    trial = study.planned["compare"][0]["path"]
    (study.root / trial / "meta_data_0.json").write_text(text)
    evaluations = frames.curves(study.table()).query("trial == @trial")
    np.testing.assert_equal(evaluations["flops"].unique(), [expected])


def test_learning_curves_hold_the_median_and_every_seed(table) -> None:
    lines = frames.curves(table)
    found = frames.medians(lines).query("variant == 'laser' and panel == 'validation'")
    assert found["step"].tolist() == [1, 100, 200, 300, 400]
    assert found["value"].iloc[-1] == pytest.approx(0.05 * math.exp(-400 / 90) + 0.006)
    assert set(found["n"]) == {3}
    assert lines.query("panel == 'validation'").groupby("variant")["seed"].nunique().eq(3).all()


def test_every_panel_of_curves_has_every_variant_and_its_references(table) -> None:
    """The baseline among them; the reference has no number on train."""
    spec = charts.specification(plots.draw_curves(table))
    assert [panel["title"] for panel in spec["concat"]] == [
        f"{split} error" for split in ("validation", "test", "train")
    ]
    for panel, reference in zip(spec["concat"], ([0.02], [0.015], []), strict=True):
        rows = [spec["datasets"][layer["data"]["name"]] for layer in panel["layer"]]
        assert [{row["variant"] for row in each} for each in rows[:3]] == [
            set(table.by_variant)
        ] * 3
        assert [row["value"] for each in rows[4:] for row in each] == reference


def test_logged_numbers_have_panels_with_times_between_the_evaluations(hand_made) -> None:
    """A number that is not finite is no point. At step 300 half of 200 to 400 is over: 3 s."""
    made = hand_made(("standard",))
    rows = [
        made.evaluation(step, 0.2) | {"accumulated_submission_time": seconds}
        for step, seconds in ((200, 2.0), (400, 4.0))
    ]
    directory = made.trial("compare", "standard", 0, 0, rows)
    (directory / layout.MEASUREMENTS).write_text(
        "global_step,loss,images_per_second,test/loss\n0,7.0,2.0,\n200,nan,3.0,\n300,5.0,4.0,1.0\n"
    )
    table = made.table()
    found = frames.curves(table).set_index("panel")
    assert found.loc["loss", ["step", "seconds", "value"]].values.tolist() == [
        [0, 0.0, 7.0],
        [300, 3.0, 5.0],
    ]
    titles = [panel["title"] for panel in plots.draw_curves(table)["concat"]]
    assert titles[3:] == ["training loss, as logged", "images per second"]


def test_trials_that_did_not_finish_have_curves_of_their_own(hand_made) -> None:
    """With their state at the last finite value; beside them no trial that is pending."""
    made = hand_made(("standard", "laser+temp"))
    made.trial("compare", "standard", 0, 0, [made.evaluation(step, 0.2) for step in (100, 400)])
    for seed, state in enumerate(("running", "failed", "diverged"), 1):
        rows = [made.evaluation(100, 0.5), made.evaluation(200, 0.4 + seed / 100)]
        rows += [made.evaluation(300, math.nan)] * (state == "diverged")
        made.trial("compare", "laser+temp", 0, seed, rows, state=state)
    made.trial("compare", "laser+temp", 0, 4, None, state="pending")
    made_table = made.table()
    spec = charts.specification(plots.draw_curves(made_table))
    (text,) = (layer for layer in spec["concat"][0]["layer"] if layer["mark"]["type"] == "text")
    ends = spec["datasets"][text["data"]["name"]]
    assert [(row["seed"], row["ended"], row["step"], row["value"]) for row in ends] == [
        (1, "running", 200, pytest.approx(0.41)),
        (2, "failed", 200, pytest.approx(0.42)),
        (3, "diverged", 200, pytest.approx(0.43)),
    ]
    # Of the baseline's finished trial nothing is lost: the median is as without them.
    assert set(frames.medians(frames.curves(made_table))["variant"]) == {"standard"}
    # Before any trial is done its curve stands alone.
    (made.root / made.planned["compare"][0]["path"] / "status.json").write_text("{}")
    assert plots.draw_curves(made.table())


def test_curves_of_seeds_evaluated_at_other_steps_are_interpolated(hand_made) -> None:
    """As AlgoPerf's logs, which are evaluated by the clock: only the last step is shared. Errors
    are 1 / step."""
    made = hand_made()
    for seed, offset in enumerate((0, 30, 60)):
        steps = sorted({*range(100 + offset, 401, 100), 400})
        rows = [made.evaluation(step, 1 / step) for step in steps]
        made.trial("compare", "standard", 0, seed, rows)
    frame = frames.medians(frames.curves(made.table())).query("panel == 'validation'")
    # From the last first evaluation, 160, to the first last one, 400.
    assert frame["step"].tolist() == [160, 200, 230, 260, 300, 330, 360, 400]
    # At 200: 1/200; between 1/130 and 1/230, 70 of 100 steps on; between 1/160 and 1/260.
    at_200 = sorted((1 / 200, 0.3 / 130 + 0.7 / 230, 0.6 / 160 + 0.4 / 260))
    assert frame["value"].iloc[1] == pytest.approx(at_200[1])


def test_curves_are_by_seconds_where_they_are_recorded(hand_made) -> None:
    made = hand_made(("standard",))
    rows = [
        made.evaluation(step, 0.1) | {"accumulated_submission_time": 2.0 * step}
        for step in (200, 400)
    ]
    made.trial("compare", "standard", 0, 0, rows)
    lines = frames.curves(made.table())
    assert frames.medians(lines).query("panel == 'test'")["seconds"].tolist() == [400.0, 800.0]
    (menu,) = plots.draw_curves(made.table())["params"]
    assert menu["bind"]["options"] == ["step", "seconds"]


@pytest.mark.parametrize(
    ("workload", "metric", "values", "low", "high"),
    [
        ("pydoc_lm", "loss", LOSSES, 4.0, 4.8),  # without the first tenth of the steps
        ("spoken_digits_conformer", "wer", {1: 8.0, 100: 1.0, 400: 0.1}, 0.1, 1.0),
        ("pydoc_lm", "loss", {1: 7.0, 400: 4.0}, 4.0, 7.0),  # one evaluation after the start
    ],
)
def test_the_axis_of_curves_holds_what_matters(
    unbounded, workload, metric, values, low, high
) -> None:
    table = unbounded(workload, metric, values)
    shown = plots.shown(frames.curves(table), table.metric.is_bounded)
    assert (shown.min(), shown.max()) == (low, high)


def test_an_infinite_perplexity_is_left_out_of_every_axis(unbounded) -> None:
    table = unbounded("pydoc_lm", "loss", LOSSES | {200: 1000.0}, "perplexity")
    shown = plots.shown(frames.curves(table), is_bounded=False)
    assert charts.around(shown)[0]["domain"][1] < math.exp(4.9)


def test_a_tuned_point_of_infinite_perplexity_has_no_value(unbounded) -> None:
    table = unbounded("pydoc_lm", "loss", {400: 1000.0}, "perplexity")
    assert frames.trials(table)["value"].isna().all()


def test_every_trial_of_the_search_stands_by_the_hyperparameters_that_vary(table) -> None:
    found = frames.trials(table)
    assert found["hyperparameter"].unique().tolist() == ["learning_rate", "beta2"]
    rates = found[found["hyperparameter"] == "learning_rate"]
    expected = [(1e-4, 0.3, False), (1e-3, 0.2, True), (3e-3, 0.3, False), (1e-2, math.nan, False)]
    np.testing.assert_allclose(rates[["setting", "value", "chosen"]].astype(float), expected)
    assert rates["state"].tolist() == ["done"] * 3 + ["diverged"]
    panels = plots.draw_hyperparameters(table)["concat"]
    x = [panel["layer"][0]["encoding"]["x"] for panel in panels]
    assert [each["title"] for each in x] == ["learning_rate", "beta2"]
    assert x[0]["scale"]["type"] == "log"


def test_a_point_of_the_search_is_one_mark_whatever_its_seeds(hand_made) -> None:
    """The median of 0.2, 0.3 and 0.6; of point 1 a seed diverged, of point 2 every one."""
    made = hand_made(points=POINTS)
    for point, errors in enumerate(((0.2, 0.3, 0.6), (0.5, 0.7))):
        made.add_seeds("standard", errors, "tune", point)
    for point, seed in ((1, 2), (2, 0), (2, 1)):
        made.trial("tune", "standard", point, seed, None, state="diverged")
    made.select({"standard": 0})
    made_table = made.table()
    found = plots.points(made_table).query("hyperparameter == 'learning_rate'")
    assert found["value"].tolist() == pytest.approx([0.3, 0.6, math.nan], nan_ok=True)
    assert found[["point", "seeds", "lost", "chosen"]].values.tolist() == [
        [0, 3, 0, True],
        [1, 2, 1, False],
        [2, 0, 2, False],
    ]
    layers = plots.draw_hyperparameters(made_table)["concat"][0]["layer"]
    # Three marks, a ring, and two crosses; the points differ in two hyperparameters.
    assert [len(layer["data"]) for layer in layers] == [3, 1, 2]


def test_a_line_joins_the_points_of_a_single_hyperparameter(hand_made) -> None:
    made = hand_made(points=({"learning_rate": 0.001}, {"learning_rate": 0.01}))
    for point in (0, 1):
        made.add_seeds("standard", (0.2, 0.3), "tune", point)
    made.select({"standard": 0})
    (panel,) = plots.draw_hyperparameters(made.table())["concat"]
    assert panel["layer"][0]["mark"]["type"] == "line"
    assert len(panel["layer"][0]["data"]) == 2


def test_effects_are_the_table_s_means_and_differences(table) -> None:
    found = plots.effects(table).set_index("variant")
    row = table.rows[1]
    line, summary = found.loc[row.variant], row.splits["test"].summary
    assert tuple(line[["mean", "interval_low", "interval_high"]]) == (
        *(summary.mean, summary.low, summary.high),
    )
    assert line["difference"] == row.splits["test"].comparison.difference
    assert found["difference"].isna().tolist() == [True] + [False] * 7
    means, differences = plots.draw_effects(table)["hconcat"]
    assert len(means["layer"][-1]["data"]) == 8 * 3
    rows = differences["layer"][-1]["encoding"]["y"]
    assert all(verdict in rows["axis"]["labelExpr"] for verdict in found["verdict"])


def test_intervals_end_at_what_a_metric_can_be(hand_made) -> None:
    table = hand_made(("standard",), seeds={"standard": (0.01, 0.9)}).table()
    spec = charts.specification(plots.draw_effects(table))
    (line,) = next(rows for rows in spec["datasets"].values() if "interval_low" in rows[0])
    assert (line["low"], line["high"]) == (0.0, 1.0)
    assert line["interval_low"] < 0


def _chart(names=("standard", "laser", "acme")) -> charts.Chart:
    frame = pd.DataFrame({"variant": names, "label": names, "value": range(len(names))})
    frame = frame.assign(low=frame["value"] - 0.5, high=frame["value"] + 0.5)
    x = charts.channel("value:Q", title="error")
    y = charts.channel("label:N")
    return {"layer": charts.interval_rows(frame, x, y, ["label:N"], legend=True)}


def _plot(
    draw=lambda shown: _chart(), alt_text=lambda shown: "three intervals"
) -> charts.FigureSpec:
    return charts.FigureSpec("intervals", draw, alt_text, "nothing to draw", "how to read it")


def test_no_two_of_sixteen_variants_look_alike() -> None:
    """Those of the paper's mechanisms are the same in every report."""
    names = [*charts.LOOKS, *(f"standard+{modifier}" for modifier in variants.MODIFIERS)][:16]
    assert len({charts.look(name, names) for name in names}) == len(names) == 16
    assert all(charts.look(name, names) == charts.look(name) for name in charts.LOOKS)
    assert charts.look("laser", names) != charts.look("laser+temp", names)


def test_colours_are_those_of_the_whole_report() -> None:
    every = ("standard", "laser", "a_submission", "acme")
    color = charts.specification(_chart(), every)["layer"][0]["encoding"]["color"]
    assert color["scale"]["domain"] == ["standard", "laser", "acme"]
    assert color["scale"]["range"] == [
        charts.look(name, every)[0] for name in color["scale"]["domain"]
    ]


def test_one_selection_switches_variants() -> None:
    (switch,) = charts.specification(_chart())["params"]
    assert (switch["name"], switch["select"]["fields"]) == ("variants", ["variant"])


def test_rows_hold_what_json_can_say() -> None:
    frame = pd.DataFrame({"a": [1 / 3, math.nan, math.inf], "b": [1, 2, 3], "c": ["x", None, "y"]})
    point = charts.marks("point", frame, {"x": charts.channel("a:Q")})
    chart = {"hconcat": [point, point]}
    (rows,) = charts.specification(chart)["datasets"].values()
    assert rows == [
        {"a": 0.3333333, "b": 1, "c": "x"},
        {"a": None, "b": 2, "c": None},
        {"a": None, "b": 3, "c": "y"},
    ]


def test_no_row_is_dropped() -> None:
    frame = pd.DataFrame({"x": range(6000), "variant": "laser"})
    encoding = {"x": charts.channel("x:Q"), "color": charts.colour(["laser"])}
    chart = charts.marks("point", frame, encoding)
    (rows,) = charts.specification(chart)["datasets"].values()
    assert len(rows) == 6000


@pytest.mark.parametrize(
    ("suffix", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<svg")]
)
def test_a_chart_is_written_by_the_suffix_of_its_file(tmp_path, suffix, start) -> None:
    path = tmp_path / f"chart.{suffix}"
    charts.save(_chart(), path)
    assert path.read_bytes().startswith(start)
    assert path.stat().st_size > 1_000
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_page_gets_the_chart_and_its_text_if_something_is_drawn() -> None:
    def refuse(shown) -> str:
        raise AssertionError("nothing was drawn")

    picture = charts.embed(_plot(), None)
    assert (picture.alt, picture.caption) == ("three intervals", "how to read it")
    assert picture.spec == charts.specification(_chart())
    assert charts.embed(_plot(lambda shown: None, refuse), None) is None


def test_thinned_curves_keep_their_ends_and_short_ones_all() -> None:
    long = pd.DataFrame({"variant": "laser", "x": range(1778)})
    short = pd.DataFrame({"variant": "standard", "x": range(500)})
    found = charts.thinned(pd.concat([long, short]), ["variant"]).groupby("variant")["x"]
    laser, standard = found.get_group("laser"), found.get_group("standard")
    assert len(laser) <= charts.POINTS
    assert (laser.iloc[0], laser.iloc[-1], len(standard)) == (0, 1777, 500)
    assert set(np.diff(laser)[:-1]) == {4}


def test_an_axis_is_logarithmic_only_for_positive_values_of_several_sizes() -> None:
    scale, axis = charts.around(np.array([0.1, 1.0, np.nan, np.inf]))
    assert (scale["type"], axis["values"]) == ("log", [0.1, 0.2, 0.5, 1.0])
    assert scale["domain"] == pytest.approx([0.1 / 10**0.05, 10**0.05])
    scale, _ = charts.around(np.array([0.0, 1.0]))
    assert scale["domain"] == pytest.approx([-0.05, 1.05])
