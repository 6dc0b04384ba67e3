"""Every table of the paper with what is known to be inconsistent in it: what `paper` prints.

Those that rest on error, WER or loss stand beside a study's numbers in `table`, too (paper.TABLES);
those of downstream accuracy in `downstream`, with the means that do not follow from their rows.
What rests on measurements outside of a study is printed as "paper only, not measured". Digits as
printed; notes (`analysis/reference/tables.toml`) from recomputing what is printed: the tests
recompute every number in them from the files beside them.
"""

from collections.abc import Iterable, Sequence

from analysis.load import paper
from analysis.load.paper import PRINTED, PrintedTable
from analysis.render.pages import NOTHING, Cell, Column, Page, Table
from analysis.views.downstream import paper_means

MODEL, METHOD, TASK = "model", "method", "dataset_or_metric"
HEADINGS = {MODEL: "Model", METHOD: "Method", TASK: "Quantity"}
UNITS = {"percent": " %", "percent_points": " points", "billion_tokens": " billion tokens"}
PAPER_ONLY = "paper only, not measured"


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
    """Returns one table: a table for each model that it prints, with its known inconsistencies."""
    printed = PRINTED[key]
    status = "" if printed.ours else f" ({PAPER_ONLY})"
    return Page(
        title=f"Paper, {printed.place}{status}",
        tables=(
            *(_table(paper.lines(file), printed) for file in printed.files),
            *([paper_means.table(key)] if printed.mean else []),
        ),
        notes=tuple(_notes(printed)),
        problems=(),
    )


def _notes(printed: PrintedTable) -> Iterable[str]:
    yield f"{paper.SOURCE}, {printed.place}: {printed.what}; digits and bold as printed."
    only = f"{PAPER_ONLY[0].upper()}{PAPER_ONLY[1:]}: no study of ours gives these numbers."
    yield printed.ours or only
    yield from printed.notes


def _table(rows: Sequence[dict[str, str]], printed: PrintedTable) -> Table:
    """Models are rows, too, where the file has several; else the caption names the only one."""
    models = list(dict.fromkeys(row[MODEL] for row in rows))
    several = len(models) > 1 and MODEL not in printed.down
    down = (MODEL, *printed.down) if several else tuple(printed.down)
    headings = tuple(dict.fromkeys(row[printed.across] for row in rows)) if printed.across else ()
    cells = {(_name(row, down), row.get(printed.across, "")): _cell(row) for row in rows}
    columns = [Column(HEADINGS[name], numeric=False) for name in down]
    if down == (TASK,):
        columns = [Column("Task", numeric=False)]
    return Table(
        caption=models[0] if len(models) == 1 else rows[0]["table"],
        columns=(*columns, *(Column(heading) for heading in headings or ("Value",))),
        sections=tuple(_sections(rows, down, headings or ("",), cells)),
    )


def _name(row: dict[str, str], down: Sequence[str]) -> tuple[str, ...]:
    return tuple(row[name] for name in down)


def _sections(
    rows: Sequence[dict[str, str]],
    down: Sequence[str],
    headings: Sequence[str],
    cells: dict[tuple[tuple[str, ...], str], Cell],
) -> Iterable[tuple[tuple[Cell, ...], ...]]:
    """One section for each text of the first of several columns that name a row."""
    names = list(dict.fromkeys(_name(row, down) for row in rows))
    groups = dict.fromkeys(name[0] for name in names) if len(down) > 1 else {"": None}
    for group in groups:
        yield tuple(
            (
                *(Cell(text or NOTHING) for text in name),
                *(cells.get((name, heading), Cell(NOTHING)) for heading in headings),
            )
            for name in names
            if len(down) == 1 or name[0] == group
        )


def _cell(row: dict[str, str]) -> Cell:
    spread = f" ± {row['std']}" if row["std"] else ""
    # Only text figures mix units within a table.
    return Cell(f"{row['value']}{spread}{UNITS.get(row['unit'], '')}", bold=row["bold"] == "1")
