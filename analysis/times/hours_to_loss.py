"""The paper's hours until the 2.2 B language model reaches test loss 2.327, beside ours."""

import math

from analysis.documents import variants
from analysis.documents.grid import NOTHING, Cell, Column, Grid
from analysis.paper import paper
from analysis.reading import metrics
from analysis.reading.targets import Target
from analysis.results.error_table import ErrorTable
from analysis.times import crossings
from analysis.times.crossings import Crossing

WORKLOAD, LOSS, SPLIT = "c4_lm_2b", 2.327, "test"
FILE, MODEL = "text_hours_to_loss.csv", "decoder-LM-2.2B"
HEADING = f"hours to test loss {LOSS} on TPU v5"
NOTES = (
    f"paper: {paper.SOURCE}, text on the time to test loss {LOSS}, on TPU v5; our hours are those "
    "of accumulated_submission_time on the machines that the trials ran on.",
    "The paper's 9.4 % is the ratio of its hours minus one, 27.22/24.88 - 1; the time saved is "
    "8.6 %, 1 - 24.88/27.22. It gives 2.344 and 2.347, too, as Standard's loss of this model, "
    "which does not agree with reaching 2.327.",
)


def printed(variant: str) -> paper.PaperCell | None:
    """Returns the hours that the paper prints for a variant, None for others."""
    return paper.printed(FILE, MODEL, HEADING, variant)


def grid_of(table: ErrorTable) -> Grid | None:
    """Returns the paper's hours beside the median over seeds of ours, None for another model."""
    if table.workload != WORKLOAD:
        return None
    target = Target(metrics.get("loss"), SPLIT, LOSS, "the paper's")
    rows = tuple(_cells(table, row.variant, row.point, target) for row in table.rows)
    headings = ("Seeds\nreached", "Hours\npaper", "Hours\nmeasured")
    columns = (Column("Variant", numeric=False), *(Column(heading) for heading in headings))
    return Grid(f"Hours to test loss {LOSS}", columns, (rows,))


def _cells(table: ErrorTable, variant: str, point: int | None, target: Target) -> tuple[Cell, ...]:
    found = [
        crossing
        for run in table.study.stage(table.stage)
        if (run.variant, run.point) == (variant, point) and run.state in crossings.COUNTED_STATES
        if (crossing := crossings.of_run(run, target))
    ]
    cell = printed(variant)
    return (
        Cell(variants.label(variant)),
        Cell(f"{sum(each.is_reached for each in found)} of {len(found)}"),
        Cell(cell.text if cell else NOTHING),
        Cell(_hours(found)),
    )


def _hours(found: list[Crossing]) -> str:
    median = crossings.seconds(found)
    if math.isnan(median.value):
        return NOTHING
    return f"{'> ' if median.is_bound else ''}{median.value / 3600:.2f}"
