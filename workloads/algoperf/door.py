"""What is checked before AlgoPerf is loaded: flags, workload, variant, data, paths."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from attention import table
from workloads.algoperf import supported, tiny_sizes
from workloads.algoperf.installation import Installation

# submission_runner.py marks these as required. Flags and defaults below are its own too.
REQUIRED = ("workload", "framework", "submission_path", "experiment_dir", "experiment_name")
_STRINGS = (
    *REQUIRED,
    "tuning_search_space",
    "data_dir",
    "imagenet_v2_data_dir",
    "librispeech_tokenizer_vocab_path",
)
_BOOLEANS = ("skip_evals", "overwrite", "resume_last_run", "append_timestamp")
_DEFAULT_DATA_DIR = "~/data"
# What its readers open below the data directory; TFDS would download what is missing.
_DATA: dict[str, tuple[str, ...]] = {
    "imagenet_vit": ("imagenet2012/5.1.0",),
    "librispeech_conformer": ("train-clean-100.csv", "train-clean-360.csv", "train-other-500.csv"),
    "wmt": ("wmt17_translate/de-en/1.0.0", "wmt_sentencepiece_model"),
}
_EVALUATION_DATA: dict[str, tuple[str, ...]] = {
    "imagenet_vit": (),
    "librispeech_conformer": ("dev-clean.csv", "dev-other.csv", "test-clean.csv"),
    "wmt": ("wmt14_translate/de-en/1.0.0",),
}
_IMAGENET_V2 = "imagenet_v2/matched-frequency/3.0.0"


@dataclasses.dataclass(frozen=True)
class Request:
    """A run as it was asked for: our options, and the flags of AlgoPerf's runner as given."""

    attention: str
    tau: float | None
    tiny: bool
    arguments: tuple[str, ...]

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """What `attention.registry.get` takes beside the name."""
        return {} if self.tau is None else {"tau": self.tau}


@dataclasses.dataclass(frozen=True)
class Admitted:
    """What the checks found: where the submission is imported from, evaluation sizes or None."""

    workload: str
    import_root: Path
    sizes: dict[str, int] | None


def check(request: Request, installation: Installation) -> Admitted:
    """Returns what a run needs to know beside its request. Reads no data and loads no JAX.

    Raises ValueError with what to do: unknown variant, workload or framework, a flag that is
    required, a path that is missing, a directory that AlgoPerf would ask about.
    """
    table.check(request.attention, request.hyperparameters)
    given = _parse(request.arguments)
    _check_required(given)
    if given["framework"] != "jax":
        raise ValueError(
            f"--framework={given['framework']}: variants are JAX code; give --framework=jax"
        )
    name = given["workload"]
    supported.support(name)
    base = next(base for base in _DATA if name.startswith(base))
    _check_tokenizer(given, base)
    _check_experiment(given, name)
    _check_search_space(given, installation)
    data = _check_data(given, base)
    sizes = _check_tiny(request, given, data)
    root = _import_root(given["submission_path"], installation)
    return Admitted(name, root, sizes)


def _parse(arguments: Sequence[str]) -> dict[str, Any]:
    """The flags that are checked, read as absl reads them (`--flagfile` and all)."""
    values = flags.FlagValues()
    for name in _STRINGS:
        default = _DEFAULT_DATA_DIR if name == "data_dir" else None
        flags.DEFINE_string(name, default, "", flag_values=values)
    for name in _BOOLEANS:
        flags.DEFINE_boolean(name, False, "", flag_values=values)
    values.set_gnu_getopt(True)
    try:
        values(["submission_runner.py", *arguments], known_only=True)
    except flags.Error as error:
        raise ValueError(f"submission_runner.py's flags: {error}") from error
    return {name: values[name].value for name in values}


def _check_required(given: dict[str, Any]) -> None:
    missing = [name for name in REQUIRED if not given[name]]
    if missing:
        raise ValueError(
            f"submission_runner.py needs {', '.join('--' + name for name in missing)}; its flags "
            "follow after `--`"
        )


