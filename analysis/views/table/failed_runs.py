"""The runs that failed to train, laid out: how many, how the rates compare, and the deciding split
without them."""

from collections.abc import Iterable

from analysis.compare import failed_runs
from analysis.compare.error_table import ErrorTable
from analysis.compare.failed_runs import FailedRuns, VariantFailures
from analysis.render import pages
from analysis.render.pages import NONE, Cell, Page, Table

HEADING = "Failed\nto train"


def page(table: ErrorTable, found: FailedRuns) -> Page:
    """Returns the rates and the table without these runs, no table where there are none."""
    title = f"{table.study.name}: runs that failed to train"
    if not found.any:
        return Page(title, (), tuple(_rule(found)))
    shown = (_rates(table, found), _without(table, found))
    return Page(title, shown, (*_rule(found), *_notes(table, found)))


def cell(each: VariantFailures | None) -> Cell:
    """Returns `7 of 20`, a dash for a variant without a run that ended."""
    return Cell(f"{each.rate.count} of {each.rate.n}") if each else NONE


def sentence(table: ErrorTable, found: FailedRuns) -> str:
    """Returns which rows fail to train more or less often than the baseline, with p, and how many
    of all did where none can be told; empty where no run failed."""
    if not found.any:
        return ""
    told: dict[str, list[str]] = {}
    for name, each in found.by_variant.items():
        if each.against and each.against.verdict != "cannot tell":
            p = pages.p_in_words(each.against.p_holm)
            text = f"{table.by_variant[name].label} ({cell(each).text}, {p})"
            told.setdefault(each.against.verdict, []).append(text)
    base = found.by_variant.get(table.baseline)
    if told and base:
        parts = [f"{', '.join(labels)} {word}" for word, labels in told.items()]
        return (
            f"Failed to train: {'; '.join(parts)} than {table.baseline_label} ({cell(base).text})."
        )
    counts = ", ".join(
        f"{table.by_variant[name].label} {cell(each).text}"
        for name, each in found.by_variant.items()
        if each.rate.count
    )
    others = f"; {table.baseline_label} {cell(base).text}" if base and not base.rate.count else ""
    return f"Runs that failed to train: {counts}{others}."


def _rates(table: ErrorTable, found: FailedRuns) -> Table:
    headings = ("Variant", "Runs", "Failed", "Rate", "95% interval", "p\n(Fisher)", "p\n(Holm)")
    rows = []
    for row in table.rows:
        if each := found.by_variant.get(row.variant):
            rate, against = each.rate, each.against
            rows.append(
                (
                    *(Cell(row.label), Cell(str(rate.n)), Cell(str(rate.count))),
                    pages.number(rate.count / rate.n, 2),
                    pages.bounds(rate.low, rate.high, 2),
                    pages.p_value(against.p) if against else NONE,
                    pages.p_value(against.p_holm) if against else NONE,
                    Cell(_word(table, row.variant, each)),
                )
            )
    columns = pages.columns(*headings, "Fails", words=("Variant", "Fails"))
    return Table("Runs that failed to train", columns, (tuple(rows),))


def _word(table: ErrorTable, variant: str, each: VariantFailures) -> str:
    if variant == table.baseline:
        return "baseline"
    return each.against.verdict if each.against else pages.NOTHING


def _without(table: ErrorTable, found: FailedRuns) -> Table:
    headings = ("n", "Median", "Mean", "SD", "Mean\ndiff.", "95% interval")
    digits, rows = table.metric.digits, []
    for row in table.rows:
        each = found.by_variant.get(row.variant)
        if each is None or each.summary is None:
            continue
        numbers = (each.summary.median, each.summary.mean, each.summary.sd)
        line = [Cell(row.label), Cell(str(each.summary.n))]
        line += [pages.number(value, digits) for value in numbers]
        if each.comparison is None:
            line += [NONE] * 4
        else:
            line += [
                pages.number(each.comparison.difference, digits, signed=True),
                pages.bounds(each.comparison.low, each.comparison.high, digits, signed=True),
                Cell(each.comparison.seeds),
                pages.p_value(each.comparison.p_holm),
            ]
        rows.append(tuple(line))
    columns = pages.columns("Variant", *headings, "n of\ntest", "p\n(Holm)")
    caption = f"{table.metric.title} on {table.decisive} without the runs that failed to train"
    return Table(caption, columns, (tuple(rows),))


def _rule(found: FailedRuns) -> Iterable[str]:
    if found.answer is None or found.limit is None:
        yield (
            "Runs that failed to train: only those that diverged are counted, since no constant "
            "answer is recorded for this data (small twins record one when it is prepared)."
        )
        return
    seen = "" if found.any else " No run did."
    yield (
        "Failed to train: finished with less than "
        f"{failed_runs.LEAST_REMOVED:.0%} of a constant answer's error removed on validation "
        f"({found.answer.name}: {found.answer.chosen:.4f}; limit {found.limit:.4f}), or "
        f"diverged.{seen}"
    )


def _notes(table: ErrorTable, found: FailedRuns) -> Iterable[str]:
    yield (
        "Rates: Wilson's 95% interval; p: Fisher's exact test, two-sided, Holm over the variants; "
        "it takes runs as independent, though those of one seed share initial values and batches."
    )
    counts = {share: found.beyond(table, share) for share in failed_runs.OTHER_LIMITS}
    if any(counts.values()):
        told = "; ".join(
            f"{share:g}: "
            + ", ".join(f"{table.by_variant[name].label} {n}" for name, n in of_share.items())
            for share, of_share in counts.items()
        )
        yield f"Finished runs above other shares of the constant answer's number: {told}."
    yield (
        "Without them: what a reader gets who may throw failed runs away. It looks at the outcome "
        "to choose runs, and those just inside the limit stay; the tables above keep all."
    )
    if any(each.comparison and not each.comparison.is_tested for each in found.by_variant.values()):
        yield "Fewer than 2 runs of a side are left of a comparison: no test there."
