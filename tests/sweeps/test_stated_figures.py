"""The figures that studies state are those of their settings and of the compilers."""

import math
import re

import pytest

from sweeps.monitoring import plan
from sweeps.study import config, study
from sweeps.training import accelerators
from tests.benchmarks import performance
from tests.floor_plan import ROOT
from workloads import catalog

TUNED = re.compile(r"(\d+) tuning trials?(?:,| and) (?:then )?(\d+)[^.]*?([\d,]+) steps")
PLAIN = re.compile(r"(?<!tuning )\b(\d+) trials of ([\d,]+) steps")
MINUTES = re.compile(r"(?:about|under) (an?|two|\d+) minutes?( and a half)? on two CPU cores")
HOURS = re.compile(r"about (\d+) h (?:each|a\s+trial), as compiled")
CHIPS = re.compile(r"(\d+) TPU (\w+) chips?, parameters divided over (\d+) of them")
COMPILED = re.compile(r"(\d+) ms a step and ([\d.]+) GB as compiled")


def stating(*patterns):
    """Returns the studies whose docstring states one of the patterns."""
    studies = [
        name
        for name in config.shipped()
        if any(pattern.search(config.shipped()[name].docstring) for pattern in patterns)
    ]
    assert len(studies) > 5
    return studies


def _resolved(name):
    return study.resolve(config.parse(name, []), planning=True)


def _whole(text):
    return int(text.replace(",", ""))


def _stages(resolved):
    """Returns the trials of each stage, and the steps of one."""
    where = plan.resources_of(resolved)
    costs = plan.lines(resolved, where)
    return [cost.trials for cost in costs], costs[-1].steps // costs[-1].trials


def _compiled_s(resolved):
    """Returns the seconds of the study's step with standard attention, None if not compiled."""
    topology = catalog.get(resolved.workload).topology
    table, changes = performance.table(), ("", "variants=standard")
    keys = [(resolved.name, changed, topology, "standard") for changed in changes]
    return next((float(table[key]["ms"]) / 1e3 for key in keys if key in table), None)


@pytest.mark.parametrize("name", stating(TUNED, PLAIN))
def test_trials_and_steps_are_the_study_s(name):
    text = config.shipped()[name].docstring
    tuned, plain = TUNED.search(text), PLAIN.search(text)
    trials, steps = _stages(_resolved(name))
    if tuned:
        assert [int(tuned.group(1)), int(tuned.group(2)), _whole(tuned.group(3))] == [
            *trials,
            steps,
        ]
    else:
        assert [int(plain.group(1)), _whole(plain.group(2))] == [sum(trials), steps]


@pytest.mark.parametrize("name", stating(MINUTES))
def test_minutes_are_those_of_plan(name):
    """Two trials at a time by the catalog's step time; compilation, evaluations and data are in the
    words and not in the plan: at most as long again and two minutes."""
    stated = MINUTES.search(config.shipped()[name].docstring)
    resolved = _resolved(name)
    seconds = catalog.get(resolved.workload).step_seconds
    if seconds is None:
        assert name.startswith("pydoc_returns")  # fine-tuning: no step time is known
        return
    minutes = {"a": 1, "an": 1, "two": 2}.get(stated.group(1)) or int(stated.group(1))
    minutes += 0.5 * bool(stated.group(2))
    trials, steps = _stages(resolved)
    planned = sum(math.ceil(count / 2) * steps * seconds for count in trials) / 60
    assert 0.8 * planned <= minutes <= 2 * planned + 2


@pytest.mark.parametrize("name", stating(HOURS, CHIPS))
def test_hours_and_chips_are_those_compiled(name):
    text = config.shipped()[name].docstring
    hours, chips = HOURS.search(text), CHIPS.search(text)
    resolved = _resolved(name)
    if chips:
        where = accelerators.topology(catalog.get(resolved.workload).topology)
        stated = int(chips.group(1)), chips.group(2), int(chips.group(3))
        assert stated == (where.devices, where.kind, resolved.settings["mesh"]["fsdp"])
    if hours:
        _, steps = _stages(resolved)
        assert abs(steps * _compiled_s(resolved) / 3600 - int(hours.group(1))) <= 0.5


def test_what_was_compiled_is_in_the_table_of_performance():
    rows = [row for row in performance.table().values() if "ms" in row and row["ms"] != "–"]
    compiled = {(row["study"], round(float(row["ms"])), round(float(row["GB"]), 1)) for row in rows}
    stated = {
        (name, int(ms), float(gb))
        for name, shipped in config.shipped().items()
        for ms, gb in COMPILED.findall(shipped.docstring)
    }
    assert stated
    assert stated <= compiled


@pytest.mark.parametrize("name", config.shipped())
def test_a_study_names_studies_that_exist(name):
    for named in re.findall(
        r"\b(?:c4|pydoc|digits|spoken|imagenet|librispeech)_\w+_(?:paper|demo|evidence|tuned|quick)\b",
        config.shipped()[name].docstring,
    ):
        assert named in config.shipped(), f"{name} speaks of {named}, which is no study"


def test_the_page_has_every_row():
    """As compiled where the compiler was installed, else with the words."""
    table = performance.table()
    assert {key[:3] for key in table} == {row[:3] for row in performance.ROWS}
    for row in table.values():
        assert row["GB"] == "not installed" or float(row["GB"]) > 1


def test_the_table_of_full_size_studies():
    """Trials, hours of all of them (AlgoPerf's allowance, or as compiled), devices."""
    text = (ROOT / "docs" / "full_size.md").read_text("utf-8")
    lines = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| `")]
    stated = 0
    for names, _, trials, hours, devices in lines:
        studies = re.findall(r"`(\w+)`", names)
        for name, each in zip(studies, hours.replace("at most", "").split(", "), strict=True):
            resolved = _resolved(name)
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
                assert each.strip() == "–"
                continue
            assert _whole(each) == pytest.approx(
                sum(counts) * steps * seconds / 3600, rel=0.002, abs=0.5
            )
    assert stated == sum(name.endswith(("paper", "diff", "lamb", "bfloat16")) for name in PAPERS)


PAPERS = [name for name in config.shipped() if not name.startswith(("pydoc", "algoperf"))]
