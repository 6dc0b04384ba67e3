"""docs/performance.csv and docs/performance.md: train steps as compiled for accelerators.

    python -m tests.benchmarks.performance [--anew]

It compiles the rows that the CSV lacks; with --anew, all rows whose compiler is installed. Rows are
compiled one after the other, each in a process of its own, and written at once. The GPUs' compiler
(extra compile-gpu) cannot be installed beside the TPUs': run this in an environment of each.
"""

import argparse
import csv
import io
import pathlib
from typing import Any, NamedTuple

from attention.common import accelerators, files
from sweeps.compilers import compile as compiler
from sweeps.study import config, jax_calls, study
from tests.benchmarks import maxtext
from workloads import catalog

Table = dict[tuple[str, ...], dict[str, str]]


class Row(NamedTuple):
    """A study with changed settings on a topology.

    peer: 'AlgoPerf' for its own model with its own attention, by our optimizer; 'MaxText' for its
    own train step of the study's work, with `changed` its own settings.
    """

    study: str
    changed: str
    topology: str
    peer: str = ""


# Studies as shipped, in bfloat16, by library kernels, on other chips.
_BF16 = "compute_dtype=bfloat16"
_ONE = "variants=standard"
_WINDOW = "variants=standard+window"
ROWS = (
    Row("c4_lm_paper", "", "v5e:8x8"),
    Row("c4_lm_paper", _BF16, "v5e:8x8"),
    Row("c4_lm_paper", f"{_BF16} kernel=splash", "v5e:8x8"),
    Row("c4_lm_paper", f"{_BF16} kernel=splash microbatches=2", "v5e:8x8"),
    Row("c4_lm_paper", f"{_BF16} kernel=fused", "v5e:8x8"),
    Row("c4_lm_paper", f"{_BF16} kernel=fused microbatches=2", "v5e:8x8"),
    Row("c4_lm_paper", f"{_BF16} kernel=fused mesh.fsdp=16", "v5e:8x8"),
    Row("c4_lm_paper", f"{_BF16} kernel=fused {_WINDOW}", "v5e:8x8"),
    Row("c4_lm_paper", f"{_BF16} kernel=splash {_WINDOW}", "v5e:8x8"),
    Row("c4_lm_paper", f"{_BF16} kernel=fused kv_heads=2 {_ONE}", "v5e:8x8"),
    Row("c4_lm_paper", f"{_BF16} kernel=splash kv_heads=2 {_ONE}", "v5e:8x8"),
    Row("finewebedu_lm_compare", f"kernel=fused {_ONE}", "v5e:2x4"),
    Row("finewebedu_lm_compare", _ONE, "v5e:2x4"),
    Row("c4_lm_234m_paper", _ONE, "v5e:8x8"),
    Row("c4_lm_435m_paper", f"{_BF16} {_ONE}", "v5e:8x8"),
    Row("c4_lm_1b_paper", "", "v5e:8x16"),
    Row("c4_lm_1b_paper", f"{_BF16} kernel=fused {_ONE}", "v5e:8x16"),
    Row("c4_lm_2b_paper", "", "v5e:16x16"),
    Row("c4_lm_2b_bfloat16", _ONE, "v5e:16x16"),
    Row("c4_lm_2b_paper", f"{_BF16} kernel=fused matmul_precision=default", "v5e:16x16"),
    Row("c4_lm_8b_paper", "", "v5e:16x16"),
    Row("wikipedia_bert_2b_paper", "", "v5e:16x16"),
    Row("c4_lm_paper", f"{_BF16} kernel=fused {_ONE}", "v4:4x4x4"),
    Row("c4_lm_paper", f"{_BF16} kernel=fused {_ONE}", "v5p:4x4x4"),
    Row("c4_lm_paper", f"{_BF16} kernel=fused {_ONE}", "v6e:8x8"),
    Row("c4_lm_paper", f"{_BF16} kernel=cudnn", "h100:1x1x8"),
    Row("c4_lm_paper", f"{_BF16} kernel=fused", "h100:1x1x8"),
    Row("c4_lm_paper", _BF16, "h100:1x1x8"),
    Row("c4_lm_2b_paper", "", "h100:1x1x8"),
    Row("c4_lm_2b_paper", "microbatches=8", "h100:1x1x8"),
    Row("c4_lm_2b_paper", f"{_BF16} microbatches=8", "h100:1x1x8"),
    Row("c4_lm_1b_paper", f"{_BF16} microbatches=4", "h100:1x1x8"),
    Row("c4_lm_435m_paper", "", "h200:1x1x8"),
    Row("c4_lm_8b_paper", "microbatches=8", "h100:1x1x8"),
    Row("imagenet_vit_paper", "", "v5e:2x4"),
    Row("imagenet_vit_paper", "kernel=fused", "v5e:2x4"),
    Row("imagenet_vit_paper", f"batch_size=2048 {_ONE}", "v5e:2x4"),
    Row("imagenet_vit_paper", _ONE, "v5e:4x4"),
    Row("imagenet_vit_paper", f"batch_size=1536 {_ONE}", "v5e:2x4"),
    Row("imagenet_vit_paper", "", "h100:1x1x8"),
    Row("imagenet_vit_paper", _ONE, "h100:1x1x4"),
    Row("librispeech_conformer_paper", "", "v5e:2x4"),
    Row("librispeech_conformer_paper", _ONE, "v5e:4x4"),
    Row("librispeech_conformer_paper", "", "h100:1x1x8"),
    Row("librispeech_conformer_paper", _ONE, "h100:1x1x4"),
    Row("algoperf_imagenet_vit_paper", _ONE, "v5e:2x4", "AlgoPerf"),
    Row("c4_lm_paper", "attention=dot_product", "v5e:8x8", "MaxText"),
    Row("c4_lm_paper", "attention=flash", "v5e:8x8", "MaxText"),
)


