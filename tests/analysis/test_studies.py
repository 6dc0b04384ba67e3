"""A directory with several workloads or studies: one table each, by its workload's target."""

import dataclasses
import pathlib
import re
import shutil

import pytest

from analysis import cli
from analysis.compare import build
from analysis.load import studies
from analysis.load.studies import NotAStudyError, read_each, read_study

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
    tables = [build.error_table(study) for study in read_each(experiments)]
    assert [(table.workload, table.metric.name) for table in tables] == [
        ("digits_vit", "error"),
        ("pydoc_lm", "loss"),
        ("spoken_digits_conformer", "wer"),
    ]


def test_the_command_prints_one_table_each(experiments, capsys) -> None:
    assert cli.main(["table", str(experiments), "--format=markdown"]) == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if line.startswith("**")]
    assert titles == [
        "**digits_vit_demo: error on digits_vit, stage compare**",
        "**pydoc_lm_demo: loss on pydoc_lm, stage compare**",
        "**spoken_digits_conformer_demo: WER on spoken_digits_conformer, stage compare**",
    ]


def test_csv_of_several_has_one_header(experiments, capsys) -> None:
    assert cli.main(["table", str(experiments), "--format=csv"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.startswith("study,workload")
    assert [line.split(",")[1] for line in lines] == [name for name in DOMAINS for _ in range(3)]


def test_plots_of_several_have_a_directory_each(experiments, tmp_path, capsys) -> None:
    assert cli.main(["plots", str(experiments), "--out", str(tmp_path / "out")]) == 0
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
    digits, text = (build.error_table(study) for study in read_each(made.finish()))
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
    assert cli.main(["plots", str(root)]) == 0
    found = sorted(path.parent.name for path in root.glob("plots/*/errors.png"))
    assert found == ["digits_vit", "imagenet_vit"]


def test_a_directory_of_nothing_is_refused(tmp_path) -> None:
    with pytest.raises(NotAStudyError, match="looked for study.json"):
        read_each(tmp_path)


@needs_logs
def test_algoperfs_logs_give_a_table_of_error_and_one_of_wer() -> None:
    """The best of five points by the median over five studies: its validation medians are those
    of `listing.medians` (test_published_logs.py)."""
    vit, conformer = (build.error_table(study) for study in read_each(LOGS))
    assert (vit.workload, vit.metric.name) == ("imagenet_vit", "error")
    assert (conformer.workload, conformer.metric.name) == ("librispeech_conformer", "wer")
    for table, point, median in ((vit, 2, 0.2168), (conformer, 3, 0.08148)):
        (row,) = table.rows
        assert (row.variant, row.point, row.n) == ("baseline", point, 5)
        assert row.splits["validation"].summary.median == pytest.approx(median, abs=5e-5)
        assert not table.has_baseline
        assert table.problems == ()
    assert conformer.rows[0].splits["test"].summary.median < 0.06


LOG = "global_step,validation/wer,accumulated_submission_time\n1,0.5,2\n2,0.25,4.5\n"


def write_log(root: pathlib.Path, name: str, text: str = LOG) -> None:
    (root / name).mkdir(parents=True)
    (root / name / "eval_measurements.csv").write_text(text)


def test_a_damaged_study_does_not_take_the_good_ones_along(experiments, capsys) -> None:
    """The last one's record is cut: named on stderr and below the first table."""
    path = experiments / "spoken_digits_conformer_demo" / "study.json"
    path.write_text(path.read_text()[:40])
    studies = read_each(experiments)
    assert [study.workload for study in studies] == ["digits_vit", "pydoc_lm"]
    (named,) = studies[0].beside
    assert named.startswith("left out: spoken_digits_conformer_demo: ")
    assert named in build.error_table(studies[0]).problems
    assert cli.main(["table", str(experiments)]) == 0
    assert "left out: spoken_digits_conformer_demo: " in capsys.readouterr().err
    assert cli.main(["table", str(experiments), "--format=csv"]) == 0
    assert capsys.readouterr().err.count("left out: spoken_digits_conformer_demo: ") == 1
    assert cli.main(["report", str(experiments)]) == 0
    assert "left out: spoken_digits_conformer_demo: " in (experiments / "report.html").read_text()


def test_where_every_study_is_damaged_all_are_named(experiments) -> None:
    for path in experiments.glob("*/study.json"):
        path.write_text("{")
    with pytest.raises(NotAStudyError, match=r"digits_vit_demo: .*pydoc_lm_demo: "):
        read_each(experiments)


def test_logs_beside_studies_are_read_with_them(experiments) -> None:
    write_log(experiments, "adam/study_0/w_jax/trial_1")
    studies = read_each(experiments)
    assert [study.workload for study in studies] == [*DOMAINS, "w"]
    assert studies[0].beside == ()
    assert (studies[-1].published, studies[-1].runs[0].variant) == (True, "adam")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("old/grid/trials.json", "old: no study here: .*study.json was lost or not copied"),
        ("old/b/wmt_jax/c/eval_measurements.csv", "old: no study here: .*found b/wmt_jax/c"),
        ("old/more/study.json", r"old: no study here: .*one of these in it: more"),
        ("old/logs/adam/study_0/w_jax/trial_1/eval_measurements.csv", "old: .* in it: logs"),
    ],
)
def test_what_lies_beside_studies_and_is_none_is_named(experiments, name, says) -> None:
    (experiments / name).parent.mkdir(parents=True)
    (experiments / name).write_text("{}")
    (experiments / "plots").mkdir()
    (named,) = read_each(experiments)[0].beside
    assert re.match(f"left out: {says}", named)


