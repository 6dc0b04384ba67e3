"""The sentences on a table's verdicts, notes, lost and failed runs, and power: all of them here."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import pandas as pd

from analysis.compare import failed_runs, frames, sensitivity, together
from analysis.compare.error_table import ErrorTable
from analysis.compare.verdicts import (
    LENGTHS_APART,
    SO_FAR,
    UNFINISHED,
    VariantResult,
    lengths_differ,
)
from analysis.load import paper, selection
from analysis.load.records import Plan, Run
from analysis.render import pages
from analysis.statistics import comparisons
from attention import table as variants

# How much of a commit or of a digest is printed.
SHORT = 12
# What stands beside numbers of the power analysis.
POWER = f"[90% range]; none below {sensitivity.LEAST_DEGREES + 1} seeds"


def word(table: ErrorTable, row: VariantResult) -> str:
    """Returns a variant's verdict: better, worse, equal (with `so far` where the study is
    unfinished), cannot tell, baseline, not compared (there is no baseline) or no number."""
    result = table.of(row)
    if row.variant == table.baseline:
        return "baseline"
    if result.summary is None:
        return "no number"
    return result.comparison.verdict if result.comparison else "not compared"


def headline(table: ErrorTable) -> str:
    """Returns the variants of each verdict, with their difference from the baseline and p. A
    variant that cannot be told from it stands with what these seeds can detect. Then the variants
    whose runs failed to train."""
    what = f"{table.what[0].upper()}{table.what[1:]} against {table.baseline_label}"
    row = table.baseline_row
    if row is None or not table.of(row).values:
        return f"{what}: no verdict, the baseline has no number."
    verdicts = (*SO_FAR, *SO_FAR.values(), "cannot tell")
    labels: dict[str, list[str]] = {verdict: [] for verdict in verdicts}
    powers = sensitivity.of_table(table, table.decisive, {})
    for name, comparison in table.comparisons.items():
        numbers = pages.decimals(comparison.difference, table.metric.digits, signed=True)
        if comparison.is_tested:
            p = comparison.p_equal if "equal" in comparison.verdict else comparison.p_holm
            numbers += f", {pages.p_in_words(p)}"
        detectable = powers[name].detectable.value
        if comparison.verdict == "cannot tell" and math.isfinite(detectable):
            numbers += f"; detectable: {detectable:.2g}"
        of_verdict = labels.setdefault(
            outcome(comparison.verdict, comparison.withheld, comparison.within), []
        )
        of_verdict.append(f"{variants.label(name)} ({numbers})")
    parts = [f"{verdict}: {', '.join(names)}" for verdict, names in labels.items() if names]
    if not parts:
        return f"{what}: no verdict, only the baseline has numbers."
    unfinished = "The study is unfinished." if table.baseline in table.unfinished else ""
    texts = (f"{what}. {'; '.join(parts)}.", unfinished, failed(table))
    return " ".join(filter(None, texts))


def failed(table: ErrorTable) -> str:
    """Returns how many runs of the variants and of the baseline failed to train, and which rates
    differ from the baseline's, with p; empty if no run failed."""
    failures = failed_runs.of_table(table)
    parts = []
    for name, of_variant in failures.by_variant.items():
        rate = of_variant.rate
        text = f"{variants.label(name)} {rate.count} of {rate.n}"
        if rate.verdict != "cannot tell":
            text += f" ({rate.verdict}, {pages.p_in_words(rate.p_holm)})"
        if rate.count or rate.verdict != "cannot tell" or name == table.baseline:
            parts.append(text)
    return f"Failed to train: {', '.join(parts)}." if failures.any else ""


def seeds_text(seeds: float, low: float, high: float) -> str:
    """Returns a number of seeds with its range: `34 [19, 92]`; `> 10,000` for inf; dash for nan."""
    if math.isnan(seeds):
        return pages.NOTHING
    first, *ends = (
        f"> {sensitivity.MOST_SEEDS:,}" if math.isinf(count) else f"{count:,.0f}"
        for count in (seeds, low, high)
    )
    return first if low == high else f"{first} [{', '.join(ends)}]"


def detectable_text(size: float, low: float, high: float, possible: float) -> str:
    """Returns a detectable difference with its range, in two digits: `0.012 [0.0085, 0.024]`; a
    lower bound as `≥ 0.012`; the seeds that are `possible` where these are too few; a dash for
    nan."""
    if math.isinf(size):
        more = "" if math.isinf(possible) else f"; {possible:.0f} can"
        return f"not with these seeds{more}"
    if math.isinf(high):
        return f"≥ {size:.2g}"
    return pages.NOTHING if math.isnan(size) else f"{size:.2g} [{low:.2g}, {high:.2g}]"


