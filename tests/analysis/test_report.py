"""The report: one file, whole, that needs no other, with what the tables say."""

import base64
import json
import math
import re
import types
from xml.etree import ElementTree

import pytest

from analysis import cli, report
from analysis.compare.build import error_table
from analysis.load import metrics
from analysis.load.studies import read_study
from analysis.render import pictures, style
from analysis.views import catalog
from analysis.views.table import power as power_view
from sweeps.launchers import table as launchers
from sweeps.records import layout

STEPS = (100, 200, 300, 400)
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
                for step in STEPS
            ]
            directory = made.trial("compare", variant, 1, seed, rows)
            (directory / layout.MEASUREMENTS).write_text(
                "global_step,grad_norm,loss\n"
                + "".join(f"{step},1.0,{2 - step / 400}\n" for step in range(0, 400, 10))
            )
    made.select({"standard": 1, "laser": 1})
    made.record = {"git_commit": "abc123def", "versions": {"jax": "0.7.0"}}
    return made


def _diagnostics(directory, laser: bool) -> None:
    edges = [-12.0, -6.0, -3.0, 0.0]
    lines = [{"format": "attnperf-diagnostics-1", "histogram_edges_log10": edges, "examples": 8}]
    for step in (0, 200, 400):
        for index in range(2):
            numbers = {
                "share_below_1e-3": 0.5 + 0.1 * laser,
                "share_below_1e-7": 0.1,
                "entropy": 2.0,
                "entropy_share": 0.5,
                "jacobian_mean": 0.2,
                "jacobian_max": 0.4,
                "logit_grad_norm": 1e-3,
                "query_grad_norm": 1e-2,
                "key_grad_norm": 1e-2,
                "value_grad_norm": 1e-1,
                "value_range_min": 0.1,
                "value_range_median": 1.0,
                "value_range_max": 3.0,
                "channels": 16,
                "floored_channels": 0,
            }
            place = {"global_step": step, "preemption_count": 0, "index": index}
            layer = {"layer": f"block_{index}/attention", "histogram": [1, 2, 3, 4]}
            lines.append(place | layer | numbers)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / "diagnostics.jsonl").write_text(text)


def _written(study, parse_page, *options: str):
    assert cli.main(["report", str(study), *options]) == 0
    text = (study / "report.html").read_text(encoding="utf-8")
    return text, parse_page(text)


def test_report_of_a_study(hand_made, parse_page, capsys: pytest.CaptureFixture[str]) -> None:
    study = _study(hand_made).finish()
    text, page = _written(study, parse_page)
    assert re.search(r"wrote .*report.html \(\d\.\d MB\)", capsys.readouterr().out)
    words = " ".join(page.words)
    assert "Test error: LASER (-0.0296, p <0.001) better than Standard." in words
    # First the answer: the sentence, variants by workloads, what seeds can see, their picture.
    parts = ("better than Standard", "<table", "What these seeds can see", "<figure", 'verdicts"')
    first = [text.index(each) for each in parts]
    assert first == sorted(first)
    assert 'class="better">' in text[: first[-1]]
    assert page.of("details")
    assert not any("open" in each for each in page.of("details"))
    for part in ("Error over seeds", "What these seeds can tell", "Provenance", "abc123def"):
        assert part in words
    assert "learning_rate=0.01" in words
    assert 'variants = ["standard", "laser"]' in words
    titles = ("differences from Standard", "median and range")
    assert len(page.of("figure")) >= 4, titles


def test_report_needs_no_network_and_no_other_file(hand_made, parse_page) -> None:
    text, page = _written(_study(hand_made).finish(), parse_page)
    linked = [
        value
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "data", "action")
    ]
    assert linked
    assert all(value.startswith(("data:image/", "#")) for value in linked)
    assert "url(" not in text.split("</style>")[0]
    assert "@import" not in text
    for image in page.of("img"):
        assert len(image["alt"]) > 30
    for picture in [*page.of("img"), *page.of("source")]:
        uri = picture.get("src") or picture["srcset"]
        kind, _, data = uri.partition(";base64,")
        content = base64.b64decode(data, validate=True)
        if kind == "data:image/svg+xml":
            assert ElementTree.fromstring(content).tag.endswith("svg")
        else:
            assert content.startswith(b"\x89PNG")


@pytest.mark.slow
def test_report_says_what_happened_inside_the_layers(hand_made, parse_page) -> None:
    made = _study(hand_made)
    root = made.finish()
    _, page = _written(root, parse_page)
    assert not any("Inside the attention layers" in word for word in page.words)
    for directory in root.glob("compare/*/*/trial_*"):
        _diagnostics(directory, "laser" in str(directory))
    before = len(page.of("figure"))
    _, page = _written(root, parse_page)
    assert any("Inside the attention layers" in word for word in page.words)
    assert len(page.of("figure")) > before + 3