class Comparison(NamedTuple):
    """A line of the page: a column of two rows of the CSV."""

    subject: str
    column: str
    ours: tuple[str, ...]
    peer_name: str
    peer: tuple[str, ...]


_C4 = "c4_lm_paper"
_FUSED = (_C4, f"{_BF16} kernel=fused", "v5e:8x8")
_SPLASH = (_C4, f"{_BF16} kernel=splash", "v5e:8x8")
_FLASH = (_C4, "attention=flash", "v5e:8x8", "MaxText's own")
_VIT = ("algoperf_imagenet_vit_paper", _ONE, "v5e:2x4", "AlgoPerf's own")
_FINEWEBEDU = "finewebedu_lm_compare"
COMPARISONS = (
    Comparison("c4_lm, step", "step_ms", (*_FUSED, "standard"), "MaxText, flash", _FLASH),
    Comparison("c4_lm, memory", "memory_gb", (*_FUSED, "standard"), "MaxText, flash", _FLASH),
    Comparison(
        "c4_lm without kernels, step",
        "step_ms",
        (_C4, _BF16, "v5e:8x8", "standard"),
        "MaxText, dot_product",
        (_C4, "attention=dot_product", "v5e:8x8", "MaxText's own"),
    ),
    Comparison(
        "c4_lm, step", "step_ms", (*_FUSED, "standard"), "JAX's splash", (*_SPLASH, "standard")
    ),
    Comparison(
        "c4_lm with LASER, step", "step_ms", (*_FUSED, "laser"), "splash", (*_SPLASH, "laser")
    ),
    Comparison(
        "c4_lm with a window of 256, step",
        "step_ms",
        (_C4, f"{_BF16} kernel=fused {_WINDOW}", "v5e:8x8", "standard+window"),
        "splash",
        (_C4, f"{_BF16} kernel=splash {_WINDOW}", "v5e:8x8", "standard+window"),
    ),
    Comparison(
        "c4_lm with 2 heads of keys and values, step",
        "step_ms",
        (_C4, f"{_BF16} kernel=fused kv_heads=2 {_ONE}", "v5e:8x8", "standard"),
        "splash",
        (_C4, f"{_BF16} kernel=splash kv_heads=2 {_ONE}", "v5e:8x8", "standard"),
    ),
    Comparison(
        "finewebedu_lm, step",
        "step_ms",
        (_FINEWEBEDU, f"kernel=fused {_ONE}", "v5e:2x4", "standard"),
        "XLA",
        (_FINEWEBEDU, _ONE, "v5e:2x4", "standard"),
    ),
    Comparison(
        "imagenet_vit, step",
        "step_ms",
        ("imagenet_vit_paper", "kernel=fused", "v5e:2x4", "standard"),
        "AlgoPerf's model",
        _VIT,
    ),
    Comparison(
        "c4_lm, bytes of main memory",
        "hbm_gb",
        (_C4, f"{_BF16} kernel=fused", "h100:1x1x8", "standard"),
        "cuDNN",
        (_C4, f"{_BF16} kernel=cudnn", "h100:1x1x8", "standard"),
    ),
)
_UNITS = {"step_ms": "ms", "memory_gb": "GB", "hbm_gb": "GB"}
_DOCS = pathlib.Path(__file__).parents[2] / "docs"
CSV, PAGE = _DOCS / "performance.csv", _DOCS / "performance.md"
_KEY = ("study", "changed", "topology", "variant")
# As `compile` defines them. of_peak: the utilisation; times_baseline: of step_ms; warnings: their
# number; compilers: the versions of the libraries that compiled the row.
COLUMNS = (
    *_KEY,
    "memory_gb",
    "fits",
    "step_ms",
    "kernel_ms",
    "hbm_gb",
    "collectives_gb",
    "of_peak",
    "times_baseline",
    "warnings",
    "compilers",
)
_TEXT = """# Train steps as compiled for accelerators

```bash
make performance          # compiles all rows anew with the real TPU compiler; about an hour
```

Per device and step. Nothing here was run on an accelerator. A ratio below 1 means that ours is better.

| subject | topology | ours | peer | peer's | ratio |
|---|---|--:|---|--:|--:|
{lines}

Rows of c4_lm compute in bfloat16, by kernel `fused` unless the subject says otherwise. The bytes of GPUs
include a formula for what kernels read more than once (`_traffic` in sweeps/compilers/compiled_step.py).

All rows are in [performance.csv](performance.csv). {definitions}

The CSV adds three columns. of_peak is the utilisation. times_baseline is step_ms over that of the row's
first variant. compilers are the versions of the libraries that compiled the row. Of rows by kernel `xla` on TPUs,
hbm_gb is up to 7 % too large for ViT and language models: they are older than the rule for fusions inside fusions.

Not included: waiting for the network and for other memories, the input pipeline, evaluations, checkpoints.

The variant "AlgoPerf's own" is its model with its own attention, trained by our step. "MaxText's own" is its
`train_compile` for the work of c4_lm: its decoder with an MLP without a gate, one table of embeddings, no rotary
embedding, bfloat16, full rematerialisation, scanned layers and AdamW (tests/benchmarks/maxtext.py).
"""  # noqa: E501


