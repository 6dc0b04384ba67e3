"""The report: one HTML file with everything that a study's directory says, verdicts first."""

import collections
import dataclasses
import datetime
import json
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from analysis.compare import families, summary
from analysis.compare.error_table import ErrorTable
from analysis.load import paper
from analysis.load.files.json_records import META_FILE
from analysis.load.records import Run
from analysis.render import html, pictures, style
from analysis.render.pages import Page
from analysis.render.pictures import Picture
from analysis.views import catalog, verdicts
from analysis.views.table import power
from sweeps.records import layout

# Which views stand where in a study's section: the first before the verdicts, the results below the
# table, what was recorded inside the attention layers in a chapter of its own.
BEFORE_VERDICTS = ("effects",)
RESULTS = ("intervals", "curves", "hyperparameters", "time", "spikes", "downstream")
INSIDE = ("diagnostics",)

# Keys of `versions` in the order that a reader looks for them; the others follow.
FIRST = ("python", "jax", "jaxlib", "flax", "optax")
UNKNOWN = "not recorded"
# Groups of a study's keys, of which one says who ran it (sweeps/launchers/table.py).
_ENGINES = {"local", "slurm", "ray", "kubernetes"}


def page(tables: Sequence[ErrorTable], directory: pathlib.Path) -> str:
    """Returns the page on `tables`, one section each; figures are inside it as data."""
    style.distinguish(row.variant for table in tables for row in table.rows)
    sections = [_section(number, table) for number, table in enumerate(tables)]
    answer, answer_pictures = _answer(tables)
    names = list(dict.fromkeys(table.study.name for table in tables))
    title = names[0] if len(names) == 1 else f"{directory.resolve().name}: {len(names)} studies"
    laws, drawn = scaling_laws(tables)
    # The paper's tables, those first that a study here stands beside.
    view, beside = catalog.get("paper"), {table.study.paper_table for table in tables}
    printed = view.pages(sorted(view.PRINTED, key=lambda key: key not in beside))
    return html.render(
        "report.html",
        title=title,
        made=f"Report made by attnperf on {datetime.date.today().isoformat()}; figures of the "
        f"paper: {paper.SOURCE}.",
        answer=answer,
        answer_pictures=answer_pictures,
        sections=sections,
        across=len(laws),
        across_pictures=drawn,
        appendix=[*laws, *printed],
    )


def _answer(tables: Sequence[ErrorTable]) -> tuple[Page | None, list[Picture]]:
    """Returns the first screen: variants by workloads, over all of them, what the seeds can see;
    None where nothing is compared. Problems are named in the studies' own sections."""
    try:
        view, found = catalog.get("summary"), summary.of_tables(tables)
    except ValueError:  # no baseline, or several: the sections say so
        return None, []
    drawn = [made for plot in view.PLOTS if (made := pictures.embed(plot, found))]
    return dataclasses.replace(view.page(found), problems=()), drawn


def _section(number: int, table: ErrorTable) -> dict[str, Any]:
    """Returns one study and workload: what the template prints of it, in its order."""
    name = f"{table.study.name}: {table.metric.title} on {table.workload}"
    return dict(
        anchor=f"{number}-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}",
        title=name,
        headline=verdicts.headline(table),
        description=_description(table),
        sensitivity=power.sentence(table),
        verdicts=verdicts.of_table(table),
        problems=len(table.problems),
        first_pictures=_pictures(BEFORE_VERDICTS, table),
        main=catalog.get("table").page(table),
        pictures=_pictures(RESULTS, table),
        pages=_pages(RESULTS, table),
        inside=_pictures(INSIDE, table),
        inside_pages=_pages(INSIDE, table),
        provenance=provenance(table),
        config=configuration(table),
    )


def _pictures(names: Iterable[str], table: ErrorTable) -> list[Picture]:
    """Returns the figures of views, of those that there is something to draw for."""
    plots = (plot for name in names for plot in getattr(catalog.get(name), "PLOTS", ()))
    return [made for plot in plots if (made := pictures.embed(plot, table)) is not None]


def _pages(names: Iterable[str], table: ErrorTable) -> list[Page]:
    """Returns the pages of views, of those that have something to say."""
    makers = (getattr(catalog.get(name), "page", None) for name in names)
    return [made for page in makers if page and (made := page(table)) is not None]


def _description(table: ErrorTable) -> str:
    """Returns what was compared, in a sentence or two."""
    measured = [row for row in table.rows if row.n]
    seeds = sorted({row.n for row in measured})
    spread = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0] if seeds else 0)
    many = "seed" if spread == "1" else "seeds"
    whom = "1 variant" if len(table.rows) == 1 else f"{len(table.rows)} variants"
    said = f"{whom}, {spread} {many} each, workload {table.workload}"
    if table.has_baseline:
        said += f", baseline {table.baseline_label}"
    note = f" Data: {table.reference_note}" if table.reference_note else ""
    return f"{said}.{note}"


