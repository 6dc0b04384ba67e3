"""The report: one file, whole, that needs no other, with what the tables say."""

import functools
import math
import re
import urllib.parse

import pytest

from analysis import cli, report
from analysis.compare.error_table import build
from analysis.load import metrics
from analysis.load.studies import read_study
from analysis.render import charts
from analysis.views import diagnostics
from sweeps.launchers import table as launchers
from sweeps.records import layout
from tests.analysis import bench_reader
from tests.analysis.conftest import begin_study_in

HOSTILE = '<b>x</b> & "quotes"'


def _study(hand_made, name="tiny", better=0.03, **more):
    """Two rates tuned, then five seeds of two variants: LASER `better` with an sd of 0.0016."""
    points = ({"learning_rate": 0.001}, {"learning_rate": 0.01})
    made = hand_made(name=name, points=points, **more)
    for point in range(2):
        made.trial("tune", "standard", point, 0, [made.evaluation(400, 0.3 - 0.1 * point)])
    for variant, gain in (("standard", 0.0), ("laser", better)):
        for seed in range(5):
            noise = 0.001 * (-1) ** seed * seed * (variant == "laser")
            rows = [
                made.evaluation(step, 0.25 + 0.5 * math.exp(-step / 80) - gain + noise)
                for step in (100, 200, 300, 400)
            ]
            directory = made.trial("compare", variant, 1, seed, rows)
            (directory / layout.MEASUREMENTS).write_text(
                "global_step,grad_norm,loss\n"
                + "".join(f"{step},1.0,{2 - step / 400}\n" for step in range(0, 400, 10))
            )
    made.select({"standard": 1, "laser": 1})
    made.record = {"git_commit": "abc123def", "versions": {"jax": "0.7.0"}}
    return made


def _written(study, parse_page, *options: str):
    assert cli.main(["report", str(study), *options]) == 0
    text = (study / "report.html").read_text(encoding="utf-8")
    return text, parse_page(text)


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """Returns a study whose name is markup, its report in another folder, and the report's text."""
    root = tmp_path_factory.mktemp("reported")
    study = _study(
        functools.partial(begin_study_in, root), name="tiny #1", config={"name": HOSTILE}
    )
    study.record |= {"name": HOSTILE}
    directory, out = study.finish(), root / "reports" / "all.html"
    next(directory.glob("compare/*/*/trial_*")).joinpath(layout.ATTEMPTS).mkdir()
    out.parent.mkdir()
    assert cli.main(["report", str(directory), f"--out={out}"]) == 0
    return directory, out, out.read_text("utf-8")


def test_the_answer_comes_first(reported, parse_page) -> None:
    _, _, text = reported
    page = parse_page(text)
    header = text.index("<header>")
    parts = ("LASER (-0.0296, p &lt;0.001)", "<table", 'class="word-column better">', "<figure")
    places = [text.index(part, header) for part in parts]
    assert places == sorted(places)
    assert page.of("details")
    assert not any("open" in attributes for attributes in page.of("details"))
    # Effects, curves, the search.
    assert len(page.of("figure")) == 3
    words = " ".join(page.words)
    for part in ("abc123def", "learning_rate=0.01", 'variants = ["standard", "laser"]'):
        assert part in words
    assert "<b>" not in text
    assert HOSTILE in page.words


def test_report_needs_no_network(reported, parse_page) -> None:
    """It links to the files of its study, and loads none. Each figure has its text."""
    _, _, text = reported
    page = parse_page(text)
    assert not [a for _, a in page.tags if a.keys() & {"src", "srcset", "data"}]
    assert "url(" not in text.split("</style>")[0]
    assert "@import" not in text
    words = re.findall(r'<p class="words">([^<]*)</p>', text)
    assert len(words) == len(page.of("figure"))
    assert min(map(len, words)) > 30


def test_every_trial_leads_to_its_files(reported, parse_page) -> None:
    """Those of the search, too; only one has logs of attempts."""
    root, out, text = reported
    links = [urllib.parse.unquote(a["href"]) for a in parse_page(text).of("a")]
    targets = [(out.parent / link).resolve() for link in links if not link.startswith("#")]
    trials = {*root.glob("*/*/*/trial_*")}
    assert len(trials) == 12
    measured = {trial / layout.EVAL_MEASUREMENTS for trial in trials}
    (attempts,) = root.glob(f"compare/*/*/*/{layout.ATTEMPTS}")
    assert {*targets} == {root / layout.STUDY, *trials, *measured, attempts}


def test_trials_are_listed_whatever_their_state(hand_made, tmp_path) -> None:
    made = hand_made()
    made.trial("compare", "standard", 0, 0, [made.evaluation(200, 0.3), made.evaluation(400, 0.2)])
    made.trial("compare", "laser", 0, 0, [made.evaluation(200, 0.4)], state="running")
    made.trial("compare", "laser", 0, 1, None, state="failed")
    texts = report.trials(made.table(), tmp_path).texts()
    assert texts.columns.tolist() == [
        *("Variant", "Seed", "State", "Step"),
        *("Train error", "Validation error", "Test error", "Seconds"),
    ]
    assert texts.values.tolist() == [
        ["Standard", "0", "done", "400", "0.1900", "0.2000", "0.2100", "–"],
        ["LASER", "0", "running", "200", "0.3900", "0.4000", "0.4100", "–"],
        ["LASER", "1", "failed", "–", "–", "–", "–", "–"],
    ]