def test_report_of_several_studies_has_a_contents(hand_made, parse_page, tmp_path) -> None:
    _study(hand_made, "first").finish()
    _study(hand_made, "second", better=0.0).finish()
    _, page = _written(tmp_path / "experiments", parse_page)
    anchors = [attributes["href"] for attributes in page.of("a")]
    sections = [f"#{attributes['id']}" for attributes in page.of("section")]
    assert ["#answer", *anchors] == sections[:3]
    assert len(set(sections)) == len(sections)
    classes = [attributes.get("class") for attributes in page.of("li")]
    assert {"better", "cannot-tell"} <= set(classes)


def test_names_in_a_report_are_never_markup(hand_made, parse_page) -> None:
    made = _study(hand_made, config={"name": HOSTILE})
    made.record |= {"name": HOSTILE}
    text, page = _written(made.finish(), parse_page)
    assert "<b>" not in text
    assert HOSTILE in page.words


def test_unfinished_study_has_a_report_that_names_what_is_missing(hand_made, parse_page) -> None:
    made = hand_made()
    made.trial("compare", "standard", 0, 0, None, state="failed", reason="no such disk")
    made.trial("compare", "laser", 0, 0, [made.evaluation(400, 0.2)])
    made.select({"standard": 0, "laser": 0})
    _, page = _written(made.finish(), parse_page)
    words = " ".join(page.words)
    assert "no such disk" in words
    assert "No verdict on test error: Standard, the baseline, has no number." in words


def test_out_is_checked_before_anything_is_drawn(
    hand_made, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = _study(hand_made).finish()
    assert cli.main(["report", str(study), f"--out={tmp_path / 'no' / 'x.html'}"]) == 2
    assert f"{tmp_path / 'no'} is no directory" in capsys.readouterr().err
    assert not list(study.glob("*.html"))


def test_a_mistyped_study_has_the_message_of_a_table(tmp_path, capsys) -> None:
    said = set()
    for command in ("report", "table", "plots"):
        assert cli.main([command, str(tmp_path / "nowhere")]) == 2
        said.add(capsys.readouterr().err)
    assert len(said) == 1
    assert "no such directory" in said.pop()


def test_a_mechanism_keeps_its_look_through_a_report(hand_made, monkeypatch) -> None:
    """`zeta` is alone in one study and has others before it in the alphabet in another one."""
    tables = []
    for name, rows in {"a": ("standard", "zeta"), "b": ("standard", "alpha", "zeta")}.items():
        made = hand_made(rows, name=name)
        for row in rows:
            made.add_seeds(row, (0.2, 0.3))
        tables.append(error_table(read_study(made.finish())))
    looks = []
    monkeypatch.setattr(pictures, "embed", lambda plot, table: looks.append(style.look("zeta")))
    report.page(tables, made.root.parent)
    assert len(looks) > 10
    assert len(set(looks)) == 1
    looks.clear()
    plot = pictures.Plot("x.png", lambda table: looks.append(style.look("zeta")), str, "", "")
    monkeypatch.setattr(catalog, "get", lambda name: types.SimpleNamespace(PLOTS=(plot,)))
    assert list(catalog.write_plots(tables, None))
    assert len(set(looks)) == 1


def test_sensitivity_is_said_in_a_sentence(hand_made) -> None:
    said = power_view.sentence(error_table(read_study(_study(hand_made).finish())))
    assert re.fullmatch(
        r"Smallest true difference .* would find: 0\.\d{4}\. The effect asked for \(.*\) takes "
        r"\d+ seeds\.",
        said,
    )


def test_published_logs_have_a_report(shared, tmp_path, parse_page) -> None:
    out = tmp_path / "logs.html"
    assert cli.main(["report", str(shared / "algoperf_logs"), f"--out={out}"]) == 0
    page = parse_page(out.read_text(encoding="utf-8"))
    words = " ".join(page.words)
    assert "AlgoPerf's published logs" in words
    assert metrics.get("wer").label in words
    assert cli.FILE not in words


def test_every_view_with_figures_of_a_table_stands_in_the_report() -> None:
    chapters = (*report.BEFORE_VERDICTS, *report.RESULTS, *report.INSIDE)
    assert len(set(chapters)) == len(chapters)
    assert set(chapters) <= set(catalog.VIEWS)
    assert set(catalog.PLOTTED) <= set(chapters)


def test_the_configuration_is_without_engines_that_ran_nothing(hand_made) -> None:
    ran = {"launcher": "slurm", "slurm": {"gpus": 4}, "ray": {"gpus": 9}, "mesh": {"data": 2}}
    directory = _study(hand_made, config=ran).finish()
    text = report.configuration(error_table(read_study(directory), "compare"))
    assert "slurm.gpus = 4" in text
    assert "mesh.data = 2" in text
    assert "ray." not in text
    assert set(launchers.CLASSES) == report._ENGINES
