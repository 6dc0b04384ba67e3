"""Every verdict of several studies in one table, those that decide nothing included; and
the same question asked again with other seeds, pooled into one estimate."""

import itertools
import json
import math
import os
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.compare import experiment, frames, together
from analysis.compare.error_table import ErrorTable
from analysis.load import results
from analysis.load.records import PARAMETERS, Plan
from analysis.render import pages, printing
from analysis.statistics import across
from analysis.statistics.comparisons import Comparison
from analysis.views import sentences, speedup, summary
from analysis.views import table as table_view
from attention import table as variants

COLUMNS = (
    *("hypothesis", "study", "workload", "variant", "metric", "split", "n", "difference"),
    *("difference_low", "difference_high", "p_holm", "verdict", "within", "withheld"),
    *(*frames.DETECTABLE, "commit", "design_commit", "date", "p_all"),
)

ALL = "p (Holm,\nall)"
FORMATS = dict.fromkeys(("Difference", "Detectable", "Compute\nsaved"), "") | dict.fromkeys(
    ("p (Holm)", ALL, "p", "p of\nheterogeneity"), pages.p_text
)
# Settings of a search, in whose place stand the hyperparameters that came of it.
SEARCHED = ["protocol", "tuning_variant", "space"]
POOLED = (
    *("workload", "variant", "studies", "n", "difference", "difference_low", "difference_high"),
    *("p", "p_heterogeneity", "not_pooled"),
)
POOLED_NOTE = (
    "Pooled: the mean over the pairs of all studies, with a 95% interval; p is not corrected. "
    "Heterogeneity: p of Cochran's Q, that studies differ by the noise of seeds alone. If a result "
    "was the reason to repeat its study, the pooled p is too small."
)


def page(tables: Sequence[ErrorTable]) -> pages.Page:
    """Returns a row per study and variant; `data` has COLUMNS at full precision."""
    lines = _lines(tables)
    repeated = lines.duplicated(["study", "workload"])
    columns = {
        "Hypothesis": lines["hypothesis"].mask(repeated, ""),
        "Study": lines["study"].mask(repeated, ""),
        "Workload": lines["workload"],
        "Variant": lines["variant"],
        **_verdicts(lines),
        "Commit": lines["commit"],
        "Started": lines["date"],
        "at commit": lines["design_commit"],
    }
    return pages.Page(
        title="Ledger: what was asked, and what came out",
        tables=(pages.Table("One line per study and variant", pd.DataFrame(columns), FORMATS),),
        notes=(
            "Difference: mean of the variant minus the baseline's, on the split that decides, with "
            "a 95% interval; p is corrected over the variants of a study (Holm), and over all "
            "comparisons of these studies. Detectable: the "
            "smallest true difference that such a study finds with 80 % power "
            f"{sentences.POWER}. Compute saved: what the baseline needs for the variant's result, "
            "over what the variant took, with a 95% interval. Commit: of trials. "
            "Started, at commit: date and commit of the start of the study.",
            *sentences.over_studies(tables),
            *sentences.caveats_of(tables),
        ),
        problems=tuple(problem for table in tables for problem in table.named_problems),
        data=lambda: lines[[*COLUMNS]],
    )


def site(tables: Sequence[ErrorTable], folder: pathlib.Path) -> str:
    """Returns the ledger as one HTML file: a table of all verdicts, then each study with what it
    asked, its own table and where its numbers come from. It links to the studies' files relative
    to `folder`, where it will be."""
    lines = _lines(tables)
    columns = {
        "Variant": lines["variant"],
        "Study": lines["study"],
        "Hypothesis": lines["hypothesis"],
        "Workload": lines["workload"],
        **_verdicts(lines),
    }
    # An interval that does not fit beside its number stands whole below it.
    frame = pd.DataFrame(columns).replace(r", (?=\S+\])", ",\N{NO-BREAK SPACE}", regex=True)
    links = {"Study": [f"#study-{number}" for number in lines["number"]]}
    verdicts = pages.Table("Verdicts", frame, FORMATS, links=links)
    return printing.fill_template(
        "ledger.html",
        title=f"Ledger: {len(lines)} verdicts of {len(tables)} studies",
        verdicts=verdicts,
        overview=page(tables),
        studies=[_study(table, folder) for table in tables],
    )


