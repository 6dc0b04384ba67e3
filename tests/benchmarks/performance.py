"""docs/performance.md: what accelerators' compilers say of our studies' steps.

    python -m tests.benchmarks.performance

Rows are compiled one after the other, each in a process of its own; what was compiled is kept in
experiments/performance, so that a run that was stopped goes on: remove it where the code or a
compiler has changed. A row whose compiler is not installed says so; the GPUs' (extra compile-gpu)
does not bear the TPUs' beside it: run this in an environment of each, with one cache.
"""

import hashlib
import json
import pathlib
from typing import Any, NamedTuple

from attention.common import files
from sweeps.compilers import compile as compiler
from sweeps.study import config, jax_calls, study
from sweeps.training import accelerators
from tests.benchmarks import maxtext
from workloads import catalog


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
ROWS = (
    Row("c4_lm_paper", "", "v5e:8x8"),
    Row("c4_lm_paper", _BF16, "v5e:8x8"),
    Row("c4_lm_paper", f"{_BF16} kernel=splash", "v5e:8x8"),
    Row("c4_lm_paper", f"{_BF16} kernel=splash microbatches=2", "v5e:8x8"),
    Row("c4_lm_paper", f"{_BF16} kernel=fused", "v5e:8x8"),
    Row("c4_lm_paper", f"{_BF16} kernel=fused microbatches=2", "v5e:8x8"),
    Row("c4_lm_paper", f"{_BF16} kernel=fused mesh.fsdp=16", "v5e:8x8"),
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
_CACHE = pathlib.Path("experiments/performance")
_PAGE = pathlib.Path(__file__).parents[2] / "docs" / "performance.md"
_HEAD = """# What the compilers say

```bash
make performance          # this page, by the real TPU compiler; about an hour
```

Written by `make performance`; nothing here was run on an accelerator. {definitions}

Not included: waiting for the network and for transfers between memories, the input pipeline,
evaluations and checkpoints. "HBM GB" is up to 7 % too large in the rows of ViT and in those of language
models by kernel `xla` on TPUs: they are older than the rule for fusions inside fusions.

AlgoPerf's rows are its own models with their own attention, trained by our step. MaxText's rows are its
own `train_compile` for the work of c4_lm: its decoder with an MLP without a gate, one table of embeddings,
no rotary embedding, bfloat16, full rematerialisation, scanned layers and AdamW
(tests/benchmarks/maxtext.py).

| study | changed | topology | variant | GB | fits | ms | of them kernels | HBM GB | collectives GB | of peak | × baseline | warnings |
|---|---|---|---|--:|:--|--:|--:|--:|--:|--:|--:|--:|
"""  # noqa: E501


def main() -> None:
    """Compiles what is not in the cache, and writes the page."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    compiled = []
    for row in ROWS:
        its_study = resolved(row)
        entries = _compiled(row, its_study)
        compiled.append((row, entries))
        print(_line(row, entries[0], entries[0]), flush=True)
    files.write(_PAGE, _page(compiled))


def resolved(row: Row) -> study.Study:
    """Returns the row's study: of standard attention and LASER unless it names its variants."""
    changed = "variants=standard" if row.peer == "MaxText" else row.changed
    overrides = [f"--config.{change}" for change in changed.split()]
    is_sharded = "mesh" in catalog.get(config.parse(row.study, []).workload).support.options
    if row.topology.startswith("h") and is_sharded:  # of one host
        overrides += ["--config.mesh.fsdp=8", "--config.mesh.tensor=1"]
    if "variants=" not in changed:
        overrides.append("--config.variants=standard,laser")
    return study.resolve(config.parse(row.study, overrides), planning=True)


def _compiled(row: Row, its_study: study.Study) -> list[dict[str, Any]]:
    key = hashlib.sha256(json.dumps(row[:3]).encode()).hexdigest()[:16]
    kept = _CACHE / f"{key}.json"
    if not kept.is_file():
        try:
            entries = _rows(row, its_study)
        except ValueError as error:
            if "not installed" not in str(error):
                raise
            return [{"variant": "", "missing": str(error)}]
        files.write(kept, json.dumps(entries))
    rows: list[dict[str, Any]] = json.loads(kept.read_bytes())
    return rows


def _rows(row: Row, its_study: study.Study) -> list[dict[str, Any]]:
    if row.peer != "MaxText":
        return compiler.rows(its_study, row.topology, plain=bool(row.peer))
    attention, size = row.changed.partition("=")[2], its_study.settings["batch_size"]
    arguments = {"topology": row.topology, "batch_size": size, "attention": attention}
    figures = jax_calls.call(maxtext.compiled, **arguments)
    model_flops = compiler.model_flops(its_study, accelerators.topology(row.topology))
    return [{"variant": "", **figures, "model_flops": model_flops}]


def _line(row: Row, entry: dict[str, Any], baseline: dict[str, Any]) -> str:
    cells = [
        row.study,
        row.changed,
        row.topology,
        f"{row.peer}'s own" if row.peer else entry["variant"],
    ]
    if "missing" in entry:
        return _cells([*cells, "not installed"])
    if entry["memory_gb"] is None:
        return _cells([*cells, entry["warnings"][0], "NO"])
    timed = entry["step_ms"] is not None
    share = compiler.share_of_peak(entry, accelerators.topology(row.topology).accelerator)
    figures = [
        f"{entry['memory_gb']:.2f}",
        "yes" if entry["fits"] else "NO",
        f"{entry['step_ms']:.1f}" if timed else "–",
        f"{entry['kernel_ms']:.1f}" if timed else "–",
        f"{entry['hbm_gb']:.1f}",
        f"{entry['collectives_gb']:.2f}",
        f"{share:.1%}" if share else "–",
        f"{entry['step_ms'] / baseline['step_ms']:.3f}" if timed else "–",
        str(len(entry["warnings"])),
    ]
    return _cells([*cells, *figures])


def _cells(texts: list[str]) -> str:
    return f"| {' | '.join(texts)} |"


def table() -> dict[tuple[str, ...], dict[str, str]]:
    """Returns the page's rows by (study, changed, topology, variant): cells by heading."""
    lines = [line for line in _PAGE.read_text("utf-8").splitlines() if line.startswith("|")]
    headings, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {tuple(row[:4]): dict(zip(headings, row, strict=False)) for row in rows}


def _page(compiled: list[tuple[Row, list[dict[str, Any]]]]) -> str:
    lines: list[str] = []
    versions: dict[str, str] = {}
    for row, entries in compiled:
        lines += [_line(row, entry, entries[0]) for entry in entries]
        versions |= entries[0].get("versions", {})
    definitions = (compiler.__doc__ or "").partition("Definitions ")[2].strip()
    head = _HEAD.format(definitions=f"Definitions {definitions}")
    listed = ", ".join(f"{name} {number}" for name, number in versions.items())
    return head + "\n".join(lines) + f"\n\nVersions: {listed}.\n"


if __name__ == "__main__":
    main()
