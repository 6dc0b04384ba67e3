"""Studies that ship: figures that they state, points that another study selected, plans."""

import json
import math
import re

import pytest

from attention import table as variants
from attention.common import accelerators
from sweeps.scheduling import plan
from sweeps.study import config, selection
from tests.benchmarks import performance
from tests.floor_plan import ROOT
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


@pytest.mark.parametrize(
    ("paper_table", "chosen"),
    [("lm_test_loss", {"standard": 2, "laser": 2}), ("", {"laser": 2, "diff": 2})],
)
def test_a_study_takes_the_point_another_selected(tmp_path, paper_table, chosen):
    """Also where it compares without the tuning variant. The paper's table stands beside neither
    where the other study left the paper's protocol."""
    points = [
        {"learning_rate": rate, "weight_decay": 0.1, "one_minus_beta1": 0.1, "beta2": 0.99,
         "epsilon": 1e-8, "warmup_factor": 0.05}
        for rate in (0.1, 0.01, 0.001)
    ]  # fmt: skip
    _experiment(tmp_path / "c4_lm_234m_paper", points, chosen, paper_table)
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


TUNED = re.compile(r"(\d+) tuning trials?(?:,| and) (?:then )?(\d+)[^.]*?([\d,]+) steps")
PLAIN = re.compile(r"(?<!tuning )\b(\d+) trials of ([\d,]+) steps")
MINUTES = re.compile(r"(?:about|under) (an?|two|\d+) minutes?( and a half)? on two CPU cores")
HOURS = re.compile(r"about (\d+) h (?:each|a\s+trial), as compiled")
CHIPS = re.compile(r"(\d+) TPU (\w+) chips?, parameters divided over (\d+) of them")
COMPILED = re.compile(r"(\d+) ms a step and ([\d.]+) GB as compiled")
STUDY = re.compile(
    r"\b(?:c4|pydoc|digits|spoken|imagenet|librispeech)_\w+_(?:paper|demo|evidence|tuned|quick)\b"
)


def _whole(text):
    return int(text.replace(",", ""))


def _stages(resolved):
    """Returns the trials of each stage, and the steps of one."""
    costs = plan.lines(resolved, plan.resources_of(resolved))
    return [cost.trials for cost in costs], costs[-1].steps // costs[-1].trials


def _compiled_s(resolved):
    """Returns the seconds of the study's step with standard attention, None if not compiled."""
    topology = catalog.get(resolved.workload).topology
    table, changes = performance.table(), ("", "variants=standard")
    keys = [(resolved.name, changed, topology, "standard") for changed in changes]
    return next((float(table[key]["step_ms"]) / 1e3 for key in keys if key in table), None)


def test_figures_are_stated():
    texts = [shipped.docstring for shipped in config.shipped().values()]
    for pattern in (TUNED, PLAIN, MINUTES, HOURS, CHIPS, COMPILED):
        assert any(pattern.search(text) for text in texts), pattern


@pytest.mark.parametrize("name", config.shipped())
def test_a_shipped_study_resolves_and_states_its_figures(name, tmp_path):
    """Minutes: two trials at a time by the catalog's step time; compilation, evaluations and data
    are in the words and not in the plan: at most as long again and two minutes."""
    resolved = resolve(name, experiment_dir=tmp_path, planning=True)
    assert resolved.name == name
    assert "hours" in plan.render(resolved)
    shipped, entry = config.shipped()[name], catalog.get(resolved.workload)
    assert config.parse(f"{shipped.path.stem}:{shipped.argument}", []) == config.parse(name, [])
    text = shipped.docstring
    for part in ("Command:", "Time:", "Result:"):
        assert re.search(f"^{part} ", text, re.M), f"{name} lacks {part}"
    assert set(STUDY.findall(text)) <= config.shipped().keys()
    tuned, plain, minutes, hours, chips = (
        pattern.search(text) for pattern in (TUNED, PLAIN, MINUTES, HOURS, CHIPS)
    )
    trials, steps = _stages(resolved)
    if tuned:
        assert [_whole(figure) for figure in tuned.groups()] == [*trials, steps]
    elif plain:
        assert [_whole(figure) for figure in plain.groups()] == [sum(trials), steps]
    if minutes and entry.step_seconds:  # no step time is known of fine-tuning
        count = {"a": 1, "an": 1, "two": 2}.get(minutes.group(1)) or int(minutes.group(1))
        rounds = sum(math.ceil(number / 2) for number in trials)
        planned = rounds * steps * entry.step_seconds / 60
        assert 0.8 * planned <= count + 0.5 * bool(minutes.group(2)) <= 2 * planned + 2
    if chips:
        where = accelerators.topology(entry.topology)
        stated = int(chips.group(1)), chips.group(2), int(chips.group(3))
        assert stated == (where.devices, where.kind, resolved.settings["mesh"]["fsdp"])
    if hours:
        assert abs(steps * _compiled_s(resolved) / 3600 - int(hours.group(1))) <= 0.5
    rows = [row for row in performance.table().values() if row["study"] == name]
    compiled = {
        (round(float(row["step_ms"])), round(float(row["memory_gb"]), 1))
        for row in rows
        if row["step_ms"]
    }
    assert {(int(ms), float(gb)) for ms, gb in COMPILED.findall(text)} <= compiled


def test_the_page_is_made_from_a_file_that_has_every_row():
    table = performance.table()
    assert {key[:3] for key in table} == {row[:3] for row in performance.ROWS}
    assert performance.PAGE.read_text("utf-8") == performance.page(table)


def test_the_table_of_full_size_studies():
    """Trials, hours of all of them (AlgoPerf's allowance, or as compiled), devices."""
    text = (ROOT / "docs" / "full_size.md").read_text("utf-8")
    lines = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| `")]
    stated = 0
    for names, _, trials, hours, devices in lines:
        studies = re.findall(r"`(\w+)`", names)
        for name, hour in zip(studies, hours.replace("at most", "").split(", "), strict=True):
            resolved = resolve(name, planning=True)
            entry = catalog.get(resolved.workload)
            counts, steps = _stages(resolved)
            if "V100" in devices:
                count, seconds = 8, entry.step_seconds  # AlgoPerf allows this on 8 of them
            else:
                count = accelerators.topology(entry.topology).devices
                seconds = _compiled_s(resolved)
            assert int(devices.split()[0]) == count
            assert int(trials.split()[0]) == sum(counts)
            stated += 1
            if seconds is None:
                assert hour.strip() == "–"
                continue
            assert _whole(hour) == pytest.approx(
                sum(counts) * steps * seconds / 3600, rel=0.002, abs=0.5
            )
    assert stated == sum(name.endswith(("paper", "diff", "lamb", "bfloat16")) for name in PAPERS)


PAPERS = [name for name in config.shipped() if not name.startswith(("pydoc", "algoperf"))]
