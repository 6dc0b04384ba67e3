"""How much compute a variant saves: the speed-ups with intervals, and the baseline's budgets."""

import math
from collections.abc import Iterable

import pandas as pd

from analysis.compare.speedup import TOLD, SpeedUps
from analysis.render import pages
from analysis.render.pages import Page, Table
from attention import table as variants


def page(found: SpeedUps) -> Page:
    """Returns the speed-ups and the budgets; `data` has the rows of both."""
    return Page(
        title=f"{found.workload}: compute for equal {found.what}",
        tables=(_speedups(found), _budgets(found)),
        notes=tuple(_notes(found)),
        problems=found.problems,
        data=lambda: pd.concat([found.budgets.assign(variant=found.baseline), found.rows]),
    )


def _speedups(found: SpeedUps) -> Table:
    least, most = found.budgets["steps"].min(), found.budgets["steps"].max()
    rows = []
    for row in found.rows.itertuples():
        cells = {"Variant": variants.label(row.variant), "Steps": f"{row.steps:,}", "n": row.n}
        if not row.why:
            ends = (row.needed, row.low, row.high)
            cells |= {
                "Steps of\nbaseline": _within(ends, 1.0, least, most, "{:,.0f}"),
                "Speed-up,\ncompute": _within(ends, row.compute, least, most, "{:.2f}"),
                "Speed-up,\ntime": _within(ends, row.seconds, least, most, "{:.2f}"),
                "by a\npower law": f"{row.by_law * row.compute:.2f}",
                f"Seeds\nfor {TOLD}": "unknown" if pd.isna(row.seeds) else f"{row.seeds:,.0f}",
            }
        rows.append(cells)
    caption = f"Compute of {variants.label(found.baseline)} over the variant's, equal {found.what}"
    return pages.text_table(caption, pd.DataFrame(rows))


def _within(
    ends: tuple[float, float, float], factor: float, least: int, most: int, form: str
) -> str | None:
    """Returns an estimate and its interval times a factor; of what lies beyond the budgets that it
    is more or less than there."""
    if math.isnan(factor):
        return None

    def text(steps: float) -> str:
        if steps == 0:
            return f"< {form.format(least * factor)}"
        return (
            f"> {form.format(most * factor)}" if steps == math.inf else form.format(steps * factor)
        )

    return f"{text(ends[0])} [{text(ends[1])}, {text(ends[2])}]"


def _budgets(found: SpeedUps) -> Table:
    columns = {"study": "Study", "steps": "Steps", "n": "n", "value": found.what.capitalize()}
    columns |= {"flop": "GFLOP\na step", "seconds": "Seconds\na step"}
    frame = found.budgets.sort_values("steps").assign(flop=found.budgets["flop"] / 1e9)
    frame = frame[[*columns]].rename(columns=columns)
    formats = {"Steps": ",", columns["value"]: ".4f", columns["flop"]: ".4g"}
    formats |= {columns["seconds"]: ".4g"}
    return Table(f"Budgets of {variants.label(found.baseline)}", frame, formats)


def _notes(found: SpeedUps) -> Iterable[str]:
    yield (
        "Speed-up: what the baseline needs for the variant's mean, over what the variant took; 95% "
        "intervals: paired t-tests along the polynomial through the baseline's budgets. < and >: "
        "beyond the budgets; nothing is extrapolated. Compute is model FLOP, time the seconds of a "
        "step as the trials recorded them."
    )
    for row in found.rows[found.rows["why"] != ""].itertuples():
        yield f"No number for {variants.label(row.variant)} ({row.study}): {row.why}."
