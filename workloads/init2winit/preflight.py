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

from attention import files
from workloads import catalog
from workloads import init2winit_specs as specs
from workloads.algoperf import preflight as algoperf
from workloads.init2winit import config as default_config
from workloads.init2winit.installation import Installation

CONFIG = str(Path(default_config.__file__).resolve())
META = "meta_data.json"
# Its registries.
MODELS, DATASETS = "model_lib/models.py", "dataset_lib/datasets.py"
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
class Request:
    """A run as it was asked for: our options, and the flags of init2winit's main.py as given."""

    attention: str
    tau: float | None
    data_dir: str | None
    arguments: tuple[str, ...]

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """What `attention.registry.get` takes beside the name."""
        return {} if self.tau is None else {"tau": self.tau}


@dataclasses.dataclass(frozen=True)
class CheckedRun:
    """What the checks found. `arguments` are main.py's, with its config first."""

    model: str
    dataset: str
    num_train_steps: int
    experiment_dir: Path
    worker_id: int
    arguments: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def directory(self) -> Path:
        """Where the run writes: `<experiment_dir>/<worker_id>`."""
        return self.experiment_dir / str(self.worker_id)


def check(request: Request, installation: Installation) -> CheckedRun:
    """Returns what a run needs to know beside its request. Reads no data and loads no JAX.

    Raises ValueError with what to do: unknown variant, model or data set, a model without
    attention, a field that is required, data that are missing, a directory with another run.
    """
    algoperf.check_attention(request.attention, request.hyperparameters)
    arguments = _with_config(request.arguments)
    given, config = _parse(arguments)
    for name in ("model", "dataset", "num_train_steps"):
        if config.get(name) is None:
            raise ValueError(f"init2winit's main.py needs --config.{name}=…, after `--`")
    specs.model(config.model)
    catalog.check_variant(specs.PREFIX + config.model, request.attention)
    for file, kind, name in (
        (MODELS, "model", config.model),
        (DATASETS, "data set", config.dataset),
    ):
        if name not in (known := registered(installation, file)):
            raise ValueError(f"init2winit has no {kind} {name!r}; it has {', '.join(known)}")
    if config.dataset in _BROKEN:
        raise ValueError(f"data set {config.dataset}: {_BROKEN[config.dataset]}")
    _check_data(config.dataset, request.data_dir)
    run = CheckedRun(
        model=config.model,
        dataset=config.dataset,
        num_train_steps=config.num_train_steps,
        experiment_dir=_experiment_dir(given["experiment_dir"]),
        worker_id=given["worker_id"],
        arguments=arguments,
    )
    note = _earlier(run, request, str(installation.revision))
    return dataclasses.replace(run, notes=(note,) if note else ())


def _with_config(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Its config's fields are read after the file, which is ours where none is given."""
    given = any(re.match(r"--?config(=|$)", each) for each in arguments)
    return arguments if given else (f"--config={CONFIG}", *arguments)


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
    for each in rest:
        name = each.lstrip("-").partition("=")[0]
        if each.startswith("-") and (name in config or name == "hparam_file"):
            raise ValueError(
                f"{each}: main.py has no such flag any more (since March 2026); its options are "
                f"fields of its config: --config.{_field(name)}=…"
            )
    given = {name: values[name].value for name in ("experiment_dir", "worker_id")}
    return given, config


def _field(name: str) -> str:
    return "hparam_overrides_json" if name in ("hparam_overrides", "hparam_file") else name


def registered(installation: Installation, file: str) -> list[str]:
    """Returns the names in one of its registries; reads the file and imports nothing."""
    text = (installation.directory / "init2winit" / file).read_text("utf-8")
    return re.findall(r"^    '(\w+)': ?(?:_Dataset)?\(", text, re.MULTILINE)


def _experiment_dir(given: str | None) -> Path:
    if not given:
        raise ValueError("init2winit's main.py needs --experiment_dir=DIR, after `--`")
    path = Path(given).expanduser()
    if not path.is_absolute():
        raise ValueError(
            f"--experiment_dir={given}: its checkpoints need an absolute path; give "
            f"--experiment_dir={path.resolve()}"
        )
    return path


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
                f"--data_dir={data_dir} lacks {', '.join(missing)} of {dataset}; `python -m "
                "workloads init2winit_data DIR --dataset=wikitext103` writes a small stand-in"
            )
    if dataset in _TFDS:
        home = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
        folder = Path(home).expanduser() / _TFDS[dataset]
        if not any(folder.glob("**/dataset_info.json")):
            raise ValueError(
                f"{folder} holds no prepared data, and tensorflow-datasets would download it; "
                "name a directory that does by --data_dir=DIR, before `--` (`python -m workloads "
                "init2winit_data DIR` writes a small stand-in for mnist, --dataset=librispeech "
                "for that), or prepare it: `tfds "
                f"build {_TFDS[dataset]} --data_dir={files.quoted(Path(home).expanduser())}`"
            )


def _earlier(run: CheckedRun, request: Request, commit: str) -> str | None:
    """A note where init2winit will go on from an earlier run's checkpoints; ValueError where these
    are another variant's, which it would not notice."""
    path = run.directory / META
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text("utf-8"))
    except ValueError:
        record = {}
    before = {key: record.get(key) for key in recorded(request, run)}
    now = recorded(request, run)
    differs = [
        key for key in ("attention", "attention_tau", "model", "dataset") if before[key] != now[key]
    ]
    if differs:
        words = ", ".join(f"{key} {before[key]!r}" for key in differs)
        raise ValueError(
            f"{run.directory} holds a run with {words}, whose checkpoints init2winit would go "
            "on from; give another --experiment_dir or --worker_id"
        )
    begun = record.get("init2winit_commit", commit)
    at = "" if begun == commit else f", which init2winit {begun} wrote; this is {commit}"
    return (
        f"{run.directory} holds a run ({record.get('status')}); init2winit goes on from its "
        f"last checkpoint{at}"
    )


def recorded(request: Request, run: CheckedRun) -> dict[str, Any]:
    """Returns what meta_data.json gains: what init2winit itself does not write anywhere."""
    mixer, *modifiers = request.attention.split("+")
    return {
        "attention": "+".join((mixer, *sorted(modifiers))),
        "attention_tau": 1.0 if request.tau is None else request.tau,
        "model": run.model,
        "dataset": run.dataset,
        "num_train_steps": run.num_train_steps,
    }
