"""Scores on the tasks of suites: variants x tasks, their means, each task against the baseline, ±
over checkpoints and over seeds, generated answers, and the paper's means that do not follow.

Percentages with two decimals, as the paper has them.
"""

import math
from collections.abc import Iterable, Iterator

from analysis.compare import downstream
from analysis.compare.downstream import MEAN, SuiteTable
from analysis.compare.error_table import ErrorTable
from analysis.compare.suite_scores import Score
from analysis.load import paper
from analysis.load.paper import PaperCell
from analysis.render import pages
from analysis.render.pages import NONE, Cell, Column, Page, Row, Table
from analysis.views.downstream import figure, notes, paper_means, tidy_csv
from analysis.views.downstream.figure import PERCENT
from analysis.views.downstream.paper_means import DIGITS
from attention import table as variants

PLOTS = figure.PLOTS
# By which a generated answer is judged beside its exact match: choices by their log-likelihoods.
RANKED = ("rank_accuracy", "acc")
EXACT = "exact_match"


def page(
    table: ErrorTable, suite: str | None = None, metric: str | None = None, step: int | None = None
) -> Page | None:
    """Returns the tables of every suite that the trials of `table` were asked, or of one, None
    where they were asked none. `metric` and `step` as `compare.downstream.of_table` has them."""
    found = downstream.of_table(table, suite, metric, step)
    if not found:
        return None
    beside = downstream.from_random_weights(table)
    name, random = beside or ("", ())
    by_suite = {each.suite: each for each in random}
    tables = [
        each
        for one in found
        for each in _tables(one, _paper_suite(one, table), by_suite.get(one.suite))
    ]
    said = [note for one in found for note in notes.of_suite(one, _paper_suite(one, table))]
    if beside:
        said.append(notes.on_random_weights(name, bool(random), table))
    problems = [problem for one in (*found, *random) for problem in one.problems]
    return Page(
        title=f"{table.study.name}: downstream tasks on {table.workload}, stage {table.stage}",
        tables=tuple(tables),
        notes=tuple(dict.fromkeys(said)),
        problems=tuple(dict.fromkeys(problems)),
    )


def _paper_suite(found: SuiteTable, table: ErrorTable) -> str:
    """Returns the suite whose printed numbers stand beside ours, empty where the study is not the
    paper's."""
    entry, study = paper.SUITES.get(found.suite), table.study
    is_paper = bool(study.paper_table or study.paper_note)
    return found.suite if entry and is_paper and entry.workload == table.workload else ""


def to_csv(
    tables: Iterable[ErrorTable], suite: str | None, metric: str | None, step: int | None
) -> str:
    """Returns the same as CSV: `tidy_csv.to_csv`."""
    found = ((table, downstream.of_table(table, suite, metric, step)) for table in tables)
    return tidy_csv.to_csv(found, _fraction_printed)


def _fraction_printed(
    found: SuiteTable, table: ErrorTable, variant: str, task: str | None
) -> float | None:
    """Returns the paper's number on a task, of the mean over tasks without one."""
    suite = _paper_suite(found, table)
    cell = paper.of_task(suite, variant, task) if task else paper.of_mean(suite, variant)
    return cell.value / PERCENT if cell else None


def _tables(found: SuiteTable, printed: str, random: SuiteTable | None) -> Iterator[Table]:
    if not found.scores:
        return
    yield _overview(found, printed)
    yield _means(found, printed)
    if any(score.difference for of_tasks in found.scores.values() for score in of_tasks.values()):
        yield _against_baseline(found, printed)
    if found.has_spread:
        yield _spread(found, printed)
    if found.generated:
        yield _generated(found, random)
    if printed:
        yield paper_means.table(paper.SUITES[printed].key)


def _place(found: SuiteTable) -> str:
    return f"suite {found.suite}, step {found.step}"


def percent(value: float | None, signed: bool = False) -> Cell:
    """Returns a fraction as a percentage, a dash for None and nan."""
    return pages.number(None if value is None else PERCENT * value, DIGITS, signed)