def notes(table: ErrorTable) -> list[str]:
    """Returns the notes that a reader of the short table needs, at most four: the metric and the
    step; lost seeds and lengths that withhold verdicts, and what is unusual about the trials
    (`caveats`); why nothing can be told; the source of the paper's columns, or the data."""
    definition = table.metric.definition(table.workload)
    is_last = any(run.counts_last for run in table.study.runs)
    source = f"Data: {table.reference_note}" if table.reference_note else ""
    if table.is_paper:
        place = paper.TABLES[table.study.paper_table].place
        source = f"paper: {paper.SOURCE}, {place}. {source}".rstrip()
    lines = [
        f"{definition}, at each trial's {'last step with' if is_last else 'step with the best'} "
        f"{table.chosen_by.column('validation')}; n counts completed trials.",
        " ".join([*_unfair(table), *caveats(table)]),
        _untold(table),
        source,
    ]
    return [line for line in lines if line]


def _unfair(table: ErrorTable) -> Iterator[str]:
    """Yields sentences on lost seeds and on lengths, for which verdicts are withheld."""
    lost = [row.label for row in table.rows if row.lost_on(table.decisive)]
    if lost:
        yield (
            f"Lost seeds ({', '.join(lost)}) diverged, failed or are not finite: a variant that "
            "lost seeds cannot be called better; if the baseline did, none can be called worse."
        )
    base = table.baseline_row
    others = [row for row in table.rows if base and lengths_differ(row, base)]
    if base and others:
        ends = ", ".join(f"{row.label} {row.last_step:,.0f}" for row in (base, *others))
        yield (
            f"Median last steps differ by more than {LENGTHS_APART:.0%} ({ends}): see "
            "`python -m analysis time`."
        )


def over_studies(tables: Sequence[ErrorTable]) -> Iterator[str]:
    """Yields sentences on the comparisons of several tables together: which verdicts one correction
    over all of them would take back, and which rows share runs of the baseline."""
    compared = [table for table in tables if table.comparisons]
    if len(compared) > 1:
        verdicts = [
            (f"{variants.label(name)} ({table.study.name}, p = {pages.p_text(p)})", p)
            for table, of_table in zip(tables, together.p_over_all(tables), strict=True)
            for name, p in of_table.items()
            if table.comparisons[name].verdict in ("better", "worse") and not math.isnan(p)
        ]
        lost = [text for text, p in verdicts if p >= comparisons.ALPHA]
        yield (
            f"Corrected over all {sum(table.family for table in compared)} comparisons of these "
            f"studies at once (Holm), {len(verdicts) - len(lost)} of {len(verdicts)} verdicts stay"
            f"{'; not ' + ', '.join(lost) if lost else ''}."
        )
    shared = [
        f"{rows} rows of {', '.join(table.study.name for table in members)} with {runs} of "
        f"{members[0].baseline_label}"
        for members, runs in together.shared_baselines(tables)
        if (rows := sum(len(table.comparisons) for table in members)) > 1
    ]
    if shared:
        yield (
            f"Rows compared with the same runs of the baseline: {'; '.join(shared)}. Their "
            "differences err together."
        )


def caveats_of(tables: Iterable[ErrorTable], of_verdicts: bool = True) -> Iterator[str]:
    """Yields the caveats of each of several tables that has any, after its study and workload."""
    for table in tables:
        if text := " ".join(caveats(table, of_verdicts)):
            yield f"{table.study.name}, {table.workload}: {text}"