def main() -> None:
    """Compiles rows, and writes the CSV and the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.performance")
    parser.add_argument("--anew", action="store_true", help="compile rows that are there, too")
    is_anew = parser.parse_args().anew
    kept = table()
    for row in ROWS:
        if is_anew or not any(key[:3] == row[:3] for key in kept):
            try:
                entries = _compiled(row)
            except ValueError as error:
                if "not installed" not in str(error):
                    raise
                print(f"{row}: {error}", flush=True)
                continue
            kept = {key: cells for key, cells in kept.items() if key[:3] != row[:3]}
            for entry in entries:
                cells = _cells(row, entry, entries[0])
                print(cells, flush=True)
                kept[tuple(cells[name] for name in _KEY)] = cells
            files.write(CSV, _csv(kept))
    files.write(PAGE, page(kept))


def resolved(row: Row) -> study.Study:
    """Returns the row's study: of standard attention and LASER unless it names its variant."""
    changed = "variants=standard" if row.peer == "MaxText" else row.changed
    overrides = [f"--config.{change}" for change in changed.split()]
    is_sharded = "mesh" in catalog.get(config.parse(row.study, []).workload).support.options
    if row.topology.startswith("h") and is_sharded:  # of one host
        overrides += ["--config.mesh.fsdp=8", "--config.mesh.tensor=1"]
    variant = changed.partition("variants=")[2].partition(" ")[0]
    if variant:
        overrides += [f"--config.{key}={variant}" for key in ("baseline", "tuning_variant")]
    else:
        overrides.append("--config.variants=standard,laser")
    return study.resolve(config.parse(row.study, overrides), planning=True)


