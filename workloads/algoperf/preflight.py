"""What is checked before AlgoPerf is loaded: flags, workload, variant, data, paths.

Of the data: TFDS would download what is missing.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from attention import table
from workloads import algoperf_specs, catalog
from workloads.algoperf import data, supported, tiny_sizes
from workloads.algoperf.installation import Installation

# submission_runner.py marks these as required. Flags and defaults below are its own too.
REQUIRED = ("workload", "framework", "submission_path", "experiment_dir", "experiment_name")
_STRINGS = (
    *REQUIRED,
    "tuning_ruleset",
    "tuning_search_space",
    "data_dir",
    "imagenet_v2_data_dir",
    "librispeech_tokenizer_vocab_path",
    "hparam_start_index",
    "hparam_end_index",
    "rng_seed",
)
_BOOLEANS = ("skip_evals", "overwrite", "resume_last_run", "append_timestamp")
_DEFAULTS = {"data_dir": "~/data", "tuning_ruleset": "external"}


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
    """What the checks found: where the submission is imported from, evaluation sizes or None.

    `notes` are sentences for the user: what AlgoPerf will do otherwise than the flags suggest.
    """

    workload: str
    import_root: Path
    sizes: dict[str, int] | None
    notes: tuple[str, ...] = ()


def check_attention(attention: str, hyperparameters: dict[str, Any]) -> None:
    """Raises ValueError for a variant, as a command line names it, that is not known, or that lacks
    its temperature."""
    table.check(attention, hyperparameters)
    # A +temp variant with τ = 1 is the plain one under another name.
    if "temp" in attention.split("+") and "tau" not in hyperparameters:
        raise ValueError(
            f"--attention={attention} needs its temperature; give --tau=0.9, as studies do"
        )


def check(request: Request, installation: Installation) -> Admitted:
    """Returns what a run needs to know beside its request. Reads no data and loads no JAX.

    Raises ValueError with what to do: unknown variant, workload or framework, a flag that is
    required, a path that is missing, a directory that AlgoPerf would ask about.
    """
    check_attention(request.attention, request.hyperparameters)
    given = _parse(request.arguments)
    missing = [f"--{name}" for name in REQUIRED if not given[name]]
    if missing:
        raise ValueError(
            f"submission_runner.py needs {', '.join(missing)}; its flags follow after `--`"
        )
    if given["framework"] != "jax":
        raise ValueError(
            f"--framework={given['framework']}: variants are JAX code; give --framework=jax"
        )
    name = given["workload"]
    supported.injection_point(name)
    catalog.check_variant(algoperf_specs.PREFIX + name, request.attention)
    if not installation.registers(name):
        raise ValueError(
            f"AlgoPerf in {installation.directory} has no workload {name!r}; use a version that "
            "has it (finewebedu_lm: 1.0, commit f364a0b)"
        )
    base = data.base_of(name)
    _check_tokenizer(given, base)
    _check_resume(given)
    _check_experiment(given, name)
    _check_search_space(given, installation)
    directory = check_data(given, base)
    sizes = check_sizes(request.tiny, given, directory, base)
    root = _import_root(given["submission_path"], installation)
    return Admitted(name, root, sizes, _notes(given))


def _parse(arguments: Sequence[str]) -> dict[str, Any]:
    """The flags that are checked, read as absl reads them (`--flagfile` and all)."""
    values = flags.FlagValues()
    for name in _STRINGS:
        flags.DEFINE_string(name, _DEFAULTS.get(name), "", flag_values=values)
    for name in _BOOLEANS:
        flags.DEFINE_boolean(name, False, "", flag_values=values)
    values.set_gnu_getopt(True)
    try:
        values(["submission_runner.py", *arguments], known_only=True)
    except flags.Error as error:
        raise ValueError(f"submission_runner.py's flags: {error}") from error
    return {name: values[name].value for name in values}


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


def _check_resume(given: dict[str, Any]) -> None:
    """It restores eval_results as None and reads them as a dict (checkpoint_utils).

    Behind that: parameters with an axis for devices (its replicate_checkpoint), and no model has
    one any more.
    """
    if given["resume_last_run"]:
        raise ValueError(
            "--resume_last_run: AlgoPerf's JAX runs cannot resume (0.6 and 1.0); it stops while it "
            "restores a checkpoint ('NoneType' object has no attribute 'items'). Leave the flag "
            "out and start anew (another --experiment_name, or --overwrite); studies of `python "
            f"-m sweeps` with --config.workload=algoperf:{given['workload']} do resume"
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
    directory = root / given["experiment_name"] / f"{workload}_jax"
    if directory.exists() and not given["overwrite"]:
        raise ValueError(f"{directory} exists. Give another --experiment_name, or --overwrite")


def _check_search_space(given: dict[str, Any], installation: Installation) -> None:
    """One is wanted by the external tuning ruleset and by no other (submission_runner.py)."""
    path = given["tuning_search_space"]
    external = given["tuning_ruleset"] == "external"
    if external != bool(path):
        wanted = "needs" if external else "takes no"
        raise ValueError(
            f"--tuning_ruleset={given['tuning_ruleset']} {wanted} --tuning_search_space"
        )
    if not path or Path(path).is_file():
        return
    theirs = installation.directory / path
    hint = f"; AlgoPerf has {theirs}" if theirs.is_file() else ""
    raise ValueError(f"--tuning_search_space={path}: no such file in {Path.cwd()}{hint}")


def _import_root(submission: str, installation: Installation) -> Path:
    """Returns the directory below which `--submission_path` is a module.

    AlgoPerf imports `a/b.py` as `a.b`: from the working directory, its own, or ours.
    """
    path = Path(submission)
    ours = Path(__file__).resolve().parents[2]
    roots = dict.fromkeys((Path.cwd(), installation.directory, ours))
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


def _notes(given: dict[str, Any]) -> tuple[str, ...]:
    notes = []
    if os.environ.get("XLA_FLAGS"):
        notes.append(
            "submission_runner.py replaces XLA_FLAGS by a value of its own, so that yours has no "
            "effect; JAX's own variables have (JAX_NUM_CPU_DEVICES=2 for devices on a CPU)"
        )
    if given["rng_seed"] is not None and given["rng_seed"].strip() == "0":
        notes.append("AlgoPerf takes --rng_seed=0 for none and draws one; give another number")
    if given["hparam_start_index"] or given["hparam_end_index"]:
        notes.append(
            "AlgoPerf shuffles its search points anew, unseeded, in every process: slices by "
            "--hparam_start_index and --hparam_end_index of several processes overlap and miss "
            "points. Points in a fixed order: `python -m sweeps`"
        )
    return tuple(notes)


def check_data(given: Mapping[str, Any], base: str) -> Path:
    """Returns the data directory, in which everything that will be opened exists."""
    directory = Path(given["data_dir"]).expanduser()
    _check_parts(directory, data.TRAINING[base], "data_dir", base)
    if not evaluates(given):
        return directory
    _check_parts(directory, data.EVALUATION[base], "data_dir", base)
    if base == "imagenet_vit":
        second = given["imagenet_v2_data_dir"]
        where = Path(second).expanduser() if second else directory
        _check_parts(where, (data.IMAGENET_V2,), "imagenet_v2_data_dir", base)
    return directory


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
    tiny: bool, given: Mapping[str, Any], directory: Path, base: str
) -> dict[str, int] | None:
    """Returns the sizes that `--tiny` evaluates, None without it."""
    sizes = tiny_sizes.read_sizes(directory, base)
    if tiny and sizes is None:
        raise ValueError(
            f"--tiny: {directory} holds real data (no {tiny_sizes.MARKER} that names {base}); "
            "evaluations of it keep AlgoPerf's sizes"
        )
    if sizes is not None and not tiny and evaluates(given):
        raise ValueError(
            f"{directory} holds fabricated data of {sizes} examples, and AlgoPerf's evaluations "
            "divide by their real numbers (50,000 images). Give --tiny (before `--`), which "
            "evaluates what is there and says so in flags_0.json, or --skip_evals"
        )
    return sizes if tiny else None
