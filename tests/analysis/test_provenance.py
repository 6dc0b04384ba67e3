"""Where a study's numbers come from, as its trials recorded it."""

import re

import pytest

from analysis import cli, report
from analysis.compare import frames, sentences
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


def _trained(made, variant, seed, attempts, planned=None):
    """A trial whose attempts, by their numbers, ran at commits."""
    directory = made.trial("compare", variant, 0, seed, [made.evaluation(400, 0.2 + 0.1 * seed)])
    for number, commit in attempts.items():
        record = {"git_commit_hash": commit, "model_flops_per_step": 1e9 * (number + 1)}
        record |= {"versions": {"jax": f"0.{number}"}, "device_kind": f"device {number}"}
        layout.write_json(directory / f"meta_data_{number}.json", record)
    record = layout.read_json(directory / layout.TRIAL)
    layout.write_json(directory / layout.TRIAL, record | {"git_commit": planned})


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
    hand_made, capsys, attempts, planned, expected
) -> None:
    made = hand_made(record={"git_commit": "start00", "date": "2026-11-28"})
    for variant in ("standard", "laser"):
        _trained(made, variant, 0, attempts, planned)
    made.select({"standard": 0, "laser": 0})
    table = build(read_study(made.finish()))
    assert table.commits == expected
    assert dict(report.provenance(table))["Commit"] == ", ".join(expected)
    assert cli.main(["ledger", str(made.root), "--format=csv"]) == 0
    printed = capsys.readouterr().out
    shown = f"2 commits: {', '.join(expected)}" if len(expected) == 2 else expected[0]
    assert shown in printed
    assert ("aaaa111" in printed) == ("aaaa111" in expected)
    told = [text for text in sentences.caveats(table) if "commits" in text]
    assert len(told) == (len(expected) == 2)


def test_trials_of_several_commits_are_named_everywhere(hand_made, capsys, tmp_path) -> None:
    made = hand_made()
    for seed in range(2):
        _trained(made, "standard", seed, {0: "aaaa111-dirty"})
        _trained(made, "laser", seed, {0: "aaaa111" if seed else "bbbb222"})
    made.select({"standard": 0, "laser": 0})
    root, out = made.finish(), tmp_path / "report.html"
    for command in ("table", "summary", "ledger", "plots"):
        options = [f"--out={tmp_path}"] if command == "plots" else []
        assert cli.main([command, str(root), *options]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert "3 commits: aaaa111-dirty, bbbb222, aaaa111" in printed
    assert cli.main(["report", str(root), f"--out={out}"]) == 0
    assert "3 commits: aaaa111-dirty, bbbb222, aaaa111" in out.read_text("utf-8")


def test_metadata_are_those_of_the_first_attempt_that_wrote_any(hand_made) -> None:
    """Training FLOP was missing where attempt 1 died while it compiled; versions and devices were
    those of planning."""
    made = hand_made()
    _trained(made, "standard", 0, {1: "bbbb222", 2: "bbbb222"})
    _trained(made, "laser", 0, {0: "bbbb222"})
    (made.root / made.planned["compare"][1]["path"] / "meta_data_0.json").write_text("{")
    made.select({"standard": 0, "laser": 0})
    table = build(read_study(made.finish()))
    costs = [frames.costs(table, row)["train_flop"] for row in table.rows]
    assert costs == pytest.approx([2e9 * 400, float("nan")], nan_ok=True)
    found = dict(report.provenance(table))
    assert found["Versions"] == "jax 0.1, jax 0.2 (1 trial); not recorded (1 trial)"
    assert found["Devices"] == "? × device 1, ? × device 2 (1 trial); not recorded (1 trial)"