def caveats(table: ErrorTable, of_verdicts: bool = True) -> Iterator[str]:
    """Yields sentences on the trials of a table: which have not ended, which the study no longer
    plans or does not count, changes of the plan, seeds that chose the point, several commits,
    several data sets. `of_verdicts`: whether the page has verdicts, and a command `--preliminary`.
    """
    study = table.study
    runs = [run for row in table.rows for run in table.runs(row)]
    if table.unfinished:
        missing = [f"{row.label} {row.unfinished}" for row in table.rows if row.unfinished]
        withheld = {comparison.withheld for comparison in table.comparisons.values()}
        advice = "verdicts are withheld" if of_verdicts else "comparisons are withheld"
        if of_verdicts and UNFINISHED in withheld:
            advice += "; `--preliminary` shows them as they are so far"
        if table.is_preliminary:
            advice = "`so far` marks verdicts that more trials may change"
        left = ", ".join(missing) or "other points, or seeds of the next look"
        yield f"Unfinished (planned trials that have not ended: {left}): {advice}."
    if any(not (plan.seeds or plan.looks) for plan in study.plans[:1]):
        yield "Plan unknown: nothing says how many seeds were planned when the study began."
    if of_verdicts:
        yield from _rules(table)
    for name in ("seeds", "points", "baseline"):
        values = [value for plan in study.plans if (value := getattr(plan, name))]
        if len(set(values)) > 1:
            changes = ", then ".join(str(value) for value, _ in itertools.groupby(values))
            yield f"The plan was changed after the start: {name} {changes}."
    uncounted = [run for row in table.rows for run in row.uncounted]
    for point in sorted({run.point for run in uncounted}):
        trials = _trials(run for run in uncounted if run.point == point)
        yield (
            f"Compared before at point {point}, not counted: {trials}. Verdicts are withheld; "
            "compare points in studies with separate names."
        )
    yield from _edges(table)
    if unplanned := [run for run in runs if not run.is_planned]:
        yield f"Not planned now, counted all the same: {_trials(unplanned)}."
    if len(table.commits) > 1:
        yield f"The trials were trained by {commits(table)}."
    searched = study.stages[: study.stages.index(table.stage)]
    tuning = {(x.variant, x.point, x.seed) for x in study.runs if x.stage in searched}
    if tuned := [run for run in runs if (run.variant, run.point, run.seed) in tuning]:
        yield f"Seeds that also chose the point, which favours the tuned variant: {_trials(tuned)}."
    runs = [run for run in runs if run.is_finished]
    digests = sorted({run.data_digest for run in runs if run.data_digest})
    if len(digests) > 1:
        parts = [
            f"{digest[:SHORT]} ({_trials(run for run in runs if run.data_digest == digest)})"
            for digest in digests
        ]
        yield f"The trials were trained on different data: {'; '.join(parts)}."


def points(table: ErrorTable) -> dict[int | None, str]:
    """Returns what tells a point of the stage from the others: `learning_rate=0.005`, of points
    that differ in more than two hyperparameters their number alone."""
    values = {run.point: run.hyperparameters for run in table.study.stage(table.stage)}
    names = dict.fromkeys(name for settings in values.values() for name in settings)
    varied = [x for x in names if len({repr(each.get(x)) for each in values.values()}) > 1]
    if len(varied) > 2:
        varied = []
    return {
        point: ", ".join(f"{name}={settings.get(name)}" for name in varied) or f"point {point}"
        for point, settings in values.items()
    }


def _edges(table: ErrorTable) -> Iterator[str]:
    """Yields a sentence on learning rates that were chosen at an edge of those that were tried."""
    stage = frames.searched(table)
    rates: dict[str, dict[int | None, float]] = {}
    for run in table.study.stage(stage):
        if isinstance(rate := run.hyperparameters.get("learning_rate"), int | float):
            rates.setdefault(run.variant, {})[run.point] = rate
    texts = []
    for variant, of_points in rates.items():
        tried = sorted(set(of_points.values()))
        rate = of_points.get(selection.chosen_point(table.study, stage, variant))
        if len(tried) > 1 and rate in (tried[0], tried[-1]):
            edge = "smallest" if rate == tried[0] else "largest"
            texts.append(f"{variants.label(variant)} {rate:g}, the {edge} of {len(tried)}")
    if texts:
        yield f"Chosen learning rates at the edge of those tried: {'; '.join(texts)}."


def _rules(table: ErrorTable) -> Iterator[str]:
    """Yields sentences on the choice of a point, on declared looks, on seeds that were added
    without any, on the margin."""
    if any(row.points for row in table.rows):
        yield (
            "Each variant has its best point by validation, over all seeds. Intervals and p of "
            "differences repeat this choice in a bootstrap over seeds."
        )
    if table.looks:
        place = f"these are {table.look}" if table.look else "this is none of them"
        yield (
            f"Verdicts were declared for {', '.join(map(str, table.looks))} seeds; {place}. They "
            f"need p < {table.threshold:.2g} (O'Brien-Fleming, Bonferroni); the corrected p is p "
            f"times {comparisons.ALPHA:g} over that."
        )
    if added := {str(row.planned_at_first) for row in table.rows if row.planned_at_first}:
        yield (
            f"Seeds were added after the start (planned at first: {', '.join(sorted(added))}). If "
            "results were seen before, 8 to 23 % of such studies give a false verdict, not 5 %."
        )
    if table.margin:
        start = next(iter(table.study.plans), Plan())
        when = "at" if str(start.margin) == table.margin else "after"
        yield (
            f"Equal: two one-sided t-tests show a difference below {table.margin}. This margin was "
            f"chosen {when} the start of the study."
        )


