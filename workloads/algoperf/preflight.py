"""Checks before AlgoPerf is loaded (what neither it nor absl refuses), and on a host before its
workloads train: AlgoPerf, data, tokenizer. TFDS would download data that are missing.
"""

import dataclasses
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from attention import table
from attention.common import files
from workloads import algoperf_specs, catalog
from workloads.algoperf.installation import Installation, find
from workloads.base.errors import DataError

# submission_runner.py marks these as required. Flags and defaults below are its own too.
_REQUIRED = ("workload", "framework", "submission_path", "experiment_dir", "experiment_name")
_TOKENIZER = "librispeech_tokenizer_vocab_path"
_STRINGS = (*_REQUIRED, "tuning_ruleset", "data_dir", "imagenet_v2_data_dir", _TOKENIZER)
_BOOLEANS = ("skip_evals", "overwrite", "resume_last_run", "append_timestamp")
FLAGS = (*_STRINGS, *_BOOLEANS)
_DEFAULTS = {"data_dir": "~/data", "tuning_ruleset": "external"}
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


def check(
    variant: str, tau: float | None, arguments: Sequence[str], installation: Installation
) -> Path:
    """Returns the directory that AlgoPerf imports the submission from.

    arguments: AlgoPerf's own flags. Reads no data and loads no JAX.

    Raises ValueError with what to do: unknown variant or workload, flags that absl refuses, another
    framework than JAX, a missing tokenizer, an experiment that exists, missing data, a submission
    that AlgoPerf could not import.
    """
    table.check(variant, hyperparameters(tau))
    # A +temp variant with τ = 1 is the plain one under another name.
    if "temp" in variant.split("+") and tau is None:
        raise ValueError(
            f"--attention={variant} needs its temperature; give --tau=0.9, as studies do"
        )
    values = _parse(arguments)
    if values["framework"] != "jax":
        raise ValueError(
            f"--framework={values['framework']}: variants are JAX code; give --framework=jax"
        )
    name = values["workload"]
    catalog.check_variant(algoperf_specs.PREFIX + name, variant)
    installation.check_registered(name)
    # AlgoPerf restores eval_results as None and reads them as a dict (checkpoint_utils). Its
    # replicate_checkpoint gives parameters an axis for devices, which no model has.
    if values["resume_last_run"]:
        raise ValueError(
            "--resume_last_run: AlgoPerf's JAX runs cannot resume (0.6 and 1.0). Leave the flag "
            "out and start anew (another --experiment_name, or --overwrite); studies of `python "
            f"-m sweeps` with --config.workload=algoperf:{name} do resume"
        )
    _check_experiment(values)
    directory = Path(values["data_dir"]).expanduser()
    second = values["imagenet_v2_data_dir"] and Path(values["imagenet_v2_data_dir"]).expanduser()
    # The self-tuning ruleset does not hand --skip_evals on (submission_runner.py).
    evaluates = not values["skip_evals"] or values["tuning_ruleset"] == "self"
    _check_host(name, (f"--{_TOKENIZER}", values[_TOKENIZER]), directory, second, evaluates)
    return _import_root(values["submission_path"], installation)


def hyperparameters(tau: float | None) -> dict[str, Any]:
    """Returns what `attention.registry.get` takes beside the name."""
    return {} if tau is None else {"tau": tau}


