"""What AlgoPerf's own workloads need on a host before they train: AlgoPerf, data, tokenizer."""

import dataclasses
import os
from pathlib import Path

from attention import files
from workloads import algoperf_specs, catalog
from workloads.algoperf import installation, tiny_sizes
from workloads.base.errors import DataError
from workloads.base.host_checkout import check_libraries

# What AlgoPerf's JAX workloads import beyond our own libraries.
_LIBRARIES = {
    "imagenet": ("tensorflow", "tensorflow_datasets", "torch", "clu"),
    "librispeech": ("tensorflow", "tensorflow_text", "torch", "clu"),
    "wmt": ("tensorflow", "tensorflow_datasets", "tensorflow_text", "torch"),
    "finewebedu": ("tensorflow", "torch"),
}
_REMEDY = (
    "install AlgoPerf by its docs/GETTING_STARTED.md, or what it needs: pip install "
    "'/path/to/attnperf[algoperf]'"
)
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
        name = algoperf_specs.short_name(self.name)
        checkout = installation.find(algoperf_dir or None)
        checkout.check_registered(name)
        check_libraries(_LIBRARIES[name.split("_")[0]], f"AlgoPerf's {name}", _REMEDY)
        lines = [str(checkout), *filter(None, [checkout.remark])]
        if algoperf_specs.TOKENIZER in catalog.get(self.name).extra_paths:
            check_tokenizer(f"--config.{algoperf_specs.TOKENIZER}", tokenizer_vocab_path)
            lines.append(f"tokenizer {tokenizer_vocab_path}")
        check_files(name, Path(data_dir))
        sizes = tiny_sizes.read_sizes(data_dir, name)
        fabricated = f", FABRICATED: evaluations of {sizes} examples" if sizes else ""
        return [*lines, f"{data_dir} has every part that {name} reads{fabricated}"]

    def prepare(self, data_dir: str, manual_dir: str | None = None) -> None:
        """Raises DataError: AlgoPerf prepares its data, and ours has the same layout."""
        del manual_dir
        name = algoperf_specs.short_name(self.name)
        raise DataError(f"{self.name} reads what AlgoPerf prepares", _repair(name, data_dir))


def check_tokenizer(option: str, path: str) -> None:
    """Raises DataError where an option names no SentencePiece model, which speech needs."""
    if not path or not Path(path).is_file():
        raise DataError(
            f"{option}={path}: no such file. Without the model that targets were made with "
            "AlgoPerf reports a word error rate of 0 and goals reached",
            f"set {option} to the spm_model.vocab that AlgoPerf's dataset_setup wrote",
        )


def check_files(
    name: str, data_dir: Path, imagenet_v2_dir: Path | None = None, evaluates: bool = True
) -> None:
    """Raises DataError naming the paths that AlgoPerf's readers open and that do not exist.

    name: AlgoPerf's of the workload, whose data has the base workload's name. imagenet_v2_dir:
    `data_dir` unless given. evaluates: whether evaluations read their splits.
    """
    base = next(base for base in TRAINING if name.startswith(base))
    paths = [data_dir / part for part in TRAINING[base]]
    if evaluates:
        paths += [data_dir / part for part in EVALUATION[base]]
        if base == "imagenet_vit":
            paths.append((imagenet_v2_dir or data_dir) / IMAGENET_V2)
    if absent := [str(path) for path in paths if not path.exists()]:
        raise DataError(
            f"AlgoPerf's {name} lacks {', '.join(absent)}: it would download it, or fail",
            _repair(name, data_dir),
        )


def _repair(name: str, data_dir: str | os.PathLike[str]) -> str:
    guide = "prepare it by AlgoPerf's datasets/README.md (1.0: dataset/README.md)"
    if name in catalog.WORKLOADS:
        guide += f"; or, same layout, {catalog.get(name).repair(str(data_dir))}"
    return f"{guide}; to try without: `python -m workloads algoperf_data DIR` fabricates a few"
