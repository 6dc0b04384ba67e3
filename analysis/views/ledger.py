"""Every verdict of several studies in one table, those that decide nothing included."""

from collections.abc import Sequence

import pandas as pd

from analysis.compare import frames
from analysis.compare.error_table import ErrorTable
from analysis.load import records
from analysis.render import pages
from analysis.render.pages import Page, Table
from sweeps.records import layout

COLUMNS = (
    *("hypothesis", "study", "workload", "variant", "metric", "split", "n", "difference"),
    *("difference_low", "difference_high", "p_holm", "verdict", "detectable", "commit", "date"),
)


def page(tables: Sequence[ErrorTable]) -> Page:
    """Returns a row per study and variant; `data` has COLUMNS at full precision."""
    lines = pd.concat([_rows(table) for table in tables], ignore_index=True)
    return Page(
        title="Ledger: what was asked, and what came out",
        tables=(_table(lines),),
        notes=(
            "Difference: mean of the variant minus the baseline's, on the split that decides, with "
            "a 95% interval; p is corrected over the variants of a study (Holm). Detectable: the "
            "smallest true difference that such a study finds with 80 % power.",
        ),
        problems=tuple(problem for table in tables for problem in table.problems),
        data=lambda: lines,
    )


def _rows(table: ErrorTable) -> pd.DataFrame:
    record = records.read_json(table.study.directory / layout.STUDY, "", []) or {}
    # A finished study that is run again has the newer commit, its trials have theirs.
    meta = next((run.meta for run in table.study.stage(table.stage)), {})
    results = frames.results(table, None)
    of_variants = results["kind"].eq("variant") & results["variant"].ne(table.baseline)
    return results[of_variants & results["split"].eq(table.decisive)].assign(
        hypothesis=table.study.config.get("hypothesis") or None,
        commit=str(meta.get("git_commit_hash") or record.get("git_commit") or "")[:12] or None,
        date=record.get("date"),
        variant=lambda rows: rows["label"],
    )[[*COLUMNS]]


def _table(lines: pd.DataFrame) -> Table:
    ends = zip(lines["difference"], lines["difference_low"], lines["difference_high"], strict=True)
    repeated = lines.duplicated(["study", "workload"])
    columns = {
        "Hypothesis": lines["hypothesis"].mask(repeated, ""),
        "Study": lines["study"].mask(repeated, ""),
        "Workload": lines["workload"],
        "Variant": lines["variant"],
        "n": lines["n"],
        "Difference": [pages.estimate(*each, 4) for each in ends],
        "p (Holm)": lines["p_holm"],
        "Verdict": lines["verdict"],
        "Detectable": lines["detectable"],
        "Commit": lines["commit"],
        "Date": lines["date"],
    }
    return Table(
        "One line per study and variant",
        pd.DataFrame(columns),
        {"Difference": "", "p (Holm)": pages.p_text, "Detectable": ".4f"},
    )
