"""Where a study's numbers come from, as its trials recorded it."""

import pytest

from analysis import report
from analysis.compare import frames
from analysis.views import sentences
from sweeps.records import layout


def _table(hand_made, hardware):
    """One trial per variant and seed; `hardware` maps (variant, seed) to meta_data_0.json."""
    made = hand_made()
    made.record = {"git_commit": "abc", "versions": {"python": "3.11", "numpy": "2", "jax": "0.7"}}
    for variant in ("standard", "laser"):
        for seed in range(2):
            made.add_seeds(variant, (0.2,), first=seed, meta=hardware.get((variant, seed), {}))
    made.add_seeds("standard", (0.2,), "tune", first=7)
    return made.table()


def test_what_trials_agree_on_is_said_once(hand_made) -> None:
    gpu = {"gpu_model_name": "Tesla V100", "gpu_count": 8}
    everywhere = {(v, s): gpu for v in ("standard", "laser") for s in range(2)}
    expected = {
        "Devices": "8 × Tesla V100",
        "Commit": "abc",
        "Versions": "python 3.11, jax 0.7, numpy 2",
        "Trials": "4 in this table, 5 in the study",
        "Stage": "compare",
        "Seeds": "0, 1",
        "Steps": "400",
        "Host": "not recorded",
    }
    assert expected.items() <= dict(report.provenance(_table(hand_made, everywhere))).items()


def test_trials_on_other_devices_are_counted(hand_made) -> None:
    cpu = {"device_kind": "cpu", "device_count": 1, "cpu_model_name": "EPYC ", "cpu_count": 1}
    pair = {"device_kind": "H200", "device_count": 8, "process_count": 2}
    hardware = {("standard", 0): cpu, ("standard", 1): cpu, ("laser", 0): cpu, ("laser", 1): pair}
    assert {
        ("Devices", "1 × cpu (3 trials); 8 × H200 in 2 processes (1 trial)"),
        ("Host", "1 × EPYC (3 trials); not recorded (1 trial)"),
    } <= set(report.provenance(_table(hand_made, hardware)))


def _trained(made, variant, attempts, planned=None):
    """A trial whose attempts, by their numbers, ran at commits."""
    made.add_seeds(variant, (0.2,), git_commit=planned)
    directory = made.root / made.planned["compare"][-1]["path"]
    for number, commit in attempts.items():
        record = {"git_commit_hash": commit, "model_flops_per_step": 1e9 * (number + 1)}
        record |= {"versions": {"jax": f"0.{number}"}, "device_kind": f"device {number}"}
        layout.write_json(directory / f"meta_data_{number}.json", record)


@pytest.mark.parametrize(
    ("attempts", "planned", "expected"),
    [
        ({0: "bbbb222"}, "aaaa111", ("bbbb222",)),
        ({1: "bbbb222"}, "aaaa111", ("bbbb222",)),  # the first attempt died before it recorded
        ({0: "bbbb222", 1: "cccc333"}, "aaaa111", ("bbbb222", "cccc333")),
        ({9: "bbbb222", 10: "cccc333"}, "aaaa111", ("bbbb222", "cccc333")),
        ({0: None, 1: "cccc333"}, "aaaa111", ("cccc333",)),
        ({0: None}, "aaaa111", ("aaaa111",)),
        ({}, "aaaa111", ("aaaa111",)),
        ({}, None, ("start00",)),
    ],
)
def test_the_commit_is_that_of_the_attempts_that_trained(
    hand_made, attempts, planned, expected
) -> None:
    made = hand_made(record={"git_commit": "start00", "date": "2026-11-28"})
    for variant in ("standard", "laser"):
        _trained(made, variant, attempts, planned)
    table = made.table()
    assert table.commits == expected
    assert dict(report.provenance(table))["Commit"] == ", ".join(expected)
    told = [text for text in sentences.caveats(table) if "commits" in text]
    assert len(told) == (len(expected) == 2)


def test_metadata_are_those_of_the_first_attempt_that_wrote_any(hand_made) -> None:
    """Training FLOP was missing where attempt 1 died while it compiled; versions and devices were
    those of planning."""
    made = hand_made()
    _trained(made, "standard", {1: "bbbb222", 2: "bbbb222"})
    _trained(made, "laser", {0: "bbbb222"})
    (made.root / made.planned["compare"][1]["path"] / "meta_data_0.json").write_text("{")
    table = made.table()
    costs = [frames.costs(table, row)["train_flop"] for row in table.rows]
    assert costs == pytest.approx([2e9 * 400, float("nan")], nan_ok=True)
    assert {
        ("Versions", "jax 0.1, jax 0.2 (1 trial); not recorded (1 trial)"),
        ("Devices", "? × device 1, ? × device 2 (1 trial); not recorded (1 trial)"),
    } <= set(report.provenance(table))
