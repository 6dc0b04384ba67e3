"""docs/performance.md: what accelerators' compilers say of our studies' steps.

    python -m tests.benchmarks.performance

Rows are compiled one after the other, each in a process of its own; what was compiled is kept in
experiments/performance, so that a run that was stopped goes on: remove it where the code or a
compiler has changed. A row whose compiler is not installed says so; the GPUs' (extra compile-gpu)
does not bear the TPUs' beside it: run this in an environment of each, with one cache. When all
rows are there, those that calibrate give `plan` its factors (sweeps/monitoring/calibration.json).
"""

import hashlib
import json
import pathlib
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from attention import files
from sweeps.monitoring import calibration, jax_calls
from sweeps.monitoring import compile as compiler
from sweeps.study import config, study
from sweeps.training import accelerators
from tests.benchmarks import maxtext
from workloads import catalog


class Row(NamedTuple):
    """A study with changed settings on a topology; whether `plan` is fitted to its figures.

    peer: 'AlgoPerf' for its own model with its own attention, by our optimizer; 'MaxText' for its
    own train step of the study's work, with `changed` its own settings.
    """

    study: str
    changed: str
    topology: str
    calibrates: bool
    peer: str = ""


# Studies as shipped, in bfloat16, by library kernels, on other chips.
_BF16 = "compute_dtype=bfloat16"
_ONE = "variants=standard"
ROWS = (
    Row("c4_lm_paper", "", "v5e:8x8", True),
    Row("c4_lm_paper", _BF16, "v5e:8x8", True),
    Row("c4_lm_paper", f"{_BF16} kernel=splash", "v5e:8x8", True),
    Row("c4_lm_paper", f"{_BF16} kernel=splash microbatches=2", "v5e:8x8", False),
    Row("c4_lm_paper", f"{_BF16} kernel=fused", "v5e:8x8", True),
    Row("c4_lm_paper", f"{_BF16} kernel=fused microbatches=2", "v5e:8x8", True),
    Row("c4_lm_paper", f"{_BF16} kernel=fused mesh.fsdp=16", "v5e:8x8", False),
    Row("c4_lm_234m_paper", _ONE, "v5e:8x8", True),
    Row("c4_lm_435m_paper", f"{_BF16} {_ONE}", "v5e:8x8", False),
    Row("c4_lm_1b_paper", "", "v5e:8x16", True),
    Row("c4_lm_1b_paper", f"{_BF16} kernel=fused {_ONE}", "v5e:8x16", True),
    Row("c4_lm_2b_paper", "", "v5e:16x16", True),
    Row("c4_lm_2b_bfloat16", _ONE, "v5e:16x16", True),
    Row("c4_lm_2b_paper", f"{_BF16} kernel=fused matmul_precision=default", "v5e:16x16", False),
    Row("c4_lm_8b_paper", "", "v5e:16x16", True),
    Row("wikipedia_bert_2b_paper", "", "v5e:16x16", True),
    Row("c4_lm_paper", f"{_BF16} kernel=fused {_ONE}", "v4:4x4x4", True),
    Row("c4_lm_paper", f"{_BF16} kernel=fused {_ONE}", "v5p:4x4x4", True),
    Row("c4_lm_paper", f"{_BF16} kernel=fused {_ONE}", "v6e:8x8", True),
    Row("c4_lm_paper", f"{_BF16} kernel=cudnn", "h100:1x1x8", True),
    Row("c4_lm_paper", f"{_BF16} kernel=fused", "h100:1x1x8", False),
    Row("c4_lm_paper", _BF16, "h100:1x1x8", True),
    Row("c4_lm_2b_paper", "", "h100:1x1x8", True),
    Row("c4_lm_2b_paper", "microbatches=8", "h100:1x1x8", True),
    Row("c4_lm_2b_paper", f"{_BF16} microbatches=8", "h100:1x1x8", True),
    Row("c4_lm_1b_paper", f"{_BF16} microbatches=4", "h100:1x1x8", False),
    Row("c4_lm_435m_paper", "", "h200:1x1x8", False),
    Row("c4_lm_8b_paper", "microbatches=8", "h100:1x1x8", False),
    Row("imagenet_vit_paper", "", "v5e:2x4", True),
    Row("imagenet_vit_paper", "kernel=fused", "v5e:2x4", False),
    Row("imagenet_vit_paper", f"batch_size=2048 {_ONE}", "v5e:2x4", True),
    Row("imagenet_vit_paper", _ONE, "v5e:4x4", True),
    Row("imagenet_vit_paper", f"batch_size=1536 {_ONE}", "v5e:2x4", True),
    Row("imagenet_vit_paper", "", "h100:1x1x8", True),
    Row("imagenet_vit_paper", _ONE, "h100:1x1x4", True),
    Row("librispeech_conformer_paper", "", "v5e:2x4", True),
    Row("librispeech_conformer_paper", _ONE, "v5e:4x4", True),
    Row("librispeech_conformer_paper", "", "h100:1x1x8", True),
    Row("librispeech_conformer_paper", _ONE, "h100:1x1x4", True),
    Row("algoperf_imagenet_vit_paper", _ONE, "v5e:2x4", False, "AlgoPerf"),
    Row("c4_lm_paper", "attention=dot_product", "v5e:8x8", False, "MaxText"),
    Row("c4_lm_paper", "attention=flash", "v5e:8x8", False, "MaxText"),
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

† The model of `plan` was not calibrated with these rows. Its predictions are the columns "plan GB" and
"plan ms". They are within 15 % of the compiler on every row.

AlgoPerf's rows are its own models with their own attention, trained by our step. MaxText's rows are its
own `train_compile` for the work of c4_lm: its decoder with an MLP without a gate, one table of embeddings,
no rotary embedding, bfloat16, full rematerialisation, scanned layers and AdamW
(tests/benchmarks/maxtext.py).

| study | changed | topology | variant | GB | plan GB | fits | ms | plan ms | of them kernels | HBM GB | collectives GB | of peak | × baseline | warnings |
|---|---|---|---|--:|--:|:--|--:|--:|--:|--:|--:|--:|--:|--:|
"""  # noqa: E501


def main() -> None:
    """Compiles what is not in the cache, fits `plan` to it, and writes the page."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    compiled = []
    for row in ROWS:
        its_study = resolved(row)
        entries = _compiled(row, its_study)
        compiled.append((row, its_study, entries))
        print(_line(row, None, entries[0], entries[0]), flush=True)
    calibrating = [entries for row, _, entries in compiled if row.calibrates]
    if not any("missing" in entry for entries in calibrating for entry in entries):
        factors = fit(compiled)
        files.write(calibration.FILE, json.dumps(factors, indent=1) + "\n")
        calibration.fitted.cache_clear()
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


def fit(compiled: list[tuple[Row, study.Study, list[dict[str, Any]]]]) -> dict[str, Any]:
    """Returns the factors of `calibration`, fitted to the rows that calibrate."""
    amounts: dict[str, list[Any]] = {}
    lines: dict[str, dict[str, list[Any]]] = {}
    for row, its_study, entries in compiled:
        where = accelerators.topology(row.topology)
        fitting = [entry for entry in entries if row.calibrates and entry["memory_gb"] is not None]
        if not fitting:
            continue
        if catalog.get(its_study.workload).topology:
            costs = calibration.costs(its_study, where.devices)
            rows = amounts.setdefault(where.accelerator.platform, [])
            rows += [(where.kind, costs[entry["variant"]], entry) for entry in fitting]
        else:
            examples = its_study.settings["batch_size"] / where.devices
            points = lines.setdefault(its_study.workload, {}).setdefault(where.kind, [])
            points += [(examples, entry) for entry in fitting]
    platforms = {name: _factors(rows) for name, rows in amounts.items()}
    by_examples = {
        workload: {kind: _points(rows, accelerators.KINDS[kind]) for kind, rows in kinds.items()}
        for workload, kinds in lines.items()
    }
    return {"platforms": platforms, "points": by_examples}


def _factors(rows: list[tuple[str, Any, dict[str, Any]]]) -> dict[str, Any]:
    """Fits the factors to the first kind's rows; the other kinds of its platform get one each."""
    first = rows[0][0]
    alike_rows = [row for row in rows if row[0] == first]
    exact = [
        sum(costs["memory"][part] for part in calibration.EXACT) / 1e9 for _, costs, _ in alike_rows
    ]
    parts = [part for part in alike_rows[0][1]["memory"] if part not in calibration.EXACT]
    amounts = [[costs["memory"][part] / 1e9 for part in parts] for _, costs, _ in alike_rows]
    memory = _non_negative(parts, amounts, [entry["memory_gb"] for *_, entry in alike_rows], exact)
    memory |= dict.fromkeys(calibration.EXACT, 1.0)
    time: dict[str, float] = {}
    if alike_rows[0][2]["step_ms"] is not None:
        ideal = [
            calibration.ideal_ms(c["work"], accelerators.KINDS[first]) for _, c, _ in alike_rows
        ]
        wanted = [entry["step_ms"] for *_, entry in alike_rows]
        time = _non_negative(
            list(ideal[0]), [list(parts_ms.values()) for parts_ms in ideal], wanted
        )
    factors: dict[str, Any] = {"memory": memory, "time": time, "kinds": {}}
    alike = {"memory": 1.0, **({"time": 1.0} if time else {})}
    ratios: dict[str, dict[str, list[float]]] = {}
    for kind, costs, entry in rows:
        of_kind = ratios.setdefault(kind, {name: [] for name in alike})
        prediction = calibration.by_factors(costs, kind, {**factors, "kinds": {kind: alike}})
        known = sum(prediction.memory_gb[part] for part in calibration.EXACT)
        of_kind["memory"].append((entry["memory_gb"] - known) / (prediction.total_gb - known))
        if prediction.step_ms:
            of_kind["time"].append(entry["step_ms"] / prediction.step_ms)
    for kind, of_kind in ratios.items():
        means = {name: float(np.mean(several)) for name, several in of_kind.items()}
        factors["kinds"][kind] = alike if kind == first else means
    return factors


def _non_negative(
    names: list[str], amounts: list[list[float]], wanted: list[float], known: Any = 0.0
) -> dict[str, float]:
    """Returns factors ≥ 0 at which the largest relative error is least: a linear program.

    Of those the smallest, so that parts that are nearly the same do not share one out at random.
    """
    target = np.asarray(wanted)
    shares, goal = np.asarray(amounts) / target[:, None], 1 - np.asarray(known) / target
    error = -np.ones((len(target), 1))
    solution = optimize.linprog(
        [*np.full(len(names), 1e-6), 1.0],
        A_ub=np.block([[shares, error], [-shares, error]]),
        b_ub=np.concatenate([goal, -goal]),
    )
    factors = [round(float(factor), 4) for factor in solution.x[:-1]]
    return dict(zip(names, factors, strict=True))


def _points(
    rows: list[tuple[float, dict[str, Any]]], device: accelerators.Accelerator
) -> list[dict[str, float]]:
    """Returns the mean figures of each number of examples, in order; a GPU's least times."""
    points = []
    for examples in sorted({examples for examples, _ in rows}):
        alike_rows = [entry for number, entry in rows if number == examples]
        if device.platform == "cuda":
            time = {"least_ms": round(min(least_ms(entry, device) for entry in alike_rows), 2)}
        else:
            time = {"ms": round(float(np.mean([entry["step_ms"] for entry in alike_rows])), 2)}
        gb = round(float(np.mean([entry["memory_gb"] for entry in alike_rows])), 3)
        points.append({"examples": examples, "gb": gb, **time})
    return points


def least_ms(row: dict[str, Any], device: accelerators.Accelerator) -> float:
    """Returns what a step of float32 takes at least, but for caches, from a row of `compile`.

    Its products at the peak (a GPU's in TF32 is half of bfloat16's), or its bytes at the bandwidth.
    """
    peak_tflops = device.peak_tflops / (2 if device.platform == "cuda" else 1)
    return max(row["flops"] / 1e9 / peak_tflops, 1e3 * row["hbm_gb"] / device.bandwidth_gb)


def _line(
    row: Row,
    planned: calibration.Prediction | None,
    entry: dict[str, Any],
    baseline: dict[str, Any],
) -> str:
    mark = "†" if not (row.calibrates or row.peer) else ""
    cells = [
        row.study + mark,
        row.changed,
        row.topology,
        f"{row.peer}'s own" if row.peer else entry["variant"],
    ]
    if "missing" in entry:
        return _cells([*cells, "not installed"])
    plan_gb = f"{planned.total_gb:.2f}" if planned else "–"
    plan_ms = f"{planned.step_ms:.1f}" if planned and planned.step_ms else "–"
    if entry["memory_gb"] is None:
        return _cells([*cells, entry["warnings"][0], plan_gb, "NO"])
    timed = entry["step_ms"] is not None
    share = compiler.share_of_peak(entry, accelerators.topology(row.topology).accelerator)
    figures = [
        f"{entry['memory_gb']:.2f}",
        plan_gb,
        "yes" if entry["fits"] else "NO",
        f"{entry['step_ms']:.1f}" if timed else "–",
        plan_ms,
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


def _page(compiled: list[tuple[Row, study.Study, list[dict[str, Any]]]]) -> str:
    lines: list[str] = []
    versions: dict[str, str] = {}
    for row, its_study, entries in compiled:
        planned = calibration.predict(its_study, accelerators.topology(row.topology))
        lines += [_line(row, planned.get(entry["variant"]), entry, entries[0]) for entry in entries]
        versions |= entries[0].get("versions", {})
    definitions = (compiler.__doc__ or "").partition("Definitions ")[2].strip()
    head = _HEAD.format(definitions=f"Definitions {definitions}")
    listed = ", ".join(f"{name} {number}" for name, number in versions.items())
    return head + "\n".join(lines) + f"\n\nVersions: {listed}.\n"


if __name__ == "__main__":
    main()
