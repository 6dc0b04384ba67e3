"""The report, one HTML file on all studies of a directory, verdicts first; and its charts as files.

The list of the views of a table is here.
"""

import base64
import collections
import dataclasses
import datetime
import json
import math
import os
import pathlib
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.compare import model_sizes
from analysis.compare.error_table import ErrorTable
from analysis.load import paper, records, selection
from analysis.render import charts, pages, printing
from analysis.views import (
    diagnostics,
    downstream,
    ledger,
    plots,
    scaling,
    sentences,
    speedup,
    spikes,
    summary,
    time,
)
from analysis.views import table as table_view
from attention import table as variants
from attention.common import files
from sweeps.records import layout

# Vega's libraries, which draw the page's charts; `make vega` writes them.
LIBRARIES = pathlib.Path(charts.__file__).parent / "vega" / "vega.js.gz"
UNKNOWN = "not recorded"
# Keys of `versions` in the order that a reader looks for them; the others follow.
FIRST_VERSIONS = ("python", "jax", "jaxlib", "flax", "optax")
# Sections of a study's configuration, of which one describes the engine that ran it
# (sweeps/launchers/table.py).
ENGINES = {"local", "slurm", "ray", "kubernetes"}

# Charts of a study's results: what comes between the verdicts and the attention layers.
RESULTS = (plots.CURVES, plots.HYPERPARAMETERS, *downstream.PLOTS)


def page(tables: Sequence[ErrorTable], directory: pathlib.Path, folder: pathlib.Path) -> str:
    """Returns the report on `tables`, a section each, of the studies in `directory`. It links to
    their files relative to `folder`, where the report will be. What compares studies with each
    other is left out of the report on one."""
    labels = {row.variant: row.label for table in tables for row in table.rows}
    names = list(dict.fromkeys(table.study.name for table in tables))
    overview, figures = _overview(tables, labels) if len(tables) > 1 else (None, [])
    laws = model_sizes.families(tables)
    return printing.fill_template(
        "report.html",
        title=names[0] if len(names) == 1 else f"{directory.resolve().name}: {len(names)} studies",
        made=f"Report made by attnperf on {datetime.date.today().isoformat()}; figures of the "
        f"paper: {paper.SOURCE}.",
        library=base64.b64encode(LIBRARIES.read_bytes()).decode(),
        variants=labels,
        study_file=layout.STUDY,
        overview=overview,
        overview_figures=figures,
        savings=speedup.pages_of(tables),
        sections=[_section(*place, folder, labels) for place in enumerate(tables)],
        settings=settings(tables),
        across=[*map(scaling.of_family, laws)],
        across_pictures=[made for law in laws for made in _figures(scaling.PLOTS, law, labels)],
        appendix=[dataclasses.replace(ledger.page(tables), problems=())] if overview else [],
    )


def _overview(
    tables: Sequence[ErrorTable], names: Iterable[str]
) -> tuple[pages.Page, list[charts.Figure]]:
    """Returns variants by workloads, over all of them, what the seeds can detect; without a summary
    the reason alone. Problems are listed in the studies' own sections."""
    try:
        overview = summary.of_tables(tables)
    except ValueError as error:
        return pages.Page("", (), (), (records.Problem("note", "", "", str(error)),)), []
    shown = dataclasses.replace(summary.page(overview), problems=())
    return shown, _figures(summary.PLOTS, overview, names)


def _section(
    number: int, table: ErrorTable, folder: pathlib.Path, names: Iterable[str]
) -> dict[str, Any]:
    """Returns one study and workload: the values of the template, in its order."""
    name = f"{table.study.name}: {table.metric.title} on {table.workload}"
    return dict(
        anchor=f"{number}-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}",
        title=name,
        headline=sentences.headline(table),
        description=_description(table),
        verdicts=[sentences.word(table, row) for row in table.rows],
        problems=len(table.problems),
        first_pictures=_figures([plots.EFFECTS], table, names),
        main=table_view.page(table, details=True),
        pictures=_figures(RESULTS, table, names),
        pages=[made for page in (time.page, spikes.page, downstream.page) if (made := page(table))],
        inside=_figures(diagnostics.PLOTS, table, names),
        inside_page=diagnostics.page(table),
        study_file=""
        if table.study.published
        else _link(table.study.directory / layout.STUDY, folder),
        trials=trials(table, folder),
        provenance=provenance(table),
        config=configuration(table),
    )


