"""The ledger: a line for each verdict, and its page."""

import pytest

from analysis.cli import main
from analysis.compare import error_table
from analysis.load.studies import read_study
from analysis.views import ledger

HOSTILE = "<script>alert(1)</script>"


def _study(hand_made, name, hypothesis, errors, **meta):
    made = hand_made(name=name, config={"hypothesis": hypothesis})
    made.record = {"git_commit": "0123456789abcdef", "date": "2026-11-28"}
    for variant, values in errors.items():
        made.add_seeds(variant, values, meta=meta or None)
    return made.finish()


def test_every_verdict_has_a_line(hand_made, capsys, tmp_path):
    apart = [0.30, 0.31, 0.32, 0.33]
    better = {"standard": apart, "laser": [0.2, 0.211, 0.222, 0.233]}
    unclear = {"standard": apart, "laser": [0.33, 0.30, 0.32, 0.31]}
    roots = [
        _study(hand_made, "decided", "LASER errs less.", better),
        _study(
            hand_made, "open", "", unclear, git_commit_hash="fedcba9876543210"
        ),  # run by newer code
        _study(hand_made, "budget", "", {"standard": apart}),  # nothing is compared: no line
    ]
    out = tmp_path / "ledger.csv"
    assert main(["ledger", *map(str, roots), f"--out={out}"]) == 0
    header, *lines = out.read_text().splitlines()
    assert header.split(",") == list(ledger.COLUMNS)
    assert len(lines) == 2
    words = (("LASER errs less.", "better", "0123456789ab"), ("cannot tell", "fedcba987654"))
    for line, texts in zip(lines, words, strict=True):
        assert all(text in line for text in (*texts, "2026-11-28"))
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
    (line,) = ledger.page([made.table()]).data().to_dict("records")
    start = (line["hypothesis"], line["date"], line["design_commit"])
    assert start == (expected, "2026-11-28", "aaaa111")


def test_the_page_has_every_verdict_and_leads_to_its_study(hand_made, parse_page, tmp_path):
    """The hypothesis is in each row and below; markup is escaped; an address of another kind is no
    link."""
    values = {"standard": [0.30, 0.31, 0.32, 0.33], "laser": [0.2, 0.211, 0.222, 0.233]}
    _study(hand_made, "a", "", values, command="train --lr=1", url="javascript:alert(1)")
    _study(hand_made, "b #1", HOSTILE, values, command="train", url="https://example.org/b")
    out = tmp_path / "site.html"
    assert main(["ledger", str(tmp_path / "experiments"), f"--site={out}"]) == 0
    page = parse_page(out.read_text("utf-8"))
    links = [attributes["href"] for attributes in page.of("a")]
    assert links[:3] == ["#study-0", "#study-1", "experiments/a"]
    assert links[3:] == ["https://example.org/b", "experiments/b%20%231"]
    assert [attributes["id"] for attributes in page.of("section")] == ["study-0", "study-1"]
    assert page.words.count(HOSTILE) == 2
    assert {"train --lr=1", "javascript:alert(1)"} <= set(page.words)
    assert not [a for _, a in page.tags if a.keys() & {"src", "srcset", "data"}]
