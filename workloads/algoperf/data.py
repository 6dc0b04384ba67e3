"""What AlgoPerf's own workloads need on a host before they train: AlgoPerf, data, tokenizer."""

import dataclasses
import importlib.util
import os
from pathlib import Path

from attention import files
from workloads import algoperf_specs, catalog
from workloads.algoperf import installation, tiny_sizes
from workloads.base.errors import DataError

# What AlgoPerf's JAX workloads import beyond our own libraries.
_LIBRARIES = {
    "imagenet": ("tensorflow", "tensorflow_datasets", "torch", "clu"),
    "librispeech": ("tensorflow", "tensorflow_text", "torch", "clu"),
    "wmt": ("tensorflow", "tensorflow_datasets", "tensorflow_text", "torch"),
    "finewebedu": ("tensorflow", "torch"),
}
# What AlgoPerf's readers open below the data directory; TFDS would download what is missing.
TRAINING: dict[str, tuple[str, ...]] = {
    "imagenet_vit": ("imagenet2012/5.1.0",),
    "librispeech_conformer": ("train-clean-100.csv", "train-clean-360.csv", "train-other-500.csv"),
    "wmt": ("wmt17_translate/de-en/1.0.0", "wmt_sentencepiece_model"),
    "finewebedu_lm": ("train",),  # data_dir is fineweb_edu_10B itself
}
EVALUATION: dict[str, tuple[str, ...]] = {
    "imagenet_vit": (),
    "librispeech_conformer": ("dev-clean.csv", "dev-other.csv", "test-clean.csv"),
    "wmt": ("wmt14_translate/de-en/1.0.0",),
    "finewebedu_lm": ("val",),
}
IMAGENET_V2 = "imagenet_v2/matched-frequency/3.0.0"


@dataclasses.dataclass(frozen=True)
class Check:
    """The check of one workload of `workloads.algoperf_specs`, by its name."""

    name: str

    def check(
        self,
        data_dir: str | os.PathLike[str],
        full: bool = False,
        algoperf_dir: str = "",
        tokenizer_vocab_path: str = "",
    ) -> list[str]:
        """One line about each thing that was found; loads neither JAX nor AlgoPerf.

        Raises DataError for the first thing that is missing, with what to do. Whether records
        are whole is for `python -m workloads check imagenet_vit` and its like to say.
        """
        if full:
            ours = catalog.get(self.name).data_name
            raise DataError(
                f"{self.name}: AlgoPerf's readers have no check of every record",
                f"python -m workloads check {ours} --full --data_dir={files.quoted(data_dir)} "
                f"(same layout)",
            )
        lines = [*_algoperf(algoperf_specs.own_name(self.name), algoperf_dir)]
        if algoperf_specs.TOKENIZER in catalog.get(self.name).extra_paths:
            lines.append(_tokenizer(self.name, tokenizer_vocab_path))
        return [*lines, _data(self.name, Path(data_dir))]

    def prepare(self, data_dir: str, manual_dir: str | None = None) -> None:
        """Raises DataError: AlgoPerf prepares its data, and ours has the same layout."""
        del manual_dir
        raise DataError(
            f"{self.name} reads what AlgoPerf prepares", _repair(self.name, Path(data_dir))
        )


def _algoperf(own_name: str, algoperf_dir: str) -> list[str]:
    found = installation.find(algoperf_dir or None)
    if not found.registers(own_name):
        raise DataError(
            f"AlgoPerf in {found.directory} has no workload {own_name!r}: another version?",
            f"use one that attnperf was tested with ({installation.TESTED})",
        )
    family = own_name.split("_")[0]
    missing = [name for name in _LIBRARIES[family] if importlib.util.find_spec(name) is None]
    if missing:
        raise DataError(
            f"AlgoPerf's {own_name} needs {', '.join(missing)}, not installed here",
            "install AlgoPerf by its docs/GETTING_STARTED.md, or what it needs: pip install "
            "'/path/to/attnperf[algoperf]'",
        )
    return [str(found), *filter(None, [found.remark])]


def _tokenizer(name: str, path: str) -> str:
    if not path:
        raise DataError(algoperf_specs.no_tokenizer(name))
    if not Path(path).is_file():
        raise DataError(
            f"tokenizer_vocab_path={path}: there is no such file on this host",
            "set --config.tokenizer_vocab_path to the SentencePiece model that AlgoPerf's "
            "dataset_setup wrote",
        )
    return f"tokenizer {path}"


def _data(name: str, data_dir: Path) -> str:
    if absent := missing(algoperf_specs.own_name(name), data_dir):
        raise DataError(
            f"AlgoPerf's {algoperf_specs.own_name(name)} lacks {', '.join(absent)}",
            _repair(name, data_dir),
        )
    sizes = tiny_sizes.read_sizes(data_dir, algoperf_specs.own_name(name))
    made_up = f", FABRICATED: evaluations of {sizes} examples" if sizes else ""
    return f"{data_dir} has every part that {algoperf_specs.own_name(name)} reads{made_up}"


def _repair(name: str, data_dir: Path) -> str:
    ours = catalog.get(name).data_name
    if ours not in catalog.WORKLOADS:
        return "AlgoPerf's dataset guide, datasets/README.md (1.0: dataset/README.md)"
    other = catalog.get(ours).repair(str(data_dir))
    return f"AlgoPerf's datasets/README.md (1.0: dataset/); or, same layout, {other}"


def base_of(own_name: str) -> str:
    """Returns the workload whose data a workload of AlgoPerf reads: that of the same start."""
    return next(base for base in TRAINING if own_name.startswith(base))


def missing(
    own_name: str, data_dir: Path, imagenet_v2_dir: Path | None = None, evaluates: bool = True
) -> list[str]:
    """Returns the paths that AlgoPerf's readers open and that do not exist.

    imagenet_v2_dir: `data_dir` unless given. evaluates: whether evaluations read their splits.
    """
    base = base_of(own_name)
    paths = [
        data_dir / part for part in (*TRAINING[base], *(EVALUATION[base] if evaluates else ()))
    ]
    if base == "imagenet_vit" and evaluates:
        paths.append((imagenet_v2_dir or data_dir) / IMAGENET_V2)
    return [str(path) for path in paths if not path.exists()]