def test_settings_are_those_in_which_two_trials_differ(hand_made) -> None:
    """Of a study and of its trials; those that are equal everywhere are left out."""
    tables = []
    for name, steps in (("a", 100), ("b", 200)):
        made = hand_made(("standard",), name=name, config={"steps": steps, "eval_every": 50})
        made.add_seeds("standard", (0.2, 0.3), hyperparameters={"rate": 0.1, "beta": steps / 1000})
        tables.append(made.table())
    found = report.settings(tables)
    assert [*found] == [
        f"{name}: compare/standard/imagenet_vit_jax/trial_{n}" for name in "ab" for n in (1, 2)
    ]
    differing = [(trial["seed"], trial["hyperparameters.beta"]) for trial in found.values()]
    assert differing == [(0, 0.1), (1, 0.1), (0, 0.2), (1, 0.2)]
    assert not {"eval_every", "hyperparameters.rate", "id"} & {*next(iter(found.values()))}


@pytest.mark.usefixtures("without_charts")
def test_report_of_several_studies_has_a_contents(hand_made, parse_page, tmp_path, capsys) -> None:
    _study(hand_made, "first").finish()
    _study(hand_made, "second", better=0.0).finish()
    _, page = _written(tmp_path / "experiments", parse_page)
    first, second, path = capsys.readouterr().out.splitlines()
    assert first.startswith("first: ")
    assert "better: LASER (-0.0296, p <0.001)" in first
    assert second.startswith("second: ")
    assert "report.html" in path
    links = [attributes["href"] for attributes in page.of("a")]
    anchors = [link for link in links if link.startswith("#")]
    sections = [f"#{attributes['id']}" for attributes in page.of("section")]
    assert ["#answer", "#overview", *anchors] == sections[:4]
    assert len(set(sections)) == len(sections)
    badges = {attributes.get("class") for attributes in page.of("span")}
    assert {"badge better", "badge cannot-tell"} <= badges


@pytest.mark.usefixtures("without_charts")
def test_unfinished_study_has_a_report_that_names_what_is_missing(hand_made, parse_page) -> None:
    made = hand_made()
    made.trial("compare", "standard", 0, 0, None, state="failed", reason="no such disk")
    made.trial("compare", "laser", 0, 0, [made.evaluation(400, 0.2)])
    _, page = _written(made.finish(), parse_page)
    assert "no such disk" in " ".join(page.words)
    assert not {"better", "worse"} & {attributes.get("class") for attributes in page.of("li")}


def test_each_chart_is_told_all_variants_of_the_report(hand_made, diagnosed, monkeypatch) -> None:
    """So that a mechanism keeps its look; charts of the layers are among them."""
    tables = []
    for name, rows in {"a": ("standard", "zeta"), "b": ("standard", "alpha", "zeta")}.items():
        made = hand_made(rows, name=name, seeds=dict.fromkeys(rows, (0.2, 0.3)))
        for entry in made.planned["compare"]:
            diagnosed.write(made.root / entry["path"], (0, 200, 400), 2)
        tables.append(made.table())
    drawn = {}
    monkeypatch.setattr(
        charts, "embed", lambda plot, shown, every: drawn.update({(plot, id(shown)): set(every)})
    )
    report.page(tables, made.root.parent, made.root.parent)
    assert len(drawn) > 10
    assert all(every == {"standard", "alpha", "zeta"} for every in drawn.values())
    for plot in diagnostics.PLOTS:
        assert plot.draw(tables[1])
        assert (plot, id(tables[1])) in drawn


def test_published_logs_have_a_report(shared, tmp_path, parse_page) -> None:
    out = tmp_path / "logs.html"
    assert cli.main(["report", str(shared / "algoperf_logs"), f"--out={out}"]) == 0
    assert metrics.get("wer").label in " ".join(parse_page(out.read_text(encoding="utf-8")).words)


def test_the_configuration_is_written_as_a_command_line_sets_it(hand_made) -> None:
    """Without engines that ran nothing."""
    ran = {"launcher": "slurm", "slurm": {"gpus": 4}, "ray": {"gpus": 9}, "mesh": {"data": 2}}
    directory = _study(hand_made, config=ran).finish()
    lines = report.configuration(build(read_study(directory), "compare")).splitlines()
    assert {"slurm.gpus = 4", "mesh.data = 2", 'variants = ["standard", "laser"]'} <= set(lines)
    assert not [line for line in lines if line.startswith("ray.")]
    assert set(launchers.CLASSES) == report.ENGINES


@pytest.mark.slow
def test_a_report_of_1000_trials_takes_half_a_minute_and_little_memory(
    tmp_path, monkeypatch
) -> None:
    """8 variants of 125 seeds. CPU seconds, which a busy machine does not change."""
    monkeypatch.setattr(bench_reader, "SEEDS", 125)
    study = bench_reader.fabricate(tmp_path, 1_000, 10)
    _, seconds, megabytes = bench_reader.measure("report", study)
    assert seconds <= 30
    assert megabytes <= 900
    assert (study / "report.html").read_text("utf-8").count("trial_") >= 1_000