def _figures(
    figures: Iterable[charts.FigureSpec[Any]], shown: Any, names: Iterable[str]
) -> list[charts.Figure]:
    """Returns the charts of `figures` that there is something to draw for. `names` are all variants
    of the report."""
    return [made for plot in figures if (made := charts.embed(plot, shown, names))]


def _description(table: ErrorTable) -> str:
    """Returns what was compared, in a sentence or two."""
    seeds = sorted({row.n for row in table.rows if row.n}) or [0]
    spread = pages.span(map(str, seeds))
    parts = [
        f"{len(table.rows)} variant{'s' * (len(table.rows) > 1)}",
        f"{spread} seed{'s' * (spread != '1')} each",
        f"workload {table.workload}",
    ]
    if table.baseline_row:
        parts.append(f"baseline {table.baseline_label}")
    note = f" Data: {table.reference_note}" if table.reference_note else ""
    return f"{', '.join(parts)}.{note}"


def trials(table: ErrorTable, folder: pathlib.Path) -> pages.Table:
    """Returns a line for each trial of the study, whatever its state: the step that validation
    chose, the metric of each split at it, the seconds of training. A variant links to the trial's
    directory, a seed to the logs of its attempts, a step to its measurements, from `folder`."""
    runs = table.study.runs
    lines = []
    for run in runs:
        best = selection.best_step(run, table.chosen_by) or {}
        values = {
            f"{split.title()} {table.metric.label}": table.metric.shown(best[column])
            for split in layout.SPLITS
            if (column := table.metric.column(split)) in best
        }
        place = {"Variant": variants.label(run.variant), "Stage": run.stage, "Point": run.point}
        state = {"Seed": run.seed, "State": run.state, "Step": best.get(records.STEP)}
        lines.append(place | state | values | {"Seconds": run.trained_seconds or math.nan})
    frame = pd.DataFrame(lines)
    alike = [name for name in ("Stage", "Point") if frame[name].nunique() < 2]
    frame = frame.drop(columns=alike).astype({"Step": "Int64"})
    files_of = {"Variant": "", "Seed": layout.ATTEMPTS, "Step": layout.EVAL_MEASUREMENTS}
    return pages.Table(
        f"{len(runs)} trials",
        frame,
        {name: f".{table.metric.digits}f" for name in frame if name.endswith(table.metric.label)}
        | {"Seconds": ".1f"},
        links={
            heading: [_link(run.path / file, folder) for run in runs]
            for heading, file in files_of.items()
        },
    )


def _link(path: pathlib.Path, folder: pathlib.Path) -> str:
    """Returns the address of a file from a page in `folder`, empty if there is no such file."""
    return urllib.parse.quote(os.path.relpath(path, folder)) if path.exists() else ""


def settings(tables: Sequence[ErrorTable]) -> dict[str, dict[str, Any]]:
    """Returns for each trial of the studies, by its study and name, its settings and those of its
    study, without the settings that are equal in all of them."""
    every = {}
    for table in tables:
        config = records.flattened(table.study.config)
        for run in table.study.runs:
            record = records.read_json(run.path / layout.TRIAL, run.name, []) or {}
            every[f"{table.study.name}: {run.name}"] = config | records.flattened(record)
    names = sorted({name for trial in every.values() for name in trial} - {"id", "path"})
    first = next(iter(every.values()), {})
    differing = [
        name
        for name in names
        if any(trial.get(name) != first.get(name) for trial in every.values())
    ]
    return {trial: {name: every[trial].get(name) for name in differing} for trial in every}


def provenance(table: ErrorTable) -> list[tuple[str, str]]:
    """Returns where a table's numbers come from, as (name, text) pairs on the trials that the table
    counts and on their study; what trials disagree on with the number of trials for each."""
    study = table.study
    runs = [run for row in table.rows for run in table.runs(row, ("done",))]
    record = layout.read_json_if_there(study.directory / layout.STUDY) or {}
    facts = pd.DataFrame([_facts(run, record) for run in runs])
    seeds = sorted({run.seed for run in runs})
    return [
        ("Study", study.name),
        ("Workload", table.workload),
        ("Protocol", str(study.config.get("protocol") or UNKNOWN)),
        ("Stage", table.stage),
        ("Trials", f"{len(runs)} in this table, {len(study.runs)} in the study"),
        ("Seeds", ", ".join(map(str, seeds)) or "none"),
        *((str(name), _agreed(texts)) for name, texts in facts.items()),
    ]


