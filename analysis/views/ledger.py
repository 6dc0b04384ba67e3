"""Every verdict of several studies in one table, those that decide nothing included."""

import itertools
from collections.abc import Sequence

import pandas as pd

from analysis.compare import frames
from analysis.compare.error_table import ErrorTable
from analysis.load.records import Plan
from analysis.render import pages
from analysis.views import sentences

COLUMNS = (
    *("hypothesis", "study", "workload", "variant", "metric", "split", "n", "difference"),
    *("difference_low", "difference_high", "p_holm", "verdict", "withheld"),
    *(*frames.DETECTABLE, "commit", "design_commit", "date"),
)


def page(tables: Sequence[ErrorTable]) -> pages.Page:
    """Returns a row per study and variant; `data` has COLUMNS at full precision."""
    lines = pd.concat([_rows(table) for table in tables], ignore_index=True)
    ends = zip(lines["difference"], lines["difference_low"], lines["difference_high"], strict=True)
    repeated = lines.duplicated(["study", "workload"])
    columns = {
        "Hypothesis": lines["hypothesis"].mask(repeated, ""),
        "Study": lines["study"].mask(repeated, ""),
        "Workload": lines["workload"],
        "Variant": lines["variant"],
        "n": lines["n"],
        "Difference": [pages.estimate(*interval, 4) for interval in ends],
        "p (Holm)": lines["p_holm"],
        "Verdict": sentences.outcomes(lines),
        "Detectable": itertools.starmap(
            sentences.detectable_text,
            lines[[*frames.DETECTABLE]].to_numpy(),
        ),
        "Commit": lines["commit"],
        "Started": lines["date"],
        "at commit": lines["design_commit"],
    }
    return pages.Page(
        title="Ledger: what was asked, and what came out",
        tables=(
            pages.Table(
                "One line per study and variant",
                pd.DataFrame(columns),
                {"Difference": "", "p (Holm)": pages.p_text, "Detectable": ""},
            ),
        ),
        notes=(
            "Difference: mean of the variant minus the baseline's, on the split that decides, with "
            "a 95% interval; p is corrected over the variants of a study (Holm). Detectable: the "
            "smallest true difference that such a study finds with 80 % power "
            f"{sentences.POWER}. Commit: of trials. "
            "Started, at commit: date and commit of the start of the study.",
            *sentences.caveats_of(tables),
        ),
        problems=tuple(problem for table in tables for problem in table.named_problems),
        data=lambda: lines,
    )


def _rows(table: ErrorTable) -> pd.DataFrame:
    start = next(iter(table.study.plans), Plan())
    results = frames.results(table, None)
    of_variants = results["kind"].eq("variant") & results["variant"].ne(table.baseline)
    return results[of_variants & results["split"].eq(table.decisive)].assign(
        hypothesis=_hypothesis(table.study.plans) or None,
        commit=sentences.commits(table) or None,
        design_commit=sentences.short_commit(start.git_commit or "") or None,
        date=start.date,
        variant=lambda rows: rows["label"],
    )[[*COLUMNS]]


def _hypothesis(plans: Sequence[Plan]) -> str:
    """Returns the hypothesis at the start of a study, then each change with its date."""
    texts = [plan.hypothesis or "" for plan in plans]
    changes = [
        f"changed on {plan.date or 'an unknown date'}: {text or 'none'}"
        for before, text, plan in zip(texts, texts[1:], plans[1:], strict=False)
        if text != before
    ]
    return "; ".join([texts[0] or "none", *changes]) if changes else "".join(texts[:1])