def _compiled(row: Row) -> list[dict[str, Any]]:
    row_study = resolved(row)
    if row.peer != "MaxText":
        return compiler.rows(row_study, row.topology, plain=bool(row.peer))
    attention, size = row.changed.partition("=")[2], row_study.settings["batch_size"]
    arguments = {"topology": row.topology, "batch_size": size, "attention": attention}
    figures = jax_calls.call(maxtext.compiled, **arguments)
    model_flops = compiler.model_flops(row_study, accelerators.topology(row.topology))
    return [{"variant": "", **figures, "model_flops": model_flops}]


def _cells(row: Row, entry: dict[str, Any], baseline: dict[str, Any]) -> dict[str, str]:
    variant = f"{row.peer}'s own" if row.peer else entry["variant"]
    cells = dict.fromkeys(COLUMNS, "")
    cells |= zip(_KEY, (*row[:3], variant), strict=True)
    cells |= {"fits": "yes" if entry["fits"] else "NO", "warnings": str(len(entry["warnings"]))}
    if entry["memory_gb"] is None:
        return cells
    versions = ", ".join(f"{name} {number}" for name, number in entry["versions"].items())
    cells |= {
        "memory_gb": f"{entry['memory_gb']:.2f}",
        "hbm_gb": f"{entry['hbm_gb']:.1f}",
        "collectives_gb": f"{entry['collectives_gb']:.2f}",
        "compilers": versions,
    }
    if entry["step_ms"] is not None:
        share = compiler.share_of_peak(entry, accelerators.topology(row.topology).accelerator)
        cells |= {
            "step_ms": f"{entry['step_ms']:.1f}",
            "kernel_ms": f"{entry['kernel_ms']:.1f}",
            "of_peak": "" if share is None else f"{share:.1%}",
            "times_baseline": f"{entry['step_ms'] / baseline['step_ms']:.3f}",
        }
    return cells


def table() -> Table:
    """Returns the CSV's rows by (study, changed, topology, variant): cells by column."""
    if not CSV.is_file():
        return {}
    rows = csv.DictReader(CSV.read_text("utf-8").splitlines())
    return {tuple(cells[name] for name in _KEY): cells for cells in rows}


def _csv(kept: Table) -> str:
    """Returns the CSV, in the order of ROWS."""
    places = [row[:3] for row in ROWS]
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(kept[key] for key in sorted(kept, key=lambda key: places.index(key[:3])))
    return text.getvalue()


def page(kept: Table) -> str:
    """Returns docs/performance.md of a table; '–' for a row that it lacks."""
    lines = []
    for comparison in COMPARISONS:
        unit, figures = _UNITS[comparison.column], ["–", "–", "–"]
        if comparison.ours in kept and comparison.peer in kept:
            ours = kept[comparison.ours][comparison.column]
            peer = kept[comparison.peer][comparison.column]
            figures = [f"{ours} {unit}", f"{peer} {unit}", f"{float(ours) / float(peer):.2f}"]
        ours_text, peer_text, ratio = figures
        cells = [comparison.subject, comparison.ours[2], ours_text]
        cells += [comparison.peer_name, peer_text, ratio]
        lines.append(f"| {' | '.join(cells)} |")
    definitions = (compiler.__doc__ or "").partition("Definitions ")[2].strip()
    return _TEXT.format(lines="\n".join(lines), definitions=f"Definitions {definitions}")


if __name__ == "__main__":
    main()