def _facts(run: records.Run, study_record: dict[str, Any]) -> dict[str, str]:
    """Returns how a trial was run, as each attempt recorded it, else its trial.json, else its
    study; the study's problems name a file that cannot be read."""
    trial = records.read_json(run.path / layout.TRIAL, run.name, []) or {}
    planned = (study_record, trial, trial.get("hardware") or {})
    attempts = pd.DataFrame([_environment(*planned, meta) for meta in run.metas or ({},)])
    facts = {str(name): ", ".join(texts.unique()) for name, texts in attempts.items()}
    if run.commits:
        facts["Commit"] = ", ".join(run.commits)
    return {"Steps": str(run.steps or run.last_step or UNKNOWN)} | facts


def _environment(*parts: dict[str, Any]) -> dict[str, str]:
    """Returns commit, versions, devices and host that records name, the last one first."""
    record = {key: value for part in parts for key, value in part.items() if value}
    versions = record.get("versions") or {}
    if "python_version" in record:
        versions = {"python": record["python_version"]} | versions
    names = sorted(versions, key=[*FIRST_VERSIONS, *sorted(versions)].index)
    # AlgoPerf's logs name their GPUs.
    kind = record.get("device_kind") or record.get("gpu_model_name")
    count = record.get("device_count") or record.get("gpu_count", "?")
    processes = record.get("process_count", 1)
    host = (str(record.get("cpu_model_name", "")).strip(), record.get("os_platform"))
    return {
        "Commit": str(record.get("git_commit") or UNKNOWN),
        "Versions": ", ".join(f"{name} {versions[name]}" for name in names) or UNKNOWN,
        "Devices": f"{count} × {kind}{f' in {processes} processes' * (processes > 1)}"
        if kind
        else UNKNOWN,
        "Host": f"{record.get('cpu_count', '?')} × {', '.join(filter(None, host))}"
        if host[0]
        else UNKNOWN,
    }


def _agreed(texts: Iterable[str]) -> str:
    """Returns the text if all agree, else each with its number of trials."""
    counts = collections.Counter(texts).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return "; ".join(f"{text} ({n} trial{'s' * (n > 1)})" for text, n in counts)


def configuration(table: ErrorTable) -> str:
    """Returns the study's configuration as a command line sets it, a key a line, without the
    engines that did not run it; empty if it has none."""
    others = ENGINES - {table.study.config.get("launcher")}
    config = {key: value for key, value in table.study.config.items() if key not in others}
    flat = records.flattened(config)
    return "\n".join(f"{name} = {json.dumps(value)}" for name, value in flat.items())


def write_plots(
    tables: Sequence[ErrorTable], out: pathlib.Path | None, suffix: str = "png"
) -> Iterator[str]:
    """Writes the figures of `tables` as files with a suffix (png, svg or pdf) below `out`, or into
    plots/ of each one's study unless given, and yields a line for each: the file written, or why
    there is nothing to draw; then what is unusual about the trials (`sentences.caveats`)."""
    directories = [_directory(table, tables, out) for table in tables]
    for directory in directories:
        files.check_output_directory(directory, "--out")
        directory.mkdir(parents=True, exist_ok=True)
    names = {row.variant for table in tables for row in table.rows}
    for table, directory in zip(tables, directories, strict=True):
        figures = (plots.EFFECTS, *RESULTS, *diagnostics.PLOTS)
        for plot in (plot for plot in figures if plot.applies(table)):
            chart = plot.draw(table)
            path = directory / f"{plot.file}.{suffix}"
            if chart is None:
                yield f"not written: {plot.file}: {plot.absent}"
            else:
                charts.save(chart, path, names)
                yield f"wrote {path}"
        yield from sentences.caveats(table)


def _directory(
    table: ErrorTable, tables: Sequence[ErrorTable], out: pathlib.Path | None
) -> pathlib.Path:
    """Returns a directory that no other of the tables writes into."""
    of_study = [other for other in tables if other.study.directory == table.study.directory]
    directory = out or table.study.directory / "plots"
    if out and len(of_study) < len(tables):
        directory /= table.study.directory.name
    return directory / table.workload if len(of_study) > 1 else directory
