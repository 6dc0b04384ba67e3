"""Studies that take the point another one selected, as the paper's do, and what they plan for."""

import json
import re

import pytest

from attention import table as variants
from sweeps.monitoring import plan
from sweeps.study import selection
from tests.sweeps.conftest import resolve
from workloads import catalog


def _experiment(directory, points, chosen, paper_table="lm_test_loss"):
    """Writes what a finished tuning leaves."""
    directory.mkdir()
    settings = {"tuning_variant": "standard", "protocol": "tune_then_compare"}
    record = {"config": settings, "points": points, "paper_table": paper_table}
    record |= {"name": directory.name, "stages": ["tune", "compare"]}
    (directory / "study.json").write_text(json.dumps(record))
    (directory / "selection.json").write_text(json.dumps({"points": chosen}))


@pytest.mark.parametrize("paper_table", ["lm_test_loss", ""])
def test_a_study_takes_the_point_another_selected(tmp_path, paper_table):
    """The paper's table stands beside neither where the other study left the paper's protocol."""
    points = [
        {"learning_rate": rate, "weight_decay": 0.1, "one_minus_beta1": 0.1, "beta2": 0.99,
         "epsilon": 1e-8, "warmup_factor": 0.05}
        for rate in (0.1, 0.01, 0.001)
    ]  # fmt: skip
    _experiment(tmp_path / "c4_lm_234m_paper", points, {"standard": 2, "laser": 2}, paper_table)
    resolved = resolve("c4_lm_paper", experiment_dir=tmp_path)
    assert [point["learning_rate"] for point in resolved.points] == [0.001]
    assert len(resolved.trials("grid")) == 2
    assert resolved.settings["paper_table"] == paper_table


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("study.json", "{}", "study.json is damaged"),
        ("study.json", "{", "study.json.*cut short"),
        ("study.json", None, "has protocol grid and .* selects no point"),
        (
            "selection.json",
            '{"points": {}}',
            "no point for the tuning variant 'standard'",
        ),
        *(
            ("selection.json", f'{{"points": {points}}}', "no point for .* 'standard'")
            for point in (-1, 7, "null", '"0"', 0.5, "[]", "{}")
            for points in (f'{{"standard": {point}}}', f"[{point}]", point)
        ),
        ("selection.json", "[]", "no point for .* 'standard'"),
        ("selection.json", '{"points": ', "selection.json.*cut short"),
    ],
)
def test_a_selection_that_cannot_be_taken(tmp_path, name, content, message):
    directory = tmp_path / "c4_lm_234m_paper"
    _experiment(directory, [{}], {"standard": 0})
    path = directory / name
    path.write_text(content or path.read_text().replace("tune_then_compare", "grid"))
    for planning in (True, False):
        with pytest.raises(ValueError, match=message):
            resolve("c4_lm_paper", experiment_dir=tmp_path, planning=planning)


def test_a_selection_that_is_not_there(tmp_path, capsys):
    """A plan warns of that alone."""
    _experiment(tmp_path / "mine", [{}], {"standard": 0})
    with pytest.raises(selection.NotYetError, match="no point yet. Run it first: python -m"):
        resolve("c4_lm_paper", experiment_dir=tmp_path)
    for name in ("nope", "", "c4_lm_234m_papr"):
        with pytest.raises(ValueError, match=f"'{name}'. Known: mine, .*c4_lm_234m_paper"):
            resolve("c4_lm_paper", experiment_dir=tmp_path, space=f"selected:{name}")
    capsys.readouterr()
    resolve("c4_lm_paper", experiment_dir=tmp_path, planning=True)
    assert re.fullmatch("warning: .*space .*no point yet.*\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    "change",
    [{"variants": "standard,laser+per_dim_temp"}, {"tuning_variant": "standard+per_dim_temp"}],
)
def test_speech_has_six_rows_and_says_why(change):
    left_out = {"standard+per_dim_temp", "laser+per_dim_temp"}
    assert set(catalog.paper_rows("imagenet_vit")) == set(variants.PAPER_ROWS)
    assert set(catalog.paper_rows("librispeech_conformer")) == {*variants.PAPER_ROWS} - left_out
    with pytest.raises(ValueError, match="scales its queries per dimension itself"):
        resolve("librispeech_conformer_paper", **change)


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("c4_lm_1b_paper", "v5e:8x16"),
        ("c4_lm_2b_superglue", "v5e:4x8"),
        ("imagenet_vit_paper", "h100:1x1x8"),
        ("digits_vit_quick", None),
    ],
)
def test_a_plan_names_the_topology_to_compile_for(name, topology):
    text = plan.render(resolve(name, planning=True))
    assert re.findall(r"sweeps compile --topology=(\S+),", text) == [topology] * bool(topology)
