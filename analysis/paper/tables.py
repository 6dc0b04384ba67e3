"""Every table of the paper with what is known to be inconsistent in it: what `paper` prints.

Those that rest on error, WER or loss stand beside a study's numbers in `table`, too (paper.TABLES);
the others rest on downstream accuracy, or on measurements outside of a study, and are printed as
"paper only, not measured". Digits as printed; notes from recomputing what is printed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analysis.documents.grid import NOTHING, Cell, Column, Document, Grid
from analysis.paper import paper
from analysis.paper.notes import CAUTIONS

MODEL, METHOD, TASK = "model", "method", "dataset_or_metric"
HEADINGS = {MODEL: "Model", METHOD: "Method", TASK: "Quantity"}
UNITS = {"percent": " %", "percent_points": " points", "billion_tokens": " billion tokens"}
PAPER_ONLY = "paper only, not measured"


@dataclass(frozen=True)
class Printed:
    """A table of the paper: its place, what its cells are, its files, a sentence on what of ours
    gives the same (empty: nothing), and its layout: the columns of the files whose texts name a
    row, and the one whose texts head the columns, empty for a single column of values."""

    place: str
    what: str
    files: tuple[str, ...]
    ours: str
    down: tuple[str, ...] = (METHOD,)
    across: str = TASK


PRINTED = {
    "vit_error": Printed(
        "table tab:vit_error", "error, fraction", ("tab_vit_error.csv",),
        "Measured by the study imagenet_vit_paper.",
    ),
    "conformer_wer": Printed(
        "table tab:conformer_wer", "WER, fraction", ("tab_conformer_wer.csv",),
        "Measured by the study librispeech_conformer_paper.",
    ),
    "lm_test_loss": Printed(
        "table tab:testloss", "nats per token", ("tab_testloss.csv",),
        "Measured by the studies c4_lm_234m_paper, c4_lm_paper and c4_lm_435m_paper.",
    ),
    "lm_lamb": Printed(
        "text on LAMB", "nats per token", ("text_lamb.csv",), "Measured by the study c4_lm_lamb.",
    ),
    "lm_precision": Printed(
        "table tab:bf16", "nats per token", ("tab_bf16.csv",),
        "Measured by the studies c4_lm_2b_paper and c4_lm_2b_bfloat16.",
    ),
    "bert_mlm_error": Printed(
        "text on BERT", "error, fraction; the relative improvement in percent",
        ("text_bert.csv",), "Measured by the study wikipedia_bert_2b_paper.",
    ),
    "lm_scaling": Printed(
        "text on the scaling law; tables tab:testloss and, for 2.2 B, tab:bf16",
        "percent; nats per token", ("text_scaling_law.csv", "tab_testloss.csv", "tab_bf16.csv"),
        "Measured by `scaling` over the studies c4_lm_234m_paper to c4_lm_2b_paper.",
    ),
    "hours_to_loss": Printed(
        "text on hours to test loss 2.327", "hours; the relative improvement in percent",
        ("text_hours_to_loss.csv",), "Measured by `time` on the study c4_lm_2b_paper.",
    ),
    "one_shot": Printed(
        "table tab:one_shot", "accuracy in percent, 2.2 B, one shot", ("tab_one_shot.csv",), "",
        (TASK,), METHOD,
    ),
    "7b_results": Printed(
        "table tab:7b_results", "accuracy in percent, 7.7 B after 44 B tokens",
        ("tab_7b_results.csv",), "", (TASK,), METHOD,
    ),
    "diff_results": Printed(
        "table tab:diff_results", "accuracy in percent, 2.2 B after 24 B tokens",
        ("tab_diff_results.csv",), "", (TASK,), METHOD,
    ),
    "superglue": Printed(
        "table tab:superglue_results", "decoding accuracy in percent, 2.2 B finetuned 10 epochs",
        ("tab_superglue_results.csv",), "", (TASK,), METHOD,
    ),
    "fluctuation": Printed(
        "table tab:fluctuation", "accuracy in percent ± SD over the last 5 checkpoints, 2.2 B",
        ("tab_fluctuation.csv",), "", (TASK,), METHOD,
    ),
    "bf16_reconstruction": Printed(
        "text on bfloat16 reconstruction", "relative error ± SD",
        ("text_bf16_reconstruction.csv",), "", (METHOD,), TASK,
    ),
    "search_spaces": Printed(
        "tables tab:hyperparameters and tab:hyperparameters2", "bounds and points searched",
        ("search_spaces.csv",), "Searched by the shipped spaces, sweeps/spaces/*.json.",
        (MODEL, TASK), METHOD,
    ),
    "configs": Printed(
        "text and captions on model sizes", "model sizes and training set-ups",
        ("configs.csv",), "Ours: workloads/text/specs.py and sweeps/studies/*_paper.py.",
        (MODEL, TASK), "",
    ),
    "claims": Printed(
        "text and captions", "numbers stated", ("claims.csv",),
        "Which of them hold is said below.", (MODEL, TASK, METHOD), "",
    ),
}  # fmt: skip


def documents(keys: Sequence[str] | None = None) -> tuple[Document, ...]:
    """Returns the tables with the given keys of PRINTED, all of them unless given, in order.

    Raises ValueError for a key that is not one of them.
    """
    unknown = [key for key in keys or () if key not in PRINTED]
    if unknown:
        raise ValueError(
            f"no table {', '.join(unknown)} of the paper; there are {', '.join(PRINTED)}"
        )
    return tuple(document(key) for key in keys or PRINTED)


def document(key: str) -> Document:
    """Returns one table: a grid for each model that it prints, with its known inconsistencies."""
    printed = PRINTED[key]
    status = "" if printed.ours else f" ({PAPER_ONLY})"
    return Document(
        title=f"Paper, {printed.place}{status}",
        grids=tuple(_grids(printed)),
        notes=tuple(_notes(key, printed)),
        problems=(),
    )


def _notes(key: str, printed: Printed) -> Iterable[str]:
    yield f"{paper.SOURCE}, {printed.place}: {printed.what}; digits and bold as printed."
    only = f"{PAPER_ONLY[0].upper()}{PAPER_ONLY[1:]}: no study of ours gives these numbers."
    yield printed.ours or only
    yield from CAUTIONS[key]


def _grids(printed: Printed) -> Iterable[Grid]:
    for file in printed.files:
        yield _grid(file, paper.lines(file), printed)


def _grid(file: str, rows: Sequence[dict[str, str]], printed: Printed) -> Grid:
    """Models are rows, too, where the file has several; else the caption names the only one."""
    models = list(dict.fromkeys(row[MODEL] for row in rows))
    several = len(models) > 1 and MODEL not in printed.down
    down = (MODEL, *printed.down) if several else printed.down
    headings = tuple(dict.fromkeys(row[printed.across] for row in rows)) if printed.across else ()
    cells = {(_name(row, down), row.get(printed.across, "")): _cell(row) for row in rows}
    columns = [Column(HEADINGS[name], numeric=False) for name in down]
    if down == (TASK,):
        columns = [Column("Task", numeric=False)]
    return Grid(
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