def commits(table: ErrorTable) -> str:
    """Returns what trained the trials: a commit, `2 commits: aaaa111, bbbb222`, or nothing."""
    texts = ", ".join(map(short_commit, table.commits))
    return f"{len(table.commits)} commits: {texts}" if len(table.commits) > 1 else texts


def short_commit(commit: str) -> str:
    """Returns the beginning of a commit, with `-dirty` where the checkout was changed."""
    sha, dash, dirty = commit.partition("-")
    return sha[:SHORT] + dash + dirty


def _trials(runs: Iterable[Run]) -> str:
    """Returns trials as text: `Standard, LASER: 3 seeds (5 to 7)`."""
    seeds: dict[str, set[int]] = {}
    for run in runs:
        seeds.setdefault(variants.label(run.variant), set()).add(run.seed)
    labels: dict[str, list[str]] = {}
    for label, numbers in seeds.items():
        plural = "s" if len(numbers) > 1 else ""
        text = f"{len(numbers)} seed{plural} ({pages.span(map(str, sorted(numbers)))})"
        labels.setdefault(text, []).append(label)
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in labels.items())


def outcome(verdict: str, withheld: str, within: str = "") -> str:
    """Returns a verdict as printed: `better`, `equal within 0.5%`, `worse, within 0.5%`, or with
    the reason of one that is withheld, if it is not marked `so far`."""
    if within:
        return f"{verdict}{'' if verdict == 'equal' else ','} within {within}"
    return f"{verdict} ({withheld})" if withheld and verdict not in SO_FAR.values() else verdict


def outcomes(lines: pd.DataFrame) -> list[str | None]:
    """Returns the verdicts of `frames.results` as printed."""
    return [
        *map(outcome, lines["verdict"], lines["withheld"].fillna(""), lines["within"].fillna(""))
    ]


def _untold(table: ErrorTable) -> str:
    """Returns why no verdict is possible at all, empty if one is."""
    if not table.baseline_row and len(table.rows) > 1:
        names = ", ".join(row.variant for row in table.rows)
        return f"No comparison: no variant is called {table.baseline!r}; give --baseline: {names}."
    tested = {
        name: comparison for name, comparison in table.comparisons.items() if comparison.is_tested
    }
    least: dict[str, float] = {}
    enough = 0.0
    for name, comparison in tested.items():
        others = [other.p for other in tested.values() if other is not comparison]
        p = float(
            comparisons.corrected([comparison.smallest_p, *others], table.family, table.threshold)[
                0
            ]
        )
        if p >= comparisons.ALPHA:
            least[name] = p
            seeds = comparisons.enough_seeds(comparison.test, others, table.family, table.threshold)
            enough = max(enough, seeds)
    if not least:
        return ""
    return (
        f"Too few seeds for a verdict on {', '.join(map(variants.label, least))}: p (Holm) cannot "
        f"be below {min(least.values()):.2g}. {enough:.0f} seeds of each variant are enough."
    )


def details(table: ErrorTable) -> list[str]:
    """Returns the notes below the tables of details: hyperparameters, the paper's and the data's
    own notes, the limit of failed runs."""
    study = table.study
    texts = [*_hyperparameters(table), study.paper_note]
    if table.is_paper:
        texts.append(f"paper: {paper.TABLES[study.paper_table].caution}.")
    elif study.paper_table and table.metric.name == paper.TABLES[study.paper_table].metric:
        size = f"{table.workload} in {paper.dtype(study.config)}"
        texts.append(f"paper: no number for these variants on {size}.")
    failures = failed_runs.of_table(table)
    limit = "no constant answer is known, so only diverged runs are counted"
    if failures.limit is not None:
        share = f"{1 - failed_runs.LEAST_REMOVED:.0%} of {failures.answer}, {failures.constant:.4f}"
        limit = f"diverged, or above {failures.limit:.4f} on validation ({share})"
    texts.append(f"Failed to train: {limit}.")
    return [text for text in texts if text]


def _hyperparameters(table: ErrorTable) -> list[str]:
    """Returns a line for each point and its values, with the variants that ran at it. In AlgoPerf's
    logs each submission has its own values, which one of its trials states."""
    labels: dict[str, list[str]] = {}
    for row in table.rows:
        runs = table.runs(row)
        values = (runs[0].hyperparameters if runs else {}) | row.hyperparameters
        texts = [
            f"{key}={x:.6g}" if isinstance(x, float) else f"{key}={x}" for key, x in values.items()
        ]
        if row.point is not None:
            labels.setdefault(", ".join([f"point {row.point}", *texts]), []).append(row.label)
    return [f"{', '.join(names)}: {values}." for values, names in labels.items()]