def _check_tokenizer(given: dict[str, Any], base: str) -> None:
    if base != "librispeech_conformer":
        return
    path = given["librispeech_tokenizer_vocab_path"]
    if not path or not Path(path).is_file():
        flaw = f"={path}: no such file" if path else " is not given"
        raise ValueError(
            f"--librispeech_tokenizer_vocab_path{flaw}. Without it AlgoPerf reports a word error "
            "rate of 0 and goals reached. Give the SentencePiece model that its dataset_setup "
            "wrote (spm_model.vocab)"
        )


def _check_experiment(given: dict[str, Any], workload: str) -> None:
    root = Path(given["experiment_dir"]).expanduser()
    if not root.is_absolute():
        raise ValueError(
            f"--experiment_dir={root}: AlgoPerf's checkpoints need an absolute path; give "
            f"--experiment_dir={root.resolve()}"
        )
    if given["append_timestamp"]:
        return
    place = root / given["experiment_name"] / f"{workload}_jax"
    if place.exists() and not (given["overwrite"] or given["resume_last_run"]):
        raise ValueError(
            f"{place} exists. Give another --experiment_name, --overwrite or --resume_last_run"
        )


def _check_search_space(given: dict[str, Any], installation: Installation) -> None:
    path = given["tuning_search_space"]
    if not path or Path(path).is_file():
        return
    theirs = installation.directory / path
    hint = f"; AlgoPerf has {theirs}" if theirs.is_file() else ""
    raise ValueError(f"--tuning_search_space={path}: no such file in {Path.cwd()}{hint}")


def _check_data(given: dict[str, Any], base: str) -> Path:
    """Returns the data directory, in which everything that will be opened exists."""
    evaluates = not given["skip_evals"]
    data = Path(given["data_dir"]).expanduser()
    _check_parts(data, _DATA[base], "data_dir", base)
    if not evaluates:
        return data
    _check_parts(data, _EVALUATION_DATA[base], "data_dir", base)
    if base == "imagenet_vit":
        second = given["imagenet_v2_data_dir"]
        where = Path(second).expanduser() if second else data
        _check_parts(where, (_IMAGENET_V2,), "imagenet_v2_data_dir", base)
    return data


def _check_parts(directory: Path, parts: Sequence[str], flag: str, base: str) -> None:
    missing = [part for part in parts if not (directory / part).exists()]
    if missing:
        raise ValueError(
            f"--{flag}={directory} lacks {', '.join(missing)}. AlgoPerf's datasets/README.md says "
            f"how to prepare it; to try without, `python -m workloads algoperf_data DIR "
            f"--workload={base}` writes a few fabricated examples"
        )


def _check_tiny(request: Request, given: dict[str, Any], data: Path) -> dict[str, int] | None:
    """Returns the sizes that `--tiny` evaluates, None without it."""
    sizes = tiny_sizes.read_sizes(data)
    if request.tiny and sizes is None:
        raise ValueError(
            f"--tiny: {data} holds real data (no {tiny_sizes.MARKER}); evaluations of it keep "
            "AlgoPerf's sizes"
        )
    if sizes is not None and not request.tiny and not given["skip_evals"]:
        raise ValueError(
            f"{data} holds fabricated data of {sizes} examples, and AlgoPerf's evaluations divide "
            "by their real numbers (50,000 images). Give --tiny (before `--`), which evaluates "
            "what is there and says so in flags_0.json, or --skip_evals"
        )
    return sizes if request.tiny else None


def _import_root(submission: str, installation: Installation) -> Path:
    """Returns the directory below which `--submission_path` is a module.

    AlgoPerf imports `a/b.py` as `a.b`: from the working directory, its own, or ours.
    """
    path = Path(submission)
    ours = Path(__file__).resolve().parents[2]
    roots = (Path.cwd(), installation.directory, ours)
    if path.suffix != ".py":
        raise ValueError(f"--submission_path={submission}: AlgoPerf wants a .py file")
    if path.is_absolute():
        inside = [path.relative_to(root) for root in roots if path.is_relative_to(root)]
        relative = min(map(os.fspath, inside), key=len, default=path.name)
        where = "" if inside else f"cd {path.parent} and "
        raise ValueError(
            f"--submission_path={submission}: AlgoPerf imports it as a module, which an absolute "
            f"path is not; {where}give --submission_path={relative}"
        )
    for root in roots:
        if (root / path).is_file():
            return root
    raise ValueError(f"--submission_path={submission} is in none of {', '.join(map(str, roots))}")
