"""Study configurations: what they may say, where they are, how a command line changes them.

A study file defines `get_config()`, which starts from `base()`, and a docstring with the command,
the expected time and the expected result. Keys are locked: an unknown one is refused.
"""

import difflib
import pathlib
import sys
from typing import Any

import ml_collections
from absl import flags
from ml_collections import config_flags

from sweeps.launchers import table as launchers

SHIPPED = pathlib.Path(__file__).parent / "studies"
PROTOCOLS = ("tune_then_compare", "tune_each", "grid")
OPTIMIZERS = ("nadamw", "nadamw_optax", "adamw", "lamb")
PAPER_TABLES = (
    "vit_error",
    "conformer_wer",
    "lm_test_loss",
    "lm_lamb",
    "lm_precision",
    "lm_scaling",
    "bert_mlm_error",
)
# Keys that change who computes a study, and where, not what comes out.
_NOT_THE_RESULT = (
    "paper_table",
    "paper_note",
    "seeds",  # the table says how many
    "name",
    "experiment_dir",
    "data_dir",
    "algoperf_dir",
    "tokenizer_vocab_path",
    "loader_workers",
    "scan_layers",
    "remat",
    "mesh",
    "log_every",
    "diagnostics",
    "diagnostics_examples",
    "checkpoint_every",
    "launcher",
    "max_attempts",
    "pack",
    *launchers.NAMES,
)


def base() -> ml_collections.ConfigDict:
    """Returns every key with its default, locked."""
    config = ml_collections.ConfigDict()
    config.name = ""  # the study's directory below experiment_dir
    config.experiment_dir = "experiments"
    # What is compared, where.
    config.workload = ""
    config.variants = ("standard", "laser")
    config.baseline = "standard"  # what variants are compared with
    config.tau = 0.9  # τ of every `+temp` row; the paper does not print its own
    config.kernel = "xla"
    config.diff_head_norm = True  # Diff attention's norm per head; the paper does not say
    # How the model is computed; see workloads/options.py.
    config.compute_dtype = "float32"
    config.param_dtype = "float32"
    config.scan_layers = False
    config.remat = False
    config.mesh = ml_collections.ConfigDict()
    config.mesh.data = 0  # devices that share a batch; 0: all that fsdp and tensor leave
    config.mesh.fsdp = 1  # devices that share a batch and divide the parameters
    config.mesh.tensor = 1  # devices that divide heads, MLP and vocabulary
    config.data_dir = ""  # empty: the workload's default
    # For algoperf: workloads. AlgoPerf's checkout, empty: the installed one; the SentencePiece
    # model that speech was prepared with.
    config.algoperf_dir = ""
    config.tokenizer_vocab_path = ""
    # Table of the LASER paper to stand beside the measured one, as long as nothing that the
    # result depends on is changed; and what to know about it.
    config.paper_table = ""
    config.paper_note = ""
    config.loader_workers = 0  # processes that decode data for one trial; 0: threads only
    # How points become trials.
    config.protocol = "tune_then_compare"
    config.tuning_variant = "standard"
    config.space = "paper_nadamw"  # a shipped space, or a .json file
    config.points = 8
    config.tuning_seeds = 1
    config.seeds = 3
    # Budget; 0 is the workload's own.
    config.steps = 0
    config.step_hint = 0  # horizon of the schedule; 0: as many as steps
    config.batch_size = 0
    config.eval_every = 0  # 0: a tenth of steps
    config.checkpoint_every = 0  # 0: at every evaluation
    config.log_every = 100  # loss and gradient norm, as AlgoPerf
    # What attention does, per layer, recorded every so many updates (0: never), before the first
    # and after the last; on the first examples of each seed's first batch. Results stay the same.
    config.diagnostics = 0
    config.diagnostics_examples = 8
    config.optimizer = "nadamw"
    # Who runs it.
    config.launcher = "local"  # or slurm, ray, kubernetes, skypilot: see docs/
    config.max_attempts = 3  # of one trial, preemptions not counted
    config.pack = 1  # trials of one program that run as one on one device, by vmap
    for name in launchers.NAMES:
        config[name] = ml_collections.ConfigDict(launchers.module(name).DEFAULTS)
    config.lock()
    return config


