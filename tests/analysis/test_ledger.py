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
    record["runs"][0] |= {"git_commit": "0123456789abcdef", "date": "2026-11-28"}
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


@pytest.mark.parametrize(
    ("hypotheses", "expected"),
    [
        (["A"], "A"),
        (["A", "A"], "A"),
        (["A", "B"], "A; changed on 2026-12-01: B"),
        ([None, "B"], "none; changed on 2026-12-01: B"),
        (["A", ""], "A; changed on 2026-12-01: none"),
        (["A", "B", "A"], "A; changed on 2026-12-01: B; changed on 2026-12-02: A"),
    ],
)
def test_the_hypothesis_is_that_of_the_start(hand_made, hypotheses, expected):
    """`run --config.hypothesis` on a finished study stood beside the date of the start."""
    made = hand_made(config={"hypothesis": hypotheses[-1]})
    for variant in ("standard", "laser"):
        made.add_seeds(variant, [0.3, 0.31, 0.32])
    (plan,) = made.plans()
    made.record["runs"] = [
        {**plan, "hypothesis": text, "date": date, "git_commit": commit}
        for text, date, commit in zip(
            hypotheses,
            ("2026-11-28", "2026-12-01", "2026-12-02"),
            ("aaaa111", "bbbb222", "cccc333"),
            strict=False,
        )
    ]
    tables = [error_table.build(read_study(made.finish()))]
    (line,) = ledger.page(tables).data().to_dict("records")
    assert (line["hypothesis"], line["date"]) == (expected, "2026-11-28")
    assert line["design_commit"] == "aaaa111"
    record = layout.read_json(made.root / layout.STUDY)
    del record["runs"]
    layout.write_json(made.root / layout.STUDY, record | {"date": "2026-11-01"})
    (line,) = ledger.page([error_table.build(read_study(made.root))]).data().to_dict("records")
    assert (line["hypothesis"], line["date"]) == (hypotheses[-1] or None, "2026-11-01")
