"""A directory with several workloads or studies: one table each, by its workload's target."""

import pathlib
import shutil

import pytest

from analysis import cli
from analysis.compare.error_table import build
from analysis.load.records import StudyRuns
from analysis.load.studies import NotAStudyError, read_each, read_study
from analysis.render import charts

DOMAINS = {"digits_vit": "accuracy", "pydoc_lm": "loss", "spoken_digits_conformer": "wer"}


@pytest.fixture
def experiments(hand_made) -> pathlib.Path:
    """Returns a directory of three studies, one of each domain."""
    for workload, metric in DOMAINS.items():
        names = {"name": f"{workload}_demo", "workload": workload, "metric": metric}
        root = hand_made(seeds={"standard": (0.5,)}, **names).finish()
    return root.parent


def test_a_directory_of_studies_gives_each_with_its_own_metric(experiments) -> None:
    tables = [build(study) for study in read_each(experiments)]
    assert [(table.workload, table.metric.name) for table in tables] == [
        ("digits_vit", "error"),
        ("pydoc_lm", "loss"),
        ("spoken_digits_conformer", "wer"),
    ]


def test_one_study_with_two_workloads_is_two(hand_made) -> None:
    """Each keeps its own trials, problems and target; nothing else of the other."""
    made = hand_made(workload="digits_vit", seeds={"standard": (0.25,)})
    made.workload, made.metric = "pydoc_lm", "loss"
    made.add_seeds("standard", (4.0,))
    made.trial("compare", "standard", 0, 1, None, state="failed", reason="out of memory")
    digits, text = (build(study) for study in read_each(made.finish()))
    assert (digits.workload, digits.metric.name, digits.problems) == ("digits_vit", "error", ())
    assert digits.rows[0].splits["validation"].values == {0: 0.25}
    assert (text.workload, text.metric.name) == ("pydoc_lm", "loss")
    assert text.rows[0].splits["validation"].values == {0: 4.0}
    assert [str(problem).split(": ")[0] for problem in text.problems] == ["failed"]


def test_plots_of_two_workloads_of_one_study_have_a_directory_each(study, monkeypatch) -> None:
    monkeypatch.setattr(charts, "save", lambda chart, path, names: path.touch())
    study.workload = "digits_vit"
    study.add_seeds("standard", (0.25,))
    root = study.finish()
    assert cli.main(["plots", str(root)]) == 0
    found = sorted(path.parent.name for path in root.glob("plots/*/effects.png"))
    assert found == ["digits_vit", "imagenet_vit"]


@pytest.mark.parametrize(
    ("made", "given"),
    [
        ("", "nowhere"),
        ("a/notes.txt", "a/notes.txt"),
        ("l/deep/study.json", "l"),
        ("adam/study_0/w_jax/trial_1/x", "adam/study_0/w_jax/trial_1"),
        ("tiny/study.json", "tiny/compare"),
    ],
)
def test_a_directory_without_a_study_is_refused(tmp_path, made, given) -> None:
    path = tmp_path / (made or "x")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    (tmp_path / "tiny/compare").mkdir(parents=True, exist_ok=True)
    with pytest.raises(NotAStudyError, match=f"{given}: .*study.json"):
        read_study(tmp_path / given)


LOG = "global_step,validation/wer,accumulated_submission_time\n1,0.5,2\n2,0.25,4.5\n"


def write_log(root: pathlib.Path, name: str, text: str = LOG) -> None:
    (root / name).mkdir(parents=True)
    (root / name / "eval_measurements.csv").write_text(text)


def beside(study: StudyRuns) -> list[str]:
    """Returns the names of what is not read."""
    return [problem.trial for problem in study.left_out]


def test_a_damaged_study_does_not_take_the_good_ones_along(experiments, capsys) -> None:
    """The last one's record is cut: named on stderr and below the first table."""
    path = experiments / "spoken_digits_conformer_demo" / "study.json"
    path.write_text(path.read_text()[:40])
    studies = read_each(experiments)
    assert [study.workload for study in studies] == ["digits_vit", "pydoc_lm"]
    assert beside(studies[0]) == ["spoken_digits_conformer_demo"]
    assert set(studies[0].left_out) <= set(build(studies[0]).problems)
    assert cli.main(["table", str(experiments), "--format=csv"]) == 0
    printed = capsys.readouterr()
    assert "spoken_digits_conformer_demo" in printed.err
    assert printed.out.count("study,workload") == 1


def test_where_every_study_is_damaged_all_are_named(experiments) -> None:
    for path in experiments.glob("*/study.json"):
        path.write_text("{")
    with pytest.raises(NotAStudyError, match=r"(?s)digits_vit_demo.*pydoc_lm_demo"):
        read_each(experiments)


def test_logs_beside_studies_are_read_with_them(experiments) -> None:
    write_log(experiments, "adam/study_0/w_jax/trial_1")
    studies = read_each(experiments)
    assert [study.workload for study in studies] == [*DOMAINS, "w"]
    assert (studies[-1].published, studies[-1].runs[0].variant) == (True, "adam")
    assert beside(studies[0]) == []
    assert beside(read_study(experiments)) == [f"{workload}_demo" for workload in DOMAINS]


@pytest.mark.parametrize(
    "name",
    [
        "old/grid/trials.json",
        "old/more/study.json",
        "old/adam/study_0/w_jax/trial_1/eval_measurements.csv",
    ],
)
def test_what_lies_beside_studies_and_is_none_is_named(experiments, name) -> None:
    (experiments / name).parent.mkdir(parents=True)
    (experiments / name).write_text("{}")
    (experiments / "plots").mkdir()
    assert beside(read_each(experiments)[0]) == ["old"]


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


def test_studies_of_one_name_are_told_apart(hand_made) -> None:
    roots = []
    for name in ("first", "second"):
        made = hand_made(name=name)
        made.config["name"] = "tiny"
        made.add_seeds("standard", (0.3, 0.4))
        roots.append(made.finish())
    names = [study.name for study in read_each(roots[0].parent)]
    assert names == [f"tiny ({root})" for root in roots]
    assert [study.name for study in read_each(roots[0])] == ["tiny"]
