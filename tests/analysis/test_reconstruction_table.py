"""The reconstruction experiment's table: measured beside the paper's figures."""

import json

import pytest

from analysis import cli
from analysis.render.latex import render as to_latex
from analysis.render.text import markdown
from analysis.render.text import render as to_text
from analysis.views import reconstruction


def _row(method, dtype="bfloat16", reference="rounded inputs", **changes):
    numbers = {"mean": 0.00235, "sd": 1e-5, "worst": 0.0024, "n": 8, "nonfinite": 0, "layer": None}
    return {"method": method, "dtype": dtype, "reference": reference} | numbers | changes


def _record(*rows, **changes):
    return {
        "format": "attnperf-reconstruction-1",
        "source": "qkv.npz",
        "shape": [1024, 8, 256],
        "causal": True,
        "device": "cpu: cpu",
        "versions": {"jax": "0.10.2"},
        "rows": list(rows),
    } | changes


def test_measured_stands_beside_what_the_paper_prints():
    record = _record(
        _row("Standard"),
        _row("LASER, ours", sd=None, mean=6e-7, dtype="float32"),
        _row("Standard", layer="block_0"),
    )
    document = reconstruction.page(record)
    (grid,) = document.tables
    assert [column.heading for column in grid.columns][-2:] == [
        "paper\n4 TPUv5 chips",
        "paper\n16 A100",
    ]
    (bfloat16,), (float32,) = grid.sections
    assert [cell.text for cell in bfloat16][3:] == [
        "0.00235", "1.0e-05", "0.00240", "8", "0.0016 ± 0.0001", "0.0018 ± 0.0002",
    ]  # fmt: skip
    assert [cell.text for cell in float32][3:] == ["6.0e-07", "–", "0.00240", "8", "–", "–"]
    assert len(reconstruction.page(record, by_layer=True).tables) == 2
    for printer in (to_text, markdown, to_latex):
        assert "0.00235" in printer(document)


def test_outputs_that_were_not_finite_are_a_problem():
    record = _record(_row("LASER vanilla", n=5, nonfinite=3))
    (problem,) = reconstruction.page(record).problems
    assert problem == "nonfinite: LASER vanilla in bfloat16: 3 of 8 tensors, left out of the mean"


def test_an_error_that_is_nan_is_a_dash():
    (grid,) = reconstruction.page(_record(_row("Standard", mean=float("nan")))).tables
    assert grid.sections[0][0][3].text == "–"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"format": "other"}, "its format is 'other'"),
        ([1], "its format is None"),
        (_record(), "it has no rows"),
        (_record(_row("Standard"), versions=None), "does not say the versions"),
        (_record({"method": "Standard"}), "row 0 lacks dtype, reference"),
    ],
)
def test_another_file_is_refused_by_name(tmp_path, content, words):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=words) as raised:
        reconstruction.read(path)
    assert str(path) in str(raised.value)


def test_the_command_prints_it(tmp_path, capsys):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(_record(_row("Standard"))))
    assert cli.main(["reconstruction", str(path)]) == 0
    assert "0.0016 ± 0.0001" in capsys.readouterr().out
