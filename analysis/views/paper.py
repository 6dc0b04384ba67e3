"""The paper's tables, digits as printed. `analysis/reference/README.md` names what does not add up
in them."""

from collections.abc import Sequence

import pandas as pd

from analysis.load import paper
from analysis.load.paper import PRINTED, PrintedTable
from analysis.render.pages import NOTHING, Page, Table

MODEL, METHOD, TASK = "model", "method", "dataset_or_metric"
HEADINGS = {MODEL: "Model", METHOD: "Method", TASK: "Quantity"}
UNITS = {"percent": " %", "percent_points": " points", "billion_tokens": " billion tokens"}
PAPER_ONLY = "Paper only: no study of ours measures these numbers."


def pages(keys: Sequence[str] | None = None) -> tuple[Page, ...]:
    """Returns the tables with the given keys of PRINTED, all of them unless given, in order.

    Raises ValueError for a key that is not one of them.
    """
    unknown = [key for key in keys or () if key not in PRINTED]
    if unknown:
        raise ValueError(
            f"no table {', '.join(unknown)} of the paper; there are {', '.join(PRINTED)}"
        )
    return tuple(page(key) for key in keys or PRINTED)


def page(key: str) -> Page:
    """Returns one table of the paper: a frame for each file that it is in."""
    printed = PRINTED[key]
    return Page(
        title=f"Paper, {printed.place}",
        tables=tuple(_table(file, printed) for file in printed.files),
        notes=(
            f"{paper.SOURCE}: {printed.what}; digits and bold as printed.",
            printed.ours or PAPER_ONLY,
        ),
    )


def _table(file: str, printed: PrintedTable) -> Table:
    """Several models are rows, too; a single one is the caption. The first of several columns that
    name a row groups the rows."""
    cells = pd.DataFrame(paper.lines(file))
    spread = (" ± " + cells["std"]).where(cells["std"] != "", "")
    # Only text figures mix units within a table.
    cells["text"] = cells["value"] + spread + cells["unit"].map(UNITS).fillna("")
    models = cells[MODEL].unique()
    several = len(models) > 1 and MODEL not in printed.down
    down = [MODEL, *printed.down] if several else list(printed.down)
    names = cells[down].drop_duplicates()
    groups = (group for _, group in names.groupby(down[0], sort=False))
    shown = names = pd.concat(groups, ignore_index=True)
    bold = {}
    columns = cells.groupby(printed.across, sort=False) if printed.across else [("Value", cells)]
    for heading, column in columns:
        joined = names.merge(column, how="left", on=down)
        shown = shown.assign(**{heading: joined["text"]})
        bold[heading] = joined["bold"].eq("1").tolist()
    titles = {TASK: "Task"} if down == [TASK] else {}
    return Table(
        caption=models[0] if len(models) == 1 else cells["table"][0],
        frame=shown.replace("", NOTHING).rename(columns=HEADINGS | titles),
        formats=dict.fromkeys(bold, ""),
        bold=bold,
        group=names[down[0]].tolist() if len(down) > 1 else (),
    )
