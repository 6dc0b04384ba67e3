"""Where a study's numbers come from, as its trials recorded it."""

import re

from analysis import report
from analysis.compare.error_table import build
from analysis.load.studies import read_study
from sweeps.records import layout


def _table(hand_made, hardware):
    """One trial per variant and seed; `hardware` maps (variant, seed) to meta_data_0.json."""
    made = hand_made()
    made.record = {"git_commit": "abc", "versions": {"python": "3.11", "numpy": "2", "jax": "0.7"}}
    for variant in ("standard", "laser"):
        for seed in range(2):
            directory = made.trial("compare", variant, 0, seed, [made.evaluation(400, 0.2)])
            layout.write_json(directory / "meta_data_0.json", hardware.get((variant, seed), {}))
    made.trial("tune", "standard", 0, 7, [made.evaluation(400, 0.2)])
    made.select({"standard": 0, "laser": 0})
    return build(read_study(made.finish()))


def test_what_trials_agree_on_is_said_once(hand_made) -> None:
    gpu = {"gpu_model_name": "Tesla V100", "gpu_count": 8}
    everywhere = {(v, s): gpu for v in ("standard", "laser") for s in range(2)}
    found = dict(report.provenance(_table(hand_made, everywhere)))
    assert found["Devices"] == "8 × Tesla V100"
    assert found["Commit"] == "abc"
    assert found["Versions"] == "python 3.11, jax 0.7, numpy 2"
    assert re.findall(r"\d+", found["Trials"]) == ["4", "5"]
    assert found["Stage"] == "compare"
    assert found["Seeds"] == "0, 1"
    assert found["Steps"] == "400"
    assert found["Host"] == "not recorded"


def test_trials_on_other_devices_are_counted(hand_made) -> None:
    cpu = {"device_kind": "cpu", "device_count": 1, "cpu_model_name": "EPYC ", "cpu_count": 1}
    pair = {"device_kind": "H200", "device_count": 8, "process_count": 2}
    hardware = {("standard", 0): cpu, ("standard", 1): cpu, ("laser", 0): cpu, ("laser", 1): pair}
    found = dict(report.provenance(_table(hand_made, hardware)))
    assert found["Devices"] == "1 × cpu (3 trials); 8 × H200 in 2 processes (1 trial)"
    assert found["Host"] == "1 × EPYC (3 trials); not recorded (1 trial)"