def _bounds(low: float, high: float, signed: bool = False) -> Cell:
    return pages.bounds(PERCENT * low, PERCENT * high, DIGITS, signed)


def _printed(cell: PaperCell | None) -> Cell:
    return Cell(cell.text, cell.bold) if cell else NONE


def _overview(found: SuiteTable, printed: str) -> Table:
    """Variants x tasks, below them what answering without a model gives, and the paper's rows."""
    tasks = list(found.tasks)
    best = {task: _best(of[task] for of in found.scores.values() if task in of) for task in tasks}
    best_mean = _best(found.means.values())

    def of_variant(name: str) -> Row:
        scores, mean = found.scores[name], found.means.get(name)
        cells = (_score(scores.get(task), best[task]) for task in tasks)
        return (Cell(variants.label(name)), *cells, _score(mean, best_mean))

    groups: dict[str, list[str]] = {}
    for name in found.scores:
        groups.setdefault(variants.group(name), []).append(name)
    sections = [tuple(map(of_variant, names)) for names in groups.values()]
    sections.append(tuple(_reference_rows(found)))
    if printed:
        sections.append(tuple(_paper_rows(found, printed)))
    asked = tuple(Cell(f"{found.tasks[task].n:,}") for task in tasks)
    sections.append(((Cell("questions"), *asked, NONE),))
    return Table(
        f"Right answers in percent, {_place(found)}",
        (Column("Variant", numeric=False), *map(Column, tasks), Column("Mean")),
        tuple(section for section in sections if section),
    )


def _best(scores: Iterable[Score]) -> float:
    return max((score.value for score in scores), default=math.nan)


def _score(score: Score | None, best: float) -> Cell:
    if score is None:
        return NONE
    return Cell(percent(score.value).text, bold=math.isclose(score.value, best, abs_tol=1e-12))


def _reference_rows(found: SuiteTable) -> Iterator[Row]:
    for name, values in found.references.items():
        cells = (percent(values[task]) for task in found.tasks)
        yield (Cell(name), *cells, percent(found.reference(values)))


def _paper_rows(found: SuiteTable, printed: str) -> Iterator[Row]:
    for name in found.scores:
        cells = [paper.of_task(printed, name, task) for task in found.tasks]
        if any(cells):
            mean = _printed(paper.of_mean(printed, name))
            yield (Cell(f"paper: {variants.label(name)}"), *map(_printed, cells), mean)


def _means(found: SuiteTable, printed: str) -> Table:
    headings = [
        *("Variant", "Seeds", "Mean", "95%, other\nquestions", "Difference"),
        *("95%, other\nquestions", "p (Holm)\nquestions", "95%, other\nseeds", "p (Holm)\nseeds"),
    ]
    headings += ["Paper", "Paper's\ndifference"] * bool(printed)
    rows = []
    for name, mean in found.means.items():
        row = [Cell(variants.label(name)), Cell(str(mean.seeds)), percent(mean.value)]
        row += [_bounds(mean.low, mean.high), *_difference(mean), *_over_seeds(mean)]
        if printed:
            own, base = (paper.of_mean(printed, each) for each in (name, found.baseline))
            row += [_printed(own), _printed_difference(own, base, name == found.baseline)]
        rows.append(tuple(row))
    over = f"{len(found.tasks)} tasks" if len(found.tasks) > 1 else "one task"
    caption = f"Mean over {over} in percent, {_place(found)}"
    return Table(caption, pages.columns(*headings), (tuple(rows),))


def _difference(score: Score) -> tuple[Cell, Cell, Cell]:
    each = score.difference
    if each is None:
        return NONE, NONE, NONE
    bounds = _bounds(each.low, each.high, signed=True)
    return percent(each.value, signed=True), bounds, pages.p_value(each.p_holm)


def _over_seeds(score: Score) -> tuple[Cell, Cell]:
    each = score.by_seeds
    if each is None or not each.is_tested:
        return NONE, NONE
    return _bounds(each.low, each.high, signed=True), pages.p_value(each.p_holm)


def _printed_difference(own: PaperCell | None, base: PaperCell | None, is_base: bool) -> Cell:
    if own is None or base is None or is_base:
        return NONE
    return pages.number(own.value - base.value, DIGITS, signed=True)


