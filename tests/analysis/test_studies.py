"""A directory with several workloads or studies: one table each, by its workload's target."""

import pathlib

import pytest

from analysis import commands, error_table
from analysis.runs import NotAStudyError
from analysis.studies import read_each

LOGS = pathlib.Path(__file__).resolve().parents[2].parent / "shared" / "algoperf_logs" / "baseline"
needs_logs = pytest.mark.skipif(
    not LOGS.is_dir(), reason="AlgoPerf's published logs are not beside the repository"
)
DOMAINS = {"digits_vit": "accuracy", "pydoc_lm": "loss", "spoken_digits_conformer": "wer"}


@pytest.fixture
def experiments(hand_made) -> pathlib.Path:
    """Returns a directory of three studies, one of each domain."""
    for workload, metric in DOMAINS.items():
        made = hand_made(name=f"{workload}_demo", workload=workload, metric=metric)
        made.trial("compare", "standard", 0, 0, [made.measured(400, metric, 0.5)])
        made.select({"standard": 0})
        root = made.finish()
    return root.parent


def test_a_directory_of_studies_gives_each_with_its_own_metric(experiments) -> None:
    tables = [error_table.build(study) for study in read_each(experiments)]
    assert [(table.workload, table.metric.name) for table in tables] == [
        ("digits_vit", "error"),
        ("pydoc_lm", "loss"),
        ("spoken_digits_conformer", "wer"),
    ]


def test_the_command_prints_one_table_each(experiments, capsys) -> None:
    assert commands.main(["table", str(experiments), "--format=markdown"]) == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if line.startswith("**")]
    assert titles == [
        "**digits_vit_demo: error on digits_vit, stage compare**",
        "**pydoc_lm_demo: loss on pydoc_lm, stage compare**",
        "**spoken_digits_conformer_demo: WER on spoken_digits_conformer, stage compare**",
    ]


def test_csv_of_several_has_one_header(experiments, capsys) -> None:
    assert commands.main(["table", str(experiments), "--format=csv"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.startswith("study,workload")
    assert [line.split(",")[1] for line in lines] == [name for name in DOMAINS for _ in range(3)]


def test_plots_of_several_have_a_directory_each(experiments, tmp_path, capsys) -> None:
    assert commands.main(["plots", str(experiments), "--out", str(tmp_path / "out")]) == 0
    found = sorted(path.parent.name for path in tmp_path.glob("out/*/errors.png"))
    assert found == [f"{workload}_demo" for workload in DOMAINS]


def test_one_study_with_two_workloads_is_two(hand_made) -> None:
    """Each keeps its own trials, problems and target; nothing else of the other."""
    made = hand_made(workload="digits_vit")
    made.trial("compare", "standard", 0, 0, [made.evaluation(400, 0.25)])
    made.select({"standard": 0})
    made.workload, made.metric = "pydoc_lm", "loss"
    made.trial("compare", "standard", 0, 0, [made.measured(400, "loss", 4.0)])
    made.trial("compare", "standard", 0, 1, None, state="failed", reason="out of memory")
    digits, text = (error_table.build(study) for study in read_each(made.finish()))
    assert (digits.workload, digits.metric.name, digits.problems) == ("digits_vit", "error", ())
    assert digits.rows[0].splits["validation"].values == {0: 0.25}
    assert (text.workload, text.metric.name) == ("pydoc_lm", "loss")
    assert text.rows[0].splits["validation"].values == {0: 4.0}
    assert [problem.split(": ")[0] for problem in text.problems] == ["failed"]


def test_plots_of_two_workloads_of_one_study_have_a_directory_each(hand_made) -> None:
    made = hand_made(workload="digits_vit")
    made.trial("compare", "standard", 0, 0, [made.evaluation(400, 0.25)])
    made.workload = "imagenet_vit"
    made.trial("compare", "standard", 0, 0, [made.evaluation(400, 0.25)])
    made.select({"standard": 0})
    root = made.finish()
    assert commands.main(["plots", str(root)]) == 0
    found = sorted(path.parent.name for path in root.glob("plots/*/errors.png"))
    assert found == ["digits_vit", "imagenet_vit"]


def test_a_directory_of_nothing_is_refused(tmp_path) -> None:
    with pytest.raises(NotAStudyError, match="looked for study.json"):
        read_each(tmp_path)


@needs_logs
def test_algoperfs_logs_give_a_table_of_error_and_one_of_wer() -> None:
    """The best of five points by the median over five studies: its validation medians are those
    of `listing.medians` (test_published_logs.py)."""
    vit, conformer = (error_table.build(study) for study in read_each(LOGS))
    assert (vit.workload, vit.metric.name) == ("imagenet_vit", "error")
    assert (conformer.workload, conformer.metric.name) == ("librispeech_conformer", "wer")
    for table, point, median in ((vit, 2, 0.2168), (conformer, 3, 0.08148)):
        (row,) = table.rows
        assert (row.variant, row.point, row.n) == ("baseline", point, 5)
        assert row.splits["validation"].summary.median == pytest.approx(median, abs=5e-5)
        assert not table.has_baseline
        assert table.problems == ()
    assert conformer.rows[0].splits["test"].summary.median < 0.06
