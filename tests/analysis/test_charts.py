"""Charts: the look of variants, thinned curves, axes, and the files and pictures made of them."""

import altair as alt
import numpy as np
import pandas as pd
import pytest

from analysis.render import charts
from attention import table as variants


def _chart(names=("standard", "laser", "acme")) -> alt.LayerChart:
    frame = pd.DataFrame({"variant": names, "label": names, "value": range(len(names))})
    frame = frame.assign(low=frame["value"] - 0.5, high=frame["value"] + 0.5)
    x = alt.X("value:Q", title="error")
    return charts.interval_rows(frame, x, alt.Y("label:N"), ["label:N"], legend=True)


def _plot(
    draw=lambda shown: _chart(), alt_text=lambda shown: "three intervals"
) -> charts.FigureSpec:
    return charts.FigureSpec("intervals", draw, alt_text, "nothing to draw", "how to read it")


def test_a_mechanism_has_one_look_and_no_two_of_twelve_are_alike() -> None:
    names = [*variants.MIXERS, *(f"submission_{letter}" for letter in "abcdefg")]
    assert len({charts.look(name, names) for name in names}) == len(names)
    for name in variants.MIXERS:
        assert charts.look(f"{name}+temp", names) == charts.look(name) == charts.look(name, ["a"])
    assert charts.look("submission_b", names) != charts.look("submission_b")


def test_colours_are_those_of_the_whole_report() -> None:
    every = ("standard", "laser", "a_submission", "acme")
    color = charts.specification(_chart(), every)["layer"][0]["encoding"]["color"]
    assert color["scale"]["domain"] == ["standard", "laser", "acme"]
    assert color["scale"]["range"] == [
        charts.look(name, every)[0] for name in color["scale"]["domain"]
    ]


def test_one_selection_switches_variants() -> None:
    params = charts.specification(_chart())["params"]
    assert [(each["name"], each["select"]["fields"]) for each in params] == [
        ("variants", ["variant"])
    ]


def test_no_row_is_dropped() -> None:
    frame = pd.DataFrame({"x": range(6000), "variant": "laser"})
    chart = alt.Chart(frame).mark_point().encode(x="x:Q", color=charts.colour(["laser"]))
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
    assert (scale.type, axis.values) == ("log", [0.1, 0.2, 0.5, 1.0])
    assert scale.domain == pytest.approx([0.1 / 10**0.05, 10**0.05])
    scale, _ = charts.around(np.array([0.0, 1.0]))
    assert scale.domain == pytest.approx([-0.05, 1.05])
