"""What is checked of the data before AlgoPerf is loaded: TFDS would download what is missing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workloads.algoperf import tiny_sizes

# What its readers open below the data directory; TFDS would download what is missing.
TRAINING: dict[str, tuple[str, ...]] = {
    "imagenet_vit": ("imagenet2012/5.1.0",),
    "librispeech_conformer": ("train-clean-100.csv", "train-clean-360.csv", "train-other-500.csv"),
    "wmt": ("wmt17_translate/de-en/1.0.0", "wmt_sentencepiece_model"),
    "finewebedu_lm": ("train",),  # data_dir is fineweb_edu_10B itself
}
_EVALUATION: dict[str, tuple[str, ...]] = {
    "imagenet_vit": (),
    "librispeech_conformer": ("dev-clean.csv", "dev-other.csv", "test-clean.csv"),
    "wmt": ("wmt14_translate/de-en/1.0.0",),
    "finewebedu_lm": ("val",),
}
_IMAGENET_V2 = "imagenet_v2/matched-frequency/3.0.0"


def check(given: Mapping[str, Any], base: str) -> Path:
    """Returns the data directory, in which everything that will be opened exists."""
    data = Path(given["data_dir"]).expanduser()
    _check_parts(data, TRAINING[base], "data_dir", base)
    if not evaluates(given):
        return data
    _check_parts(data, _EVALUATION[base], "data_dir", base)
    if base == "imagenet_vit":
        second = given["imagenet_v2_data_dir"]
        where = Path(second).expanduser() if second else data
        _check_parts(where, (_IMAGENET_V2,), "imagenet_v2_data_dir", base)
    return data


def evaluates(given: Mapping[str, Any]) -> bool:
    """Whether a run with the flags `given` evaluates."""
    # Its self-tuning ruleset does not hand --skip_evals on (submission_runner.py).
    return not given["skip_evals"] or given["tuning_ruleset"] == "self"


def _check_parts(directory: Path, parts: Sequence[str], flag: str, base: str) -> None:
    missing = [part for part in parts if not (directory / part).exists()]
    if missing:
        raise ValueError(
            f"--{flag}={directory} lacks {', '.join(missing)}. AlgoPerf's dataset guide says "
            f"how to prepare it; to try without, `python -m workloads algoperf_data DIR "
            f"--workload={base}` writes a few fabricated examples"
        )


def check_sizes(
    tiny: bool, given: Mapping[str, Any], data: Path, base: str
) -> dict[str, int] | None:
    """Returns the sizes that `--tiny` evaluates, None without it."""
    sizes = tiny_sizes.read_sizes(data, base)
    if tiny and sizes is None:
        raise ValueError(
            f"--tiny: {data} holds real data (no {tiny_sizes.MARKER} that names {base}); "
            "evaluations of it keep AlgoPerf's sizes"
        )
    if sizes is not None and not tiny and evaluates(given):
        raise ValueError(
            f"{data} holds fabricated data of {sizes} examples, and AlgoPerf's evaluations divide "
            "by their real numbers (50,000 images). Give --tiny (before `--`), which evaluates "
            "what is there and says so in flags_0.json, or --skip_evals"
        )
    return sizes if tiny else None