def _study(table: ErrorTable, folder: pathlib.Path) -> dict[str, Any]:
    """Returns what the page has of a study: the values of the template, in its order."""
    directory = table.study.directory
    return {
        "name": f"{table.study.name}: {table.what} on {table.workload}",
        "headline": sentences.headline(table),
        "facts": facts(table),
        "file": os.path.relpath(results.find(directory) or directory, folder),
        "page": table_view.page(table),
    }


def _lines(tables: Sequence[ErrorTable]) -> pd.DataFrame:
    """Returns COLUMNS, the `number` of the table that a row is of, and `saved`: the ratio of
    compute with its interval, as text, where several budgets tell one."""
    p_all = together.p_over_all(tables)
    rows = [
        _rows(table, p_all[number]).assign(number=number) for number, table in enumerate(tables)
    ]
    told = [made.tables[0].frame for made in speedup.pages_of(tables) if made.tables]
    keys = {"Study": "study", "Variant": "variant", speedup.COMPUTE: "saved"}
    saved = pd.concat([pd.DataFrame(columns=[*keys], dtype=object), *told])
    saved = saved[[*keys]].rename(columns=keys)
    return pd.concat(rows, ignore_index=True).merge(saved, how="left", on=["study", "variant"])


def _verdicts(lines: pd.DataFrame) -> dict[str, Iterable[Any]]:
    ends = zip(lines["difference"], lines["difference_low"], lines["difference_high"], strict=True)
    return {
        "n": lines["n"],
        "Difference": [pages.estimate(*interval, 4) for interval in ends],
        "p (Holm)": lines["p_holm"],
        ALL: lines["p_all"],
        "Detectable": itertools.starmap(
            sentences.detectable_text,
            lines[[*frames.DETECTABLE]].to_numpy(),
        ),
        "Compute\nsaved": lines["saved"],
        "Verdict": sentences.outcomes(lines),
    }


def _rows(table: ErrorTable, p_all: Mapping[str, float]) -> pd.DataFrame:
    start = next(iter(table.study.plans), Plan())
    results = frames.results(table, None)
    of_variants = results["kind"].eq("variant") & results["variant"].ne(table.baseline)
    return results[of_variants & results["split"].eq(table.decisive)].assign(
        hypothesis=hypothesis(table.study.plans) or None,
        commit=sentences.commits(table) or None,
        design_commit=sentences.short_commit(start.git_commit or "") or None,
        date=start.date,
        p_all=lambda rows: rows["variant"].map(p_all),
        variant=lambda rows: rows["label"],
    )[[*COLUMNS]]


def facts(table: ErrorTable) -> dict[str, list[str]]:
    """Returns what was asked, planned and run, each name with its texts, none where nothing is
    recorded."""
    start = next(iter(table.study.plans), Plan())
    metas = [run.meta for row in table.rows for run in table.runs(row)]
    recorded = {
        name: list(dict.fromkeys(text for meta in metas if (text := meta.get(name))))
        for name in ("command", "url")
    }
    stated = {
        "Hypothesis": hypothesis(table.study.plans),
        "Baseline": table.baseline_label if table.baseline in table.by_variant else "",
        "Seeds planned": str(start.seeds or ""),
        "Looks": ", ".join(map(str, start.looks)),
        "Margin": str(start.margin),
        "Started": start.date,
        "Commit of the plan": start.git_commit,
        "Commit of the runs": ", ".join(table.commits),
    }
    texts = {
        name: [text] if text else []
        for name, text in stated.items()
        if text or name not in ("Looks", "Margin")
    }
    return texts | {"Command": recorded["command"], "Source": recorded["url"]}


def hypothesis(plans: Sequence[Plan]) -> str:
    """Returns the hypothesis at the start of a study, then each change with its date."""
    texts = [plan.hypothesis or "" for plan in plans]
    changes = [
        f"changed on {plan.date or 'an unknown date'}: {text or 'none'}"
        for before, text, plan in zip(texts, texts[1:], plans[1:], strict=False)
        if text != before
    ]
    return "; ".join([texts[0] or "none", *changes]) if changes else "".join(texts[:1])