def _against_baseline(found: SuiteTable, printed: str) -> Table:
    """Every variant and task: one section for each variant."""
    base = variants.label(found.baseline)
    headings = [
        *("Variant", "Task", "n", "Score", "95%", "Difference", "95% of it"),
        *("Right: it\nalone", f"{base}\nalone", "p", "p (Holm)"),
    ]
    headings += ["Paper's\ndifference"] * bool(printed)
    sections = []
    for name, scores in found.scores.items():
        rows = []
        for task, score in scores.items():
            if (each := score.difference) is None:
                continue
            change, bounds, p_holm = _difference(score)
            row = [Cell(variants.label(name)), Cell(task), Cell(f"{score.n:,}")]
            row += [percent(score.value), _bounds(score.low, score.high), change, bounds]
            row += [Cell(str(each.better)), Cell(str(each.worse)), pages.p_value(each.p), p_holm]
            if printed:
                own, other = (paper.of_task(printed, v, task) for v in (name, found.baseline))
                row.append(_printed_difference(own, other, is_base=False))
            rows.append(tuple(row))
        sections.append(tuple(rows))
    return Table(
        f"Each task against {base}, {_place(found)}",
        pages.columns(*headings, words=("Variant", "Task")),
        tuple(section for section in sections if section),
    )


def _spread(found: SuiteTable, printed: str) -> Table:
    """± over checkpoints and over seeds, one beside the other."""
    headings = [
        *("Variant", "Task", "Checkpoints\n(n)", "Seeds\n(n)", "Mean of\ncheckpoints"),
        *("SD over\ncheckpoints", "SD over\nseeds"),
    ]
    beside = bool(printed and paper.SUITES[printed].checkpoints)
    headings += ["Paper, over\n5 checkpoints"] * beside

    def row(name: str, task: str | None, score: Score) -> Row:
        each = score.spread
        counts = (Cell(str(each.checkpoints)), Cell(str(each.seeds)))
        values = map(percent, (each.mean, each.over_checkpoints, each.over_seeds))
        theirs = (_printed(paper.over_checkpoints(printed, name, task)),) * beside
        place = (Cell(variants.label(name)), Cell(task or MEAN))
        return (*place, *counts, *values, *theirs)

    sections = []
    for name, scores in found.scores.items():
        rows = [row(name, task, score) for task, score in scores.items()]
        if mean := found.means.get(name):
            rows.append(row(name, None, mean))
        sections.append(tuple(rows))
    steps = ", ".join(map(str, found.steps))
    return Table(
        f"The last checkpoints in percent, suite {found.suite}, steps {steps}",
        pages.columns(*headings, words=("Variant", "Task")),
        tuple(section for section in sections if section),
    )


def _generated(found: SuiteTable, random: SuiteTable | None) -> Table:
    """Answers that were generated: how many match, and what else there is to know of them."""
    headings = (
        *("Variant", "Task", "n", "Exact match", "95%", "Rank\naccuracy"),
        *("Undecodable", "Majority\nclass", "From random\nweights"),
    )
    sections = []
    for name, scores in found.scores.items():
        rows: list[Row] = []
        for task in (task for task in found.generated if task in scores):
            score = scores[task]
            ranked = next((score.metrics[key] for key in RANKED if key in score.metrics), None)
            bounds = _bounds(score.low, score.high) if found.metrics[task] == EXACT else NONE
            cells = (percent(score.metrics.get(EXACT)), bounds, percent(ranked))
            without = random.scores.get(name, {}).get(task) if random else None
            others = (
                percent(score.undecodable),
                percent(found.tasks[task].majority),
                percent(without.metrics.get(EXACT) if without else None),
            )
            head = (Cell(variants.label(name)), Cell(task), Cell(f"{score.n:,}"))
            rows.append((*head, *cells, *others))
        sections.append(tuple(rows))
    return Table(
        f"Generated answers in percent, {_place(found)}",
        pages.columns(*headings, words=("Variant", "Task")),
        tuple(section for section in sections if section),
    )
