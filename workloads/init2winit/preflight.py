"""What is checked before init2winit is loaded: flags, config, model, variant, data, directory.

Of the data: TFDS would download what is missing.
"""

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags

from attention import files, table
from workloads.algoperf import preflight as algoperf
from workloads.init2winit import config as default_config
from workloads.init2winit import supported_models
from workloads.init2winit.installation import Installation

CONFIG = str(Path(default_config.__file__).resolve())
META = "meta_data.json"
# Fields of its config without a default.
_REQUIRED = ("model", "dataset", "num_train_steps")
# Data sets that tensorflow-datasets reads, by the folder it looks for (small_image_datasets.py).
_TFDS = {
    "mnist": "mnist",
    "mnist_autoencoder": "mnist",
    "fashion_mnist": "fashion_mnist",
    "cifar10": "cifar10",
    "cifar100": "cifar100",
    "svhn_no_extra": "svhn_cropped",
    "librispeech": "librispeech",
}
_TEXT = ("wikitext103", "wikitext103_spm")
_BROKEN = {
    "wikitext2": (
        "fails in init2winit itself: its pipeline reads the hyperparameter eval_sequence_length, "
        "which it lacks, and tokenizes a tf.data.Dataset as if it were a tensor; wikitext103 reads "
        "the same files"
    )
}
_TEXT_FILES = ("train.txt", "valid.txt", "test.txt")


@dataclasses.dataclass(frozen=True)
class CheckedRun:
    """A run that main.py can be started with: what it records, and where it writes.

    record: what meta_data.json gains, since init2winit itself writes it nowhere. arguments:
    main.py's, its config first. note: a sentence for the user, or None.
    """

    record: dict[str, Any]
    experiment_dir: Path
    worker_id: int
    arguments: tuple[str, ...]
    note: str | None


def check(
    request: algoperf.Request, installation: Installation, data_dir: str | None = None
) -> CheckedRun:
    """Returns a run that init2winit can be started with. Reads no data and loads no JAX.

    Raises ValueError with what to do: unknown variant, model or data set, a model without
    attention, a field that is required, data that are missing, a directory with another run.
    """
    request.check_attention()
    arguments = request.arguments
    if not any(re.match(r"--?config(=|$)", argument) for argument in arguments):
        # Its config's fields are read after the file, which is ours where none is given.
        arguments = (f"--config={CONFIG}", *arguments)
    values, config = _parse(arguments)
    needed = {f"config.{name}": config.get(name) for name in _REQUIRED}
    for option, value in {**needed, "experiment_dir": values["experiment_dir"]}.items():
        if value in (None, ""):
            raise ValueError(f"init2winit's main.py needs --{option}=…, after `--`")
    supported_models.check_variant(config.model, request.attention)
    known = data_sets(installation)
    if config.dataset not in known:
        raise ValueError(f"init2winit has no data set {config.dataset!r}; it has {known}")
    if config.dataset in _BROKEN:
        raise ValueError(f"data set {config.dataset}: {_BROKEN[config.dataset]}")
    _check_data(config.dataset, data_dir)
    record = {
        "attention": table.canonical(request.attention),
        "attention_tau": request.tau or 1.0,
        "model": config.model,
        "dataset": config.dataset,
    }
    worker_id = values["worker_id"]
    experiment_dir = algoperf.experiment_dir(values["experiment_dir"])
    note = _resume_note(experiment_dir / str(worker_id), record, str(installation.revision))
    record["num_train_steps"] = config.num_train_steps
    return CheckedRun(record, experiment_dir, worker_id, arguments, note)


def _parse(arguments: tuple[str, ...]) -> tuple[dict[str, Any], Any]:
    """Returns the flags and the config, read as main.py reads them."""
    values = flags.FlagValues()
    argv = ["main.py", *arguments]
    config_flags.DEFINE_config_file("config", flag_values=values, lock_config=True, sys_argv=argv)
    flags.DEFINE_string("experiment_dir", None, "", flag_values=values)
    flags.DEFINE_integer("worker_id", 1, "", flag_values=values)
    values.set_gnu_getopt(True)
    try:
        rest = values(argv, known_only=True)[1:]
        config: Any = values["config"].value
        config.get("model")  # a file that cannot be loaded says so when it is looked into
    except (flags.Error, OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        words = " ".join(str(error).split())
        raise ValueError(f"init2winit's --config: {words}") from error
    for argument in rest:
        name = argument.lstrip("-").partition("=")[0]
        if argument.startswith("-") and (name in config or name == "hparam_file"):
            field = "hparam_overrides_json" if name.startswith("hparam") else name
            raise ValueError(
                f"{argument}: main.py has no such flag any more (since March 2026); its options "
                f"are fields of its config: --config.{field}=…"
            )
    return {name: values[name].value for name in ("experiment_dir", "worker_id")}, config


def data_sets(installation: Installation) -> list[str]:
    """Returns the names in its registry of data sets; reads the file and imports nothing."""
    text = (installation.directory / "init2winit/dataset_lib/datasets.py").read_text("utf-8")
    return re.findall(r"^    '(\w+)': ?_Dataset\(", text, re.MULTILINE)


def _check_data(dataset: str, data_dir: str | None) -> None:
    if dataset in _TEXT:
        if data_dir is None:
            raise ValueError(
                f"data set {dataset} reads {', '.join(_TEXT_FILES)}; give --data_dir=DIR, in which "
                "they are, before `--`"
            )
        missing = [name for name in _TEXT_FILES if not (Path(data_dir) / name).is_file()]
        if missing:
            raise ValueError(
                f"--data_dir={data_dir} lacks {', '.join(missing)} of {dataset}; give the "
                "directory that holds them"
            )
    if dataset in _TFDS:
        home = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
        folder = Path(home).expanduser() / _TFDS[dataset]
        if not any(folder.glob("**/dataset_info.json")):
            raise ValueError(
                f"{folder} holds no prepared data, and tensorflow-datasets would download it; "
                "name a directory that does by --data_dir=DIR, before `--`, or prepare it: `tfds "
                f"build {_TFDS[dataset]} --data_dir={files.quoted(Path(home).expanduser())}`"
            )


def _resume_note(directory: Path, record: dict[str, Any], commit: str) -> str | None:
    """Returns a note where init2winit will go on from a run's checkpoints in `directory`.

    Raises ValueError where these are of another `record`, which init2winit would not notice.
    """
    path = directory / META
    if not path.is_file():
        return None
    try:
        before = json.loads(path.read_text("utf-8"))
    except ValueError:
        before = {}
    differing = [key for key, value in record.items() if before.get(key) != value]
    if differing:
        words = ", ".join(f"{key} {before.get(key)!r}" for key in differing)
        raise ValueError(
            f"{directory} holds a run with {words}, whose checkpoints init2winit would go "
            "on from; give another --experiment_dir or --worker_id"
        )
    writer = before.get("init2winit_commit", commit)
    at = "" if writer == commit else f", which init2winit {writer} wrote; this is {commit}"
    return (
        f"{directory} holds a run ({before.get('status')}); init2winit goes on from its "
        f"last checkpoint{at}"
    )
