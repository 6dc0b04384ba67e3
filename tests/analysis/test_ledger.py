"""The ledger: one line per study and variant, also where nothing is decided."""

import json

import pytest

from analysis.cli import main
from analysis.compare import error_table
from analysis.load.studies import read_study
from analysis.views import ledger
from sweeps.records import layout


def _study(hand_made, name, hypothesis, errors):
    made = hand_made(name=name, config={"hypothesis": hypothesis})
    for variant, values in errors.items():
        made.add_seeds(variant, values)
    root = made.finish()
    record = json.loads((root / layout.STUDY).read_text())
    record |= {"git_commit": "0123456789abcdef", "date": "2026-11-28"}
    (root / layout.STUDY).write_text(json.dumps(record))
    return root


def test_every_verdict_has_a_line(hand_made, capsys, tmp_path):
    apart = [0.30, 0.31, 0.32, 0.33]
    roots = [
        _study(hand_made, "decided", "LASER errs less.", {
            "standard": apart, "laser": [value - 0.1 + 0.001 * n for n, value in enumerate(apart)],
        }),
        _study(hand_made, "open", "", {"standard": apart, "laser": [0.33, 0.30, 0.32, 0.31]}),
        _study(hand_made, "budget", "", {"standard": apart}),  # nothing is compared: no line
    ]  # fmt: skip
    # Of a finished study that was run again by newer code.
    for trial in (roots[1] / "compare/standard").glob("*/trial_*"):
        layout.write_json(trial / "meta_data_0.json", {"git_commit_hash": "fedcba9876543210"})
    out = tmp_path / "ledger.csv"
    assert main(["ledger", *map(str, roots), f"--out={out}"]) == 0
    assert main(["ledger", *map(str, roots)]) == 0
    printed = capsys.readouterr().out
    for text in (
        "LASER errs less.",
        "better",
        "cannot tell",
        "0123456789ab",
        "fedcba987654",
        "2026-11-28",
    ):
        assert text in printed
    header, *lines = out.read_text().splitlines()
    assert header.split(",") == list(ledger.COLUMNS)
    assert len(lines) == 2
    tables = [error_table.build(read_study(root)) for root in roots]
    differences = ledger.page(tables).data()["difference"].tolist()
    assert differences == pytest.approx([-0.0985, 0.0], abs=1e-12)
