"""What results lack before they can be added to a ledger: the command `check`."""

from collections.abc import Iterator, Mapping, Set

import pandas as pd

from analysis.compare.error_table import ErrorTable
from analysis.load.records import Problem
from analysis.render import pages
from analysis.views import ledger

# Kinds of problems that nobody can mend: results, and what is worth knowing.
NOT_TO_MEND = {"diverged", "failed", "non-finite", "note"}


def page(table: ErrorTable) -> pages.Page:
    """Returns what the ledger shows of a study beside its verdicts, with `missing` where nothing is
    recorded. Its problems are those to mend."""
    runs = table.study.stage(table.stage)
    seeds = {
        row.variant: {
            run.seed
            for run in runs
            if run.variant == row.variant and row.point in (None, run.point)
        }
        for row in table.rows
    }
    counts = ", ".join(f"{row.label} {len(seeds[row.variant])}" for row in table.rows)
    texts = {"Seeds": [counts], **ledger.facts(table)}
    absent = ", ".join(name for name, recorded in texts.items() if not recorded)
    frame = pd.DataFrame(
        {"": [*texts], "Found": [", ".join(each[:1]) or "missing" for each in texts.values()]}
    )
    return pages.Page(
        title=f"{table.study.name}: what the ledger shows",
        tables=(pages.Table(f"{table.what} on {table.workload}", frame),),
        notes=(f"Missing: {absent}. docs/ledger.md says where each belongs.",) * bool(absent),
        problems=(
            *(problem for problem in table.study.problems if problem.kind not in NOT_TO_MEND),
            *_holes(seeds, table.baseline),
        ),
    )


def _holes(seeds: Mapping[str, Set[int]], baseline: str) -> Iterator[Problem]:
    """Yields a problem for a baseline without a run, and one for each variant without a run of
    seeds that another has: results that were left out would select by the outcome."""
    if baseline not in seeds:
        text = f"no run of the baseline {baseline!r}; there are {', '.join(seeds)}"
        yield Problem("missing", "", "", f"{text}: name one in a column baseline")
    every = set().union(*seeds.values())
    for name, own in seeds.items():
        if lacking := sorted(every - own):
            text = f"no run of seeds {', '.join(map(str, lacking))}"
            advice = "run them; a run that gave no number is a row with an empty value"
            yield Problem("missing", name, "", f"{text}: {advice}")