def scaling_laws(tables: Sequence[ErrorTable]) -> tuple[list[Page], list[Picture]]:
    """Returns the scaling law of each family of language models (one data set, optimizer,
    precision, batch size and budget), as pages and as figures: none where a family has one size
    only."""
    view, found = catalog.get("scaling"), families.of(tables)
    drawn = (pictures.embed(plot, family) for family in found for plot in view.PLOTS)
    return [view.of_family(family) for family in found], [each for each in drawn if each]


def provenance(table: ErrorTable) -> list[tuple[str, str]]:
    """Returns where a table's numbers come from, as its files say: (name, text) pairs on the trials
    that the table counts, and on their study."""
    study = table.study
    points = {row.variant: row.point for row in table.rows}
    done = [run for run in study.stage(table.stage) if run.state == "done"]
    runs = [run for run in done if points.get(run.variant) == run.point]
    records = [(_read(run, layout.TRIAL), _read(run, META_FILE)) for run in runs]
    own = layout.read_json_if_there(study.directory / layout.STUDY) or {}
    return [
        ("Study", study.name),
        ("Kind", _kind(table)),
        ("Workload", table.workload),
        ("Protocol", str(study.config.get("protocol") or UNKNOWN)),
        (
            "Trials",
            f"{len(runs)} counted in this table, of {len(study.runs)} in the study, stage "
            f"{table.stage}",
        ),
        ("Seeds", ", ".join(map(str, sorted({run.seed for run in runs}))) or "none"),
        ("Steps", _several(str(run.steps or run.last_step or UNKNOWN) for run in runs)),
        ("Commit", _commits(own, records)),
        ("Versions", _several(_versions(own, *pair) for pair in records) or _versions(own, {}, {})),
        ("Devices", _several(_devices(*pair) for pair in records)),
        ("Host", _several(_host(*pair) for pair in records)),
    ]


def _kind(table: ErrorTable) -> str:
    if table.study.published:
        return "AlgoPerf's published logs"
    trainer = " by init2winit's trainer" if table.workload.startswith("init2winit:") else ""
    return f"a study of attnperf{trainer}" if table.study.config else f"runs{trainer}"


def configuration(table: ErrorTable) -> str:
    """Returns the study's resolved configuration, a line for each key as a command line would
    change it, empty where it has none; without the keys of engines that did not run it."""
    config = table.study.config
    others = _ENGINES - {config.get("launcher")}
    return "\n".join(_lines({name: config[name] for name in config if name not in others}))


def _lines(values: dict[str, Any], prefix: str = "") -> Iterable[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _lines(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name} = {json.dumps(value)}"


def _read(run: Run, file: str) -> dict[str, Any]:
    """Returns a JSON object of a trial; the study's problems name one that cannot be read."""
    try:
        record = layout.read_json_if_there(run.path / file)
    except (ValueError, OSError):
        return {}
    return record if isinstance(record, dict) else {}


def _several(texts: Iterable[str]) -> str:
    """Returns the text if all agree, else each with how many trials say so."""
    counts = collections.Counter(texts)
    if len(counts) < 2:
        return next(iter(counts), UNKNOWN)
    return "; ".join(
        f"{text} ({count} trial{'s' if count > 1 else ''})" for text, count in counts.most_common()
    )


def _commits(own: dict[str, Any], records: list[tuple[dict, dict]]) -> str:
    found = (trial.get("git_commit") or meta.get("git_commit_hash") for trial, meta in records)
    return _several(str(commit or own.get("git_commit") or UNKNOWN) for commit in found)


def _versions(own: dict[str, Any], trial: dict[str, Any], meta: dict[str, Any]) -> str:
    hardware = trial.get("hardware") or {}
    versions = hardware.get("versions") or trial.get("versions") or own.get("versions") or {}
    if not versions and meta.get("python_version"):
        versions = {"python": meta["python_version"]}
    rank = {name: place for place, name in enumerate(FIRST)}
    names = sorted(versions, key=lambda name: (rank.get(name, len(FIRST)), name))
    return ", ".join(f"{name} {versions[name]}" for name in names) or UNKNOWN


def _devices(trial: dict[str, Any], meta: dict[str, Any]) -> str:
    hardware = trial.get("hardware") or meta
    if kind := hardware.get("device_kind"):
        processes = hardware.get("process_count", 1)
        split = f" in {processes} processes" if processes > 1 else ""
        return f"{hardware.get('device_count', '?')} × {kind}{split}"
    if meta.get("gpu_model_name"):  # AlgoPerf's logs
        return f"{meta.get('gpu_count', '?')} × {meta['gpu_model_name']}"
    return UNKNOWN


def _host(trial: dict[str, Any], meta: dict[str, Any]) -> str:
    hardware = trial.get("hardware") or meta
    if not hardware.get("cpu_model_name"):
        return UNKNOWN
    cores = hardware.get("cpu_count", "?")
    name = hardware["cpu_model_name"].strip()
    return f"{name}, {cores} CPU{'' if cores == 1 else 's'}, {hardware.get('os_platform', '')}"
