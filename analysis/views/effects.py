"""effects.png: every variant's difference from the baseline, with its interval, about zero."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.compare.error_table import ErrorTable, VariantResult
from analysis.render import pages, style
from analysis.render.pictures import Plot


def draw(table: ErrorTable) -> Figure | None:
    """Returns the figure, None where nothing is compared with a baseline on the deciding split."""
    found = {
        name: each for name, each in table.comparisons.items() if each.difference == each.difference
    }
    if not found:
        return None
    rows = [table.by_variant[name] for name in found]
    labels = [row.label for row in rows]
    figure, axes = style.variant_rows(8.4, 1.7 + 0.36 * len(rows), labels, range(len(rows)))
    axes.axvline(0.0, color=style.BLACK, linewidth=1.0, zorder=1)
    for height, (row, each) in enumerate(zip(rows, found.values(), strict=True)):
        bounds, mark = (each.low, each.high), each.verdict.replace("cannot tell", "")
        printed = paper_difference(table, row)
        style.interval_row(
            axes, height, row.variant, each.difference, bounds, printed, mark, weight="bold"
        )
    _finish(figure, axes, table, rows)
    return figure


def paper_difference(table: ErrorTable, row: VariantResult) -> float | None:
    """Returns the paper's number of `row` minus its baseline's on the deciding split, None where
    it does not print both."""
    base = table.baseline_row
    printed, against = table.of(row).paper, base and table.of(base).paper
    return printed.value - against.value if printed and against else None


def _finish(figure: Figure, axes: Axes, table: ErrorTable, rows: list[VariantResult]) -> None:
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -0.02 * (high - low)), max(high, 0.02 * (high - low)))
    axes.locator_params(axis="x", nbins=4 if style.is_narrow() else 8)
    base = table.baseline_label
    side = "left" if table.metric.lower_is_better else "right"
    what = f"{table.decisive} {table.metric.axis(table.workload)}"
    # Below the axes, which leave a third of a phone's width to the labels.
    points = 17 if style.is_narrow() else 10
    label = style.wrapped(figure, f"{what} minus {base}'s; better to the {side}", points)
    axes.set_xlabel(label, fontsize=10)
    style.title(figure, f"{table.study.name}: differences from {base}")
    grey = style.GREY
    handles = [style.key("mean, 95% interval", marker="o", ms=8, lw=2.4, color=grey, ls="-")]
    if any(paper_difference(table, row) is not None for row in rows):
        handles.append(style.key("paper", marker="D", mfc="none", color=style.BLACK))
    style.legend(figure, handles)


def words(table: ErrorTable) -> str:
    """Returns every variant's difference from the baseline with its interval."""
    digits = table.metric.digits
    parts = []
    for name, comparison in table.comparisons.items():
        row = table.by_variant[name]
        numbers = (comparison.difference, comparison.low, comparison.high)
        middle, low, high = (pages.number(value, digits, signed=True).text for value in numbers)
        printed = paper_difference(table, row)
        paper = "" if printed is None else f", paper {pages.number(printed, digits, True).text}"
        parts.append(f"{row.label} {middle} from {low} to {high}{paper}, {comparison.verdict}")
    base = table.baseline_label
    return f"Differences in {table.what} from {base}, mean and 95% interval: {'; '.join(parts)}."


PLOTS = (
    Plot(
        file="effects.png",
        draw=draw,
        words=words,
        absent="no variant is compared with a baseline",
        caption="Difference from the baseline, mean over seeds, with its own 95% interval: not "
        "corrected for the number of variants, as the verdicts are.",
    ),
)
