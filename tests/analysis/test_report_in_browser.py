"""The report in headless Chromium: nothing on its console, and its controls work."""

import html
import json
import pathlib
import re
import shutil
import subprocess
from typing import Any

import pytest

from analysis import cli
from sweeps.records import layout
from tests.sweeps.waiting import absent

# Before the page's own scripts: what the console says.
LISTEN = """<script>
const complaints = [];
addEventListener("error", (event) => complaints.push(event.message));
addEventListener("unhandledrejection", (event) => complaints.push(String(event.reason)));
console.error = (...words) => complaints.push(words.join(" "));
console.warn = console.error;
</script>"""
# After them: what a reader does, a step at a time; the answer is an attribute of the body.
ACT = """<script>
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const seen = {};
%s
(async () => {
  try {
    await act();
  } catch (error) {
    complaints.push(String(error));
  }
  document.body.dataset.seen = JSON.stringify({ ...seen, complaints });
})();
</script>"""


@pytest.fixture
def browse(tmp_path: pathlib.Path):
    """Returns what opens a page in a window, does what the JavaScript function `act` says, and
    returns what that put into `seen`, and the console's `complaints`."""
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)), None)
    if chromium is None:
        absent("chromium", "apt-get install chromium")

    def open_page(page: pathlib.Path, act: str, *options: str) -> dict[str, Any]:
        text = page.read_text(encoding="utf-8").replace("<body>", f"<body>{LISTEN}", 1)
        # A library holds the same tags in its strings: the page's own is the last.
        before, end, after = text.rpartition("</body>")
        probed = page.with_name("probed.html")
        probed.write_text(f"{before}{ACT % act}{end}{after}", encoding="utf-8")
        done = subprocess.run(
            [
                *(chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"),
                *("--virtual-time-budget=60000", f"--user-data-dir={tmp_path / 'profile'}"),
                *(*options, probed.as_uri()),
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
        found = re.search(r'<body[^>]* data-seen="([^"]*)"', done.stdout)
        assert found, done.stderr[-3000:]
        return json.loads(html.unescape(found[1]))

    return open_page


@pytest.fixture
def report(study) -> pathlib.Path:
    for number, entry in enumerate(study.planned["compare"]):
        text = f"global_step,loss\n0,2.0\n200,1.{number}\n400,1.0\n"
        (study.root / entry["path"] / layout.MEASUREMENTS).write_text(text)
    root = study.finish()
    assert cli.main(["report", str(root)]) == 0
    return root / cli.FILE


def test_a_report_opens_without_a_complaint(browse, report) -> None:
    """Every chart is drawn, and none is wider than its place."""
    for window in ("1280,900", "390,900"):
        seen = browse(
            report,
            """async function act() {
              const figures = [...document.querySelectorAll("figure:has(script)")];
              await Promise.all(figures.map(draw));
              seen.drawn = figures.map((figure) => figure.classList.contains("drawn"));
              seen.overflow = document.documentElement.scrollWidth - innerWidth;
              seen.wide = figures.filter((figure) => {
                const box = figure.querySelector(".chart");
                return box.scrollWidth > box.clientWidth;
              }).length;
            }""",
            f"--window-size={window}",
        )
        assert seen["complaints"] == []
        assert all(seen["drawn"])
        assert len(seen["drawn"]) == 2
        assert seen["wide"] == 0
        assert seen["overflow"] <= 0


def test_a_click_sorts_a_table_and_a_field_filters_it(browse, report) -> None:
    """Of the trials: standard's test errors are 0.31, 0.51, 0.71, LASER's 0.21, 0.31, 0.41."""
    seen = browse(
        report,
        """async function act() {
          const table = [...document.querySelectorAll("table")].findLast(
            (each) => each.closest("details")?.querySelector("a[href$='study.json']"));
          const heading = [...table.querySelectorAll("thead th")].find(
            (each) => each.textContent.startsWith("Test"));
          const column = heading.cellIndex;
          const read = () => [...table.querySelectorAll("tbody tr:not([hidden])")]
            .map((row) => row.cells[column].textContent);
          seen.order = [];
          for (let click = 0; click < 3; click++) {
            heading.querySelector("button").click();
            seen.order.push([heading.getAttribute("aria-sort"), read()]);
          }
          const field = table.closest("details").querySelector("input");
          field.value = "laser";
          field.dispatchEvent(new Event("input"));
          seen.filtered = read();
        }""",
    )
    assert seen["complaints"] == []
    laser, standard = ["0.2100", "0.3100", "0.4100"], ["0.3100", "0.5100", "0.7100"]
    ascending = sorted(laser + standard)
    assert seen["order"] == [
        ["ascending", ascending],
        ["descending", ascending[::-1]],
        [None, standard + laser],
    ]
    assert seen["filtered"] == laser


def test_the_ledger_sorts_and_filters_on_a_desktop_and_on_a_phone(browse, study) -> None:
    """Differences are -0.2 of LASER, and -0.1, 0.1 and 0.2; only the page's tables may scroll."""
    for variant, apart in (("laser+temp", 0.2), ("laser+qk_norm", -0.1), ("standard+temp", 0.1)):
        study.add_seeds(variant, (0.3 + apart, 0.5 + apart, 0.7 + apart))
    study.config["hypothesis"] = "Does it err less?"
    site = study.finish() / "site.html"
    assert cli.main(["ledger", str(study.root), f"--site={site}"]) == 0
    for window in ("1280,900", "390,900"):
        seen = browse(
            site,
            """async function act() {
              const table = document.querySelector("#ledger table");
              const rows = () => [...table.querySelectorAll("tbody tr:not([hidden])")]
                .map((row) => row.cells[0].textContent);
              const heading = [...table.querySelectorAll("thead th")].find(
                (each) => each.textContent === "Difference");
              heading.querySelector("button").click();
              seen.sorted = rows();
              const field = document.querySelector("#ledger input");
              seen.filtered = ["err less", "norm"].map((text) => {
                field.value = text;
                field.dispatchEvent(new Event("input"));
                return rows().length;
              });
              seen.overflows = document.documentElement.scrollWidth > innerWidth;
            }""",
            f"--window-size={window}",
        )
        assert seen == {
            "sorted": ["LASER", "LASER + QK-normalization", "Standard + temp", "LASER + temp"],
            "filtered": [4, 1],
            "overflows": False,
            "complaints": [],
        }


def test_a_box_makes_an_axis_of_curves_logarithmic(browse, report) -> None:
    """As its labels say; of a linear axis each is as far from the next."""
    seen = browse(
        report,
        """async function act() {
          const figure = document.querySelector("figure.learning_curves");
          await draw(figure);
          const type = () => figure.view.scale("concat_0_y").type;
          seen.types = [type()];
          figure.querySelector(".axes [value=y]").click();
          await figure.drawing;
          seen.types.push(type());
          seen.panels = figure.querySelectorAll(".live").length;
        }""",
    )
    assert seen == {"types": ["linear", "log"], "panels": 1, "complaints": []}


def test_the_pointer_finds_the_nearest_seed(browse, report) -> None:
    seen = browse(
        report,
        """async function act() {
          const figure = document.querySelector("figure.learning_curves");
          await draw(figure);
          const widths = () => [...figure.querySelectorAll(".mark-line path")]
            .map((line) => line.getAttribute("stroke-width"))
            .filter((width) => width === "3").length;
          seen.thick = [widths()];
          const cell = figure.querySelector(".voronoi path, path.foreground[d]");
          const near = figure.querySelector(".mark-group [class*=voronoi] path") ?? cell;
          near.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
          await figure.view.runAsync();
          seen.thick.push(widths());
        }""",
    )
    assert seen == {"thick": [0, 1], "complaints": []}


def test_two_trials_settings_are_compared(browse, report) -> None:
    """The first with the last, then with one of the same variant."""
    seen = browse(
        report,
        """async function act() {
          const section = document.querySelector("#settings");
          await wait(1000);
          const read = () => [...section.querySelectorAll("tbody tr")]
            .map((row) => [...row.cells].map((cell) => cell.textContent));
          seen.rows = [read()];
          const last = [...section.querySelectorAll("select")].at(-1);
          last.selectedIndex = 1;
          last.dispatchEvent(new Event("change"));
          seen.rows.push(read());
          seen.hidden = section.hidden;
        }""",
    )
    assert seen == {
        "rows": [
            [["seed", "0", "2"], ["variant", '"laser"', '"standard"']],
            [["seed", "0", "1"]],
        ],
        "hidden": False,
        "complaints": [],
    }


def test_a_click_on_a_legend_switches_variants_in_every_chart(browse, report) -> None:
    """As a box does; shift adds a variant, all of them are no selection."""
    seen = browse(
        report,
        """async function act() {
          const figures = [...document.querySelectorAll("figure:has(script)")];
          await Promise.all(figures.map(draw));
          const settle = async () => { for (const { view } of figures) await view.runAsync(); };
          const state = () => figures.map(({ view }) =>
            [...new Set(view.data("variants_store").map((tuple) => tuple.values[0]))].sort());
          const opacities = () => new Set(figures.flatMap((figure) =>
            [...figure.querySelectorAll(".role-mark path[opacity]")]
              .map((mark) => Number(mark.getAttribute("opacity")))));
          const click = async (name, shiftKey) => {
            const labels = figures.flatMap((figure) =>
              [...figure.querySelectorAll(".role-legend-label text")]);
            labels.find((label) => label.textContent === name).dispatchEvent(
              new MouseEvent("click", { bubbles: true, shiftKey }));
            await settle();
          };
          const boxes = () => [...document.querySelectorAll("#variants input")];
          const checked = () => boxes().filter((box) => box.checked).map((box) => box.value);
          seen.steps = [];
          const note = () => seen.steps.push([state(), checked(), Math.min(...opacities())]);
          note();
          await click("LASER", false);
          note();
          await click("Standard", true);
          note();
          boxes().find((box) => box.value === "laser").click();
          await settle();
          note();
        }""",
    )
    assert seen["complaints"] == []
    charts = len(seen["steps"][0][0])
    assert charts > 1
    chosen, boxes, opacities = zip(*seen["steps"], strict=True)
    expected = ([], ["laser"], ["laser", "standard"], ["standard"])
    assert list(chosen) == [[names] * charts for names in expected]
    assert [sorted(names) for names in boxes] == [["laser", "standard"], *expected[1:]]
    assert opacities[0] > 0.1
    assert opacities[1] == opacities[3] < 0.1