def _parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the flags that are checked, read as absl reads them (`--flagfile` and all)."""
    values = flags.FlagValues()
    for name in _STRINGS:
        flags.DEFINE_string(name, _DEFAULTS.get(name), "", flag_values=values)
    for name in _BOOLEANS:
        flags.DEFINE_boolean(name, False, "", flag_values=values)
    flags.mark_flags_as_required(_REQUIRED, flag_values=values)
    values.set_gnu_getopt(True)
    try:
        values(["submission_runner.py", *arguments], known_only=True)
    except flags.Error as error:
        raise ValueError(f"submission_runner.py's flags, behind `--`: {error}") from error
    return {name: values[name].value for name in values}


def _check_experiment(values: dict[str, Any]) -> None:
    """Raises ValueError for an experiment that exists, or for a relative directory.

    AlgoPerf would ask whether to continue an experiment that exists: "y" mixes the measurements of
    two variants, "N" ends with status 0, and without a terminal the question is a traceback.
    """
    root = Path(values["experiment_dir"]).expanduser()
    if not root.is_absolute():
        raise ValueError(
            f"--experiment_dir={values['experiment_dir']}: its checkpoints need an absolute path; "
            f"give --experiment_dir={root.resolve()}"
        )
    directory = root / values["experiment_name"] / f"{values['workload']}_jax"
    if directory.exists() and not (values["overwrite"] or values["append_timestamp"]):
        raise ValueError(f"{directory} exists. Give another --experiment_name, or --overwrite")


def _import_root(submission: str, installation: Installation) -> Path:
    """Returns the directory below which `--submission_path` lies.

    AlgoPerf imports `a/b.py` as `a.b`: from the working directory, its own, or ours.
    """
    path = Path(submission)
    roots = (Path.cwd(), installation.directory, Path(__file__).resolve().parents[2])
    if not path.is_absolute() and path.suffix == ".py":
        for root in roots:
            if (root / path).is_file():
                return root
    raise ValueError(
        f"--submission_path={submission}: AlgoPerf imports it as a module. Give the path of a .py "
        f"file relative to one of {', '.join(map(str, roots))}"
    )


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
        """Returns one line for each part that is there; loads neither JAX nor AlgoPerf.

        Raises DataError for the first part that is missing, with what to do. `python -m workloads
        check imagenet_vit` and its like check whether records are whole.
        """
        if full:
            ours = catalog.get(self.name).data_name
            raise DataError(
                f"{self.name}: AlgoPerf's readers have no check of every record",
                f"python -m workloads check {ours} --full --data_dir={files.quoted(data_dir)} "
                f"(same layout)",
            )
        name = algoperf_specs.short_name(self.name)
        checkout = find(algoperf_dir or None)
        checkout.check_registered(name)
        libraries = _LIBRARIES[name.split("_")[0]]
        if missing := [library for library in libraries if not importlib.util.find_spec(library)]:
            needed = ", ".join(missing)
            raise DataError(f"AlgoPerf's {name} needs {needed}, not installed here", _REMEDY)
        _check_host(
            name, (f"--config.{algoperf_specs.TOKENIZER}", tokenizer_vocab_path), Path(data_dir)
        )
        return [
            str(checkout),
            *filter(None, [checkout.remark]),
            *([f"tokenizer {tokenizer_vocab_path}"] if tokenizer_vocab_path else []),
            f"{data_dir} has every part that {name} reads",
        ]

    def prepare(self, data_dir: str, manual_dir: str | None = None) -> None:
        """Raises DataError: AlgoPerf prepares its data, and ours has the same layout."""
        raise DataError(
            f"{self.name} reads what AlgoPerf prepares",
            _repair(algoperf_specs.short_name(self.name), data_dir),
        )


def _check_host(
    name: str,
    tokenizer: tuple[str, str | None],
    data_dir: Path,
    imagenet_v2_dir: Path | None = None,
    evaluates: bool = True,
) -> None:
    """Raises DataError for a missing tokenizer or missing data, naming the paths.

    The tokenizer is speech's SentencePiece model, data what AlgoPerf's readers open.

    name: AlgoPerf's of the workload, whose data has the base workload's name. tokenizer: an option
    and its value. imagenet_v2_dir: `data_dir` unless given. evaluates: whether evaluations read
    their splits.
    """
    option, path = tokenizer
    extra_paths = catalog.get(algoperf_specs.PREFIX + name).extra_paths
    if algoperf_specs.TOKENIZER in extra_paths and not Path(path or "").is_file():
        raise DataError(
            f"{option}={path}: no such file. Without the model that targets were made with "
            "AlgoPerf reports a word error rate of 0 and goals reached",
            f"set {option} to the spm_model.vocab that AlgoPerf's dataset_setup wrote",
        )
    base = next(base for base in TRAINING if name.startswith(base))
    paths = [data_dir / part for part in TRAINING[base]]
    if evaluates:
        paths += [data_dir / part for part in EVALUATION[base]]
        if base == "imagenet_vit":
            paths.append((imagenet_v2_dir or data_dir) / IMAGENET_V2)
    if absent := [str(path) for path in paths if not path.exists()]:
        raise DataError(
            f"AlgoPerf's {name} lacks {', '.join(absent)}. AlgoPerf would download it, or fail",
            _repair(name, data_dir),
        )


def _repair(name: str, data_dir: str | os.PathLike[str]) -> str:
    guide = "prepare it by AlgoPerf's datasets/README.md (1.0: dataset/README.md)"
    if name in catalog.WORKLOADS:
        guide += f"; or, same layout, {catalog.get(name).repair(str(data_dir))}"
    return guide
