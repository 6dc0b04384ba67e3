"""docs/performance.md: what accelerators' compilers say of our studies' steps.

    python -m sweeps.benchmarks.performance [--only=c4_lm] [--out=docs/performance.md]

Rows are compiled one after the other, each in a process of its own; what was compiled is kept in
the `--cache` directory, so that a run that was stopped goes on. A row whose compiler is not
installed says so. Two minutes of CPU time a row, or less.
"""

import argparse
import hashlib
import json
import pathlib
from typing import Any

from attention import files
from sweeps.monitoring import compile as compiler
from sweeps.study import config, study

_BFLOAT16 = ("--config.compute_dtype=bfloat16",)
# (study, what is changed, topology): the studies as shipped, and what the issue of speed is about.
ROWS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("c4_lm_paper", (), "v5e:8x8"),
    ("c4_lm_paper", _BFLOAT16, "v5e:8x8"),
    ("c4_lm_1b_paper", (), "v5e:8x16"),
    ("c4_lm_2b_paper", (), "v5e:16x16"),
    ("c4_lm_8b_paper", (), "v5e:16x16"),
    ("wikipedia_bert_2b_paper", (), "v5e:16x16"),
    ("c4_lm_paper", (*_BFLOAT16, "--config.kernel=cudnn"), "h100:1x1x8"),
    ("c4_lm_2b_paper", ("--config.mesh.fsdp=8",), "h100:1x1x8"),
    ("imagenet_vit_paper", ("--config.variants=standard,laser",), "v5e:2x4"),
    ("librispeech_conformer_paper", ("--config.variants=standard,laser",), "v5e:2x4"),
)
_HEAD = """# What the compilers say

Written by `make performance`; nothing here was run on an accelerator. {definitions}

What these figures leave out: waiting for the network and for transfers between memories, the host's
input, evaluations and checkpoints. A TPU's cycles are its compiler's estimate. A GPU's compiler
estimates no time without a device.

Peers (MaxText, AlgoPerf) are not compiled by this command yet.

| study | changed | topology | variant | GB | fits | ms | of them kernels | HBM GB | collectives GB | of peak | × baseline | warnings |
|---|---|---|---|--:|:--|--:|--:|--:|--:|--:|--:|--:|
"""  # noqa: E501


def main() -> None:
    """Compiles what is not in the cache, and writes the page after every row."""
    parser = argparse.ArgumentParser(prog="python -m sweeps.benchmarks.performance")
    parser.add_argument("--only", default="", help="rows with this in their study's name")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("docs/performance.md"))
    cache = pathlib.Path("experiments/performance")
    parser.add_argument("--cache", type=pathlib.Path, default=cache)
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    versions: dict[str, str] = {}
    for name, changed, topology in ROWS:
        if options.only in name:
            rows, resolved = _compiled(options.cache, name, changed, topology)
            lines += [_line(row, rows, resolved, changed, topology) for row in rows]
            versions |= rows[0].get("versions", {})
            files.write(options.out, _page(lines, versions))
            print(*lines[-len(rows) :], sep="\n", flush=True)


def _compiled(
    cache: pathlib.Path, name: str, changed: tuple[str, ...], topology: str
) -> tuple[list[dict[str, Any]], study.Study]:
    resolved = study.resolve(config.parse(name, list(changed)), planning=True)
    key = hashlib.sha256(json.dumps([name, changed, topology]).encode()).hexdigest()[:16]
    kept = cache / f"{key}.json"
    if not kept.is_file():
        try:
            found = compiler.rows(resolved, topology)
        except ValueError as error:
            if "is not installed" not in str(error):
                raise
            return [{"variant": "", "missing": str(error)}], resolved
        files.write(kept, json.dumps(found))
    rows: list[dict[str, Any]] = json.loads(kept.read_text())
    return rows, resolved


def _line(
    row: dict[str, Any],
    rows: list[dict[str, Any]],
    resolved: study.Study,
    changed: tuple[str, ...],
    topology: str,
) -> str:
    told = " ".join(change.removeprefix("--config.") for change in changed)
    where = [resolved.name, told, topology, row["variant"]]
    if "missing" in row:
        return _cells([*where, "not installed"])
    if row["memory_gb"] is None:
        return _cells([*where, row["warnings"][0], "NO"])
    baseline = next(one for one in rows if one["variant"] == resolved.settings["baseline"])
    timed = row["step_ms"] is not None and baseline["step_ms"] is not None
    figures = [
        f"{row['memory_gb']:.2f}",
        "yes" if row["fits"] else "NO",
        f"{row['step_ms']:.1f}" if timed else "–",
        f"{row['kernel_ms']:.1f}" if timed else "–",
        f"{row['hbm_gb']:.1f}",
        f"{row['collectives_gb']:.2f}",
        f"{share:.1%}" if (share := compiler.share_of_peak(row, topology)) else "–",
        f"{row['step_ms'] / baseline['step_ms']:.3f}" if timed else "–",
        str(len(row["warnings"])),
    ]
    return _cells([*where, *figures])


def _cells(texts: list[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _page(lines: list[str], versions: dict[str, str]) -> str:
    definitions = (compiler.__doc__ or "").partition("Definitions ")[2]
    head = _HEAD.format(definitions=f"Definitions {definitions}")
    told = ", ".join(f"{name} {number}" for name, number in versions.items())
    return head + "\n".join(lines) + f"\n\nVersions: {told}.\n"


if __name__ == "__main__":
    main()