def other_seeds(tables: Sequence[ErrorTable]) -> list[pages.Page]:
    """Returns a page with the differences of studies that are equal in all but their seeds, and the
    pooled ones, and with what keeps others that compare a variant on one workload apart; no page
    where no two studies do."""
    tables = [table for table in tables if table.comparisons]
    stated = experiment.settings(tables).drop(columns=SEARCHED)
    stated["metric"] = [table.metric.name for table in tables]
    stated["variants and hyperparameters"] = [*map(_points, tables)]
    rows: list[dict[str, object]] = []
    notes = []
    for _, asked in stated.groupby(["workload", "metric"], sort=False):
        questions = asked.drop(columns="study")
        for _, same in questions.groupby([*questions], sort=False, dropna=False):
            rows += _pooled([tables[number] for number in same.index])
        differing = [*questions.columns[questions.nunique(dropna=False) > 1]]
        if differing and _overlap([tables[number].comparisons for number in asked.index]):
            names = ", ".join(asked["study"])
            notes.append(f"Not pooled where they differ in {', '.join(differing)}: {names}.")
    if not rows and not notes:
        return []
    lines = pd.DataFrame(rows, columns=POOLED)
    ends = zip(lines["difference"], lines["difference_low"], lines["difference_high"], strict=True)
    columns = {
        "Workload": lines["workload"],
        "Variant": lines["variant"],
        "Studies": lines["studies"],
        "Pooled": [pages.estimate(*interval, 4, signed=True) for interval in ends],
        "n": lines["n"],
        "p": lines["p"],
        "p of\nheterogeneity": lines["p_heterogeneity"],
        "Not pooled": lines["not_pooled"],
    }
    table = pages.Table("Same settings, other seeds", pd.DataFrame(columns), FORMATS)
    # In CSV it follows the ledger's lines, without a column where nothing is pooled.
    pooled = lines.dropna(subset="p").dropna(axis=1, how="all")
    shown = (table,) if rows else ()
    return [
        pages.Page(
            "Asked again with other seeds", shown, (POOLED_NOTE, *notes), data=lambda: pooled
        )
    ]


def _points(table: ErrorTable) -> str:
    """Returns what the trials of each variant that are done were trained with, as text."""
    points = {
        row.variant: {
            json.dumps([run.hyperparameters, run.variant_hyperparameters, run.meta.get(PARAMETERS)])
            for run in table.runs(row, ("done",))
        }
        for row in table.rows
    }
    return str({name: sorted(texts) for name, texts in points.items()})


def _overlap(sets: Sequence[Collection[object]]) -> bool:
    return sum(map(len, sets)) > len(set().union(*sets))


def _pooled(tables: Sequence[ErrorTable]) -> Iterator[dict[str, object]]:
    """Yields of tables with equal settings a row of POOLED for each variant; none of a single
    table."""
    seeds = [{run.seed for run in table.study.stage(table.stage)} for table in tables]
    shared = "seeds in common" if _overlap(seeds) else ""
    for variant in tables[0].comparisons if len(tables) > 1 else ():
        compared = [table.comparisons.get(variant, Comparison()) for table in tables]
        reasons = [
            shared,
            *(summary.why_left_out(table, variant) or table.withheld(variant) for table in tables),
            *("seeds are no pairs" for each in compared if not each.is_paired),
        ]
        why = next(filter(None, reasons), None)
        one, apart = (Comparison(), math.nan) if why else across.pooled(compared)
        studies = [
            f"{table.study.name}: {pages.estimate(each.difference, each.low, each.high, 4, True)}"
            for table, each in zip(tables, compared, strict=True)
        ]
        yield {
            "workload": tables[0].workload,
            "variant": variants.label(variant),
            "studies": "; ".join(studies),
            "n": one.pairs,
            "difference": one.difference,
            "difference_low": one.low,
            "difference_high": one.high,
            "p": one.p,
            "p_heterogeneity": apart,
            "not_pooled": why,
        }