COMPANIONS = (".snapshot", ".ipynb_checkpoints", "@eaDir", "._tiny", ".tiny.x1Y2z3", ".Trash-1000")


@pytest.mark.parametrize("name", COMPANIONS)
def test_what_systems_lay_beside_studies_is_no_study(experiments, name) -> None:
    """A copy of a study in a snapshot would count twice."""
    before = read_each(experiments)
    shutil.copytree(before[0].directory, experiments / name)
    after = read_each(experiments)
    assert [study.directory for study in after] == [study.directory for study in before]
    assert [study.problems for study in after] == [study.problems for study in before]


@pytest.mark.parametrize("name", COMPANIONS)
def test_what_systems_lay_beside_logs_is_no_submission(tmp_path, name) -> None:
    write_log(tmp_path, "one/study_0/imagenet_vit_jax/trial_1")
    before = read_study(tmp_path)
    shutil.copytree(tmp_path / "one", tmp_path / name)
    shutil.copytree(tmp_path / name, tmp_path / "one" / "study_0" / name)
    after = read_study(tmp_path)
    assert [run.path for run in after.runs] == [run.path for run in before.runs]
    assert after.problems == before.problems


def test_studies_beside_logs_are_named_by_runs(experiments, capsys) -> None:
    write_log(experiments, "adam/study_0/w_jax/trial_1")
    assert cli.main(["runs", str(experiments)]) == 1
    printed = capsys.readouterr().out
    for workload in DOMAINS:
        assert f"left out: {workload}_demo: a study of its own beside AlgoPerf's logs" in printed


def test_a_copy_of_a_study_is_named(experiments) -> None:
    """Its times are those of the other: no second run has the same to the last digit."""
    for name in ("one", "two"):
        shutil.copytree(experiments / "digits_vit_demo", experiments / name)
    assert read_each(experiments)[0].beside == ()
    for name in ("one", "two"):
        (trial,) = (experiments / name).glob("compare/*/*/trial_1")
        (trial / "eval_measurements.csv").write_text(LOG)
    (named,) = read_each(experiments)[0].beside
    assert named.startswith("duplicated: compare/standard/digits_vit_jax/trial_1/eval_measurements")


def test_studies_of_one_name_are_told_apart_everywhere(hand_made, parse_page, capsys) -> None:
    """In tables, in a report's headings, links and figures, and in scaling's titles."""
    roots = []
    for name in ("first", "second"):
        made = hand_made(name=name)
        made.config["name"] = "tiny"
        made.add_seeds("standard", (0.3, 0.4))
        made.add_seeds("laser", (0.2, 0.3))
        roots.append(made.finish())
    experiments = roots[0].parent
    assert [study.name for study in read_each(experiments)] == ["tiny (first)", "tiny (second)"]
    assert [study.name for study in read_each(roots[0])] == ["tiny"]
    assert cli.main(["report", str(experiments), f"--out={experiments / 'r.html'}"]) == 0
    page = parse_page((experiments / "r.html").read_text(encoding="utf-8"))
    for name in ("tiny (first)", "tiny (second)"):
        headings = [words for words in page.words if words.startswith(f"{name}: Error on")]
        assert len(headings) == 2  # the link and what it leads to
    assert len({link["href"] for link in page.of("a")}) == 2
    assert "tiny: Error on imagenet_vit" not in page.words


def test_as_much_of_a_path_is_named_as_tells_studies_apart(study, tmp_path) -> None:
    """x/deep and y/deep end alike; a directory that is read twice is one study."""
    root = study.finish()
    made = read_study(root)
    others = [dataclasses.replace(made, directory=tmp_path / place / "deep") for place in "xy"]
    names = [each.name for each in studies.distinguished([*others, others[0]])]
    assert names == ["tiny (x/deep)", "tiny (y/deep)", "tiny (x/deep)"]
    assert studies.distinguished([made, made]) == (made, made)