def parse(name: str, overrides: list[str]) -> ml_collections.ConfigDict:
    """Returns the config of a shipped study's name or a .py file, with `--config.key=value`.

    Raises ValueError for an unknown study or key, or a value of the wrong type.
    """
    path = _path(name)
    for override in overrides:
        if not override.startswith("--config.") or "=" not in override:
            raise ValueError(
                f"{override!r} is not understood; change the study by --config.KEY=VALUE"
            )
    values = flags.FlagValues()
    argv = ["sweeps", f"--config={path}", *overrides]
    config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=argv)
    try:
        values(argv)
        config = values.config
    except (AttributeError, LookupError, TypeError, ValueError, flags.Error) as error:
        raise ValueError(_explain(path, overrides, error)) from error
    if not isinstance(config, ml_collections.ConfigDict):
        raise ValueError(f"{path}: get_config() must return sweeps.config.base(), changed")
    _check_keys(path, config)
    changed = [override.removeprefix("--config.").split("=")[0] for override in overrides]
    _keep_or_drop_paper(config, changed)
    return config


def _keep_or_drop_paper(config: ml_collections.ConfigDict, changed: list[str]) -> None:
    """Takes the paper's table away from a study whose result depends on what was changed."""
    differing = [key for key in changed if key.split(".")[0] not in _NOT_THE_RESULT]
    if config.paper_table and differing:
        warn(
            f"the paper's table will not stand beside this study's: {', '.join(differing)} "
            "differs from the paper's protocol"
        )
        config.paper_table = ""


def _path(name: str) -> pathlib.Path:
    path = pathlib.Path(name)
    if path.suffix != ".py":
        path = SHIPPED / f"{name}.py"
    if path.is_file():
        return path
    shipped = shipped_names()
    nearest = difflib.get_close_matches(name, shipped, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    raise ValueError(f"no study {name!r}: give a .py file or one of {', '.join(shipped)}.{hint}")


def shipped_names() -> list[str]:
    """Returns the names of the studies that come with the package."""
    return sorted(file.stem for file in SHIPPED.glob("*.py") if file.stem != "__init__")


def docstring(name: str) -> str:
    """Returns a study file's docstring without running it."""
    import ast

    return ast.get_docstring(ast.parse(_path(name).read_text())) or ""


def _explain(path: pathlib.Path, overrides: list[str], error: BaseException) -> str:
    known = sorted(flat(base()))
    for override in overrides:
        key = override.removeprefix("--config.").split("=")[0]
        if key not in known:
            nearest = difflib.get_close_matches(key, known, n=1)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
            return f"unknown config key {key!r}. Known: {', '.join(known)}.{hint}"
    return f"{path} with {' '.join(overrides) or 'no overrides'}: {error}"


def _check_keys(path: pathlib.Path, config: ml_collections.ConfigDict) -> None:
    """Raises ValueError where a study file added or lost a key."""
    given, known = set(flat(config)), set(flat(base()))
    if given - known:
        raise ValueError(
            f"{path}: unknown config key {sorted(given - known)[0]!r}; start from "
            "sweeps.config.base() and leave it locked"
        )
    if known - given:
        raise ValueError(f"{path}: the config lacks {', '.join(sorted(known - given))}")


def completed(stored: dict[str, Any]) -> dict[str, Any]:
    """Returns a stored config with the defaults of keys that came later than it."""
    whole = base().to_dict()
    for key, value in stored.items():
        both = isinstance(value, dict) and isinstance(whole.get(key), dict)
        whole[key] = {**whole[key], **value} if both else value
    return whole


def flat(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """Returns {"local.workers": 2, ...}."""
    result: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, ml_collections.ConfigDict):
            result |= {f"{key}.{inner}": deep for inner, deep in flat(value).items()}
        else:
            result[key] = value
    return result


def warn(message: str) -> None:
    """Prints a warning that the user should see once."""
    print(f"warning: {message}", file=sys.stderr, flush=True)
