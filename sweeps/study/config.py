"""Study configurations: what they may say, where they are, how a command line changes them.

A study file defines `get_config()`, which starts from `base()`, and a docstring with the command,
the expected time and the expected result. Keys are locked: an unknown one is refused.
"""

import difflib
import os
import pathlib
import re
import runpy
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import ml_collections
from absl import flags
from ml_collections import config_flags

from attention import files, precision
from attention import table as variants_table
from sweeps.launchers import table as launchers
from sweeps.launchers.config_keys import PATH, Key, OneOf, Range, Text, shown
from sweeps.launchers.config_keys import check as check_keys
from sweeps.records import layout

SHIPPED = pathlib.Path(__file__).parents[1] / "studies"
PROTOCOLS = ("tune_then_compare", "tune_each", "grid")
OPTIMIZERS = ("nadamw", "nadamw_optax", "adamw", "lamb")
# Keys that studies once had, with the value at which they still mean what they meant, and why.
_LEFT = {
    "pack": (
        1,
        "trials are no longer computed as one by vmap, which was never faster: they run one after "
        "another, or side by side by local.workers",
    )
}
PAPER_TABLES = (
    "vit_error",
    "conformer_wer",
    "lm_test_loss",
    "lm_lamb",
    "lm_precision",
    "lm_scaling",
    "bert_mlm_error",
)
# Of a study; the largest that was simulated has 100,000 trials (docs/simulation.md).
MOST_VARIANTS, MOST_TRIALS = 100, 100_000
# Keys that change who computes a study, where, and how often, not what comes out of a trial.
_NOT_THE_RESULT = (
    "paper_table",
    "paper_note",
    "seeds",  # the table says how many
    "first_seed",
    "name",
    "experiment_dir",
    "data_dir",
    "algoperf_dir",
    "tokenizer_vocab_path",
    "init2winit_dir",
    "loader_workers",
    "scan_layers",
    "remat",
    "loss_chunk_tokens",
    "microbatches",
    "mesh",
    "log_every",
    "diagnostics",
    "diagnostics_examples",
    "checkpoint_every",
    "checkpoint_minutes",
    "tensorboard",
    "profile",
    "keep_checkpoints",
    "downstream",
    "launcher",
    "max_attempts",
    *launchers.NAMES,
)


def _own_keys() -> dict[str, Key]:
    """Returns the keys that are no launcher's."""
    steps, count = Range(0, 10**9), Range(1, 1000)
    name = Text("a name", most=200)
    return {
        "name": Key(
            "",
            "the study's directory below experiment_dir",
            Text(
                "a name without '/' and control characters that begins with neither '.' nor '-'",
                r"(?![.-])[^/\x00-\x1f\x7f-\x9f\ud800-\udfff]+",
                200,
            ),
        ),
        "experiment_dir": Key("experiments", "the folder of studies", PATH),
        # What is compared, where.
        "workload": Key("", "what is trained: see `python -m workloads list`", name),
        "variants": Key(
            ("standard", "laser"),
            f"rows of the table, at most {MOST_VARIANTS}: see `python -m attention list`",
        ),
        "baseline": Key("standard", "the variant that others are compared with", name),
        "tau": Key(
            0.9, "τ of every `+temp` row; the paper does not print its own", Range(1e-6, 1e6)
        ),
        "kernel": Key(
            "xla", "what computes attention: xla, jax_xla, cudnn (GPU) or splash (TPU)", name
        ),
        "diff_head_norm": Key(
            True, "Diff attention's norm per head; the paper does not say whether"
        ),
        **_attention_keys(),
        # How the model is computed; see workloads/base/options.py.
        "compute_dtype": Key("float32", "dtype of activations: float32 or bfloat16", name),
        "param_dtype": Key("float32", "dtype of parameters: float32 or bfloat16", name),
        "matmul_precision": Key(
            "default",
            "what products of float32 arrays are computed in, by jax's names; default: float32 on "
            "CPUs, TF32 on GPUs, bfloat16 on TPUs (attention/precision.py)",
            OneOf(precision.NAMES),
        ),
        "scan_layers": Key(False, "one compiled block, run in a loop over stacked parameters"),
        "remat": Key(False, "activations are computed again in the backward pass, not kept"),
        "loss_chunk_tokens": Key(
            0,
            "tokens of a device whose logits the loss of a language model has at a time; 0: all. "
            "Results differ by rounding alone",
            Range(0, 10**9),
        ),
        "mesh.data": Key(
            0, "devices that share a batch; 0: all that fsdp and tensor leave", Range(0, 65_536)
        ),
        "mesh.fsdp": Key(
            1, "devices that share a batch and divide the parameters", Range(1, 65_536)
        ),
        "mesh.tensor": Key(1, "devices that divide heads, MLP and vocabulary", Range(1, 65_536)),
        "data_dir": Key("", "where the data lie; empty: the workload's default", PATH),
        "algoperf_dir": Key(
            "", "of algoperf: workloads, AlgoPerf's checkout; empty: the installed one", PATH
        ),
        "tokenizer_vocab_path": Key(
            "",
            "of algoperf: workloads, the SentencePiece model that speech was prepared with",
            PATH,
        ),
        "init2winit_dir": Key(
            "",
            "of init2winit: workloads, its checkout; empty: ATTNPERF_INIT2WINIT_DIR",
            PATH,
        ),
        "init2winit_config": Key(
            "",
            "of init2winit: workloads, fields of its config and fixed hyperparameters, as "
            'JSON: {"dataset": "mnist", "hparam_overrides": {"width": 48}}',
            Text(),
        ),
        "paper_table": Key(
            "",
            "table of the LASER paper to stand beside the measured one, as long as nothing that "
            "the result depends on is changed",
            OneOf(("", *PAPER_TABLES)),
        ),
        "paper_note": Key("", "what to know about the paper's table", Text()),
        "loader_workers": Key(
            0,
            "processes that decode data for one trial, for evaluations as many; 0: threads only",
            Range(0, 256),
        ),
        # How points become trials.
        "protocol": Key(
            "tune_then_compare",
            "who is tuned: tuning_variant alone, each variant, or none (every point is compared)",
            OneOf(PROTOCOLS),
        ),
        "tuning_variant": Key("standard", "whose best point all take in tune_then_compare", name),
        "space": Key(
            "paper_nadamw",
            "search space: a shipped one, a .json file, or selected:STUDY for the point that a "
            "study of the same experiment_dir selected",
            PATH,
        ),
        "points": Key(8, "points of the space", Range(1, 10_000)),
        "tuning_seeds": Key(1, "seeds of a point in stage 'tune'", count),
        "first_seed": Key(0, "first seed of every stage", Range(0, layout.SEEDS_PER_POINT - 1)),
        "seeds": Key(3, "seeds of a variant in stage 'compare', of a point in 'grid'", count),
        # Budget.
        "steps": Key(0, "updates of a trial; 0: the workload's own number", steps),
        "step_hint": Key(0, "horizon of the schedule; 0: as many as steps", steps),
        "batch_size": Key(
            0, "examples of an update; 0: the workload's own number", Range(0, 1_048_576)
        ),
        "microbatches": Key(
            1,
            "parts of a batch that are computed one after the other, their gradients summed: less "
            "memory. Results differ by rounding alone, so models with BatchNorm are refused",
            Range(1, 65_536),
        ),
        "eval_every": Key(0, "updates between evaluations; 0: a tenth of steps", steps),
        "checkpoint_every": Key(0, "updates between checkpoints; 0: at every evaluation", steps),
        "checkpoint_minutes": Key(
            0,
            "minutes after which a checkpoint is due before the next one of checkpoint_every, "
            "looked at every log_every updates; 0: off",
            Range(0, 100_000),
        ),
        "keep_checkpoints": Key(
            1,
            "checkpoints that outlive a trial's training: the last ones that an evaluation goes "
            "with; 5 for ± over checkpoints by `sweeps evaluate`. Results stay the same",
            Range(1, 10_000),
        ),
        "downstream": Key(
            "",
            "suite that each trained model is evaluated by, of `python -m sweeps evaluate`, when "
            "its training is over; empty: none. Results of training stay the same",
            name,
        ),
        "finetune_from": Key(
            "",
            "another study, its directory or its name in experiment_dir: trials start from the "
            "parameters of its last checkpoints, same variant, same seed (or its seeds in turn); "
            "empty: from random ones",
            PATH,
        ),
        "log_every": Key(
            100,
            "updates between records of loss, gradient norm and speed, and between looks for a "
            "loss that is not finite",
            Range(1, 10**9),
        ),
        "tensorboard": Key(
            False, "event files of every figure in each trial's directory; pip's extra tensorboard"
        ),
        "profile": Key(
            "",
            "updates of every trial that jax.profiler traces, for ui.perfetto.dev: 100:110 are "
            "those from 100 to before 110; empty: none",
            Text("two whole numbers first:last", r"[0-9]{1,10}:[0-9]{1,10}", 21),
        ),
        "diagnostics": Key(
            0,
            "updates between records of what attention does in each layer, before the first and "
            "after the last too; 0: none. Results stay the same",
            steps,
        ),
        "diagnostics_examples": Key(
            8, "of each seed's first batch, that diagnostics look at", Range(1, 1_048_576)
        ),
        "optimizer": Key("nadamw", "the update rule", OneOf(OPTIMIZERS)),
        # Who runs it.
        "launcher": Key("local", "who runs the trials: see docs/", OneOf(launchers.NAMES)),
        "max_attempts": Key(3, "of one trial, preemptions not counted", Range(1, 100_000)),
    }


def _attention_keys() -> dict[str, Key]:
    """Returns a key per hyperparameter of the mixers and modifiers that has none of its own."""
    return {
        f"attention.{name}": Key(one.default, f"{name} of every row with {owner}")
        for table in (variants_table.MIXERS, variants_table.MODIFIERS)
        for owner, entry in table.items()
        for name, one in entry.hyperparameters.items()
        if name not in ("tau", "head_norm")
    }


def keys() -> dict[str, Key]:
    """Returns every key by its name, such as 'points' or 'slurm.gpus'."""
    found = _own_keys()
    for name in launchers.NAMES:
        own = launchers.launcher_class(name).KEYS
        found |= {f"{name}.{inner}": key for inner, key in own.items()}
    return found


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError for the first value of the wrong type or outside of its key's limits.

    A launcher's keys are left to the launcher that runs the study.
    """
    nested = {
        f"{group}.{name}": value
        for group in ("attention", "mesh")
        for name, value in settings[group].items()
    }
    check_keys(_own_keys(), {**settings, **nested})


def paths(settings: dict[str, Any]) -> dict[str, str]:
    """Returns the settings that are paths and not empty, as `files.typed_path` reads them.

    Raises ValueError naming the key.
    """
    found = {}
    for name, key in _own_keys().items():
        if key.allowed is PATH and settings[name]:
            try:
                found[name] = str(files.typed_path(settings[name]))
            except files.PathError as error:
                raise ValueError(f"{name}: {error}") from error
    return found


def describe(word: str = "") -> str:
    """Returns a line per key whose name holds `word`: default, meaning, allowed values.

    Raises ValueError where there is none.
    """
    found = {name: key for name, key in keys().items() if word in name}
    if not found:
        raise ValueError(f"no key has {shown(word)} in its name; see python -m sweeps keys")
    return "\n".join(
        f"{name}={key.default!r}\n    {key.meaning}\n    allowed: {key.describe()}"
        for name, key in found.items()
    )


def base() -> ml_collections.ConfigDict:
    """Returns every key with its default, locked."""
    config = ml_collections.ConfigDict()
    for name, key in keys().items():
        group, _, inner = name.rpartition(".")
        if group and group not in config:
            config[group] = ml_collections.ConfigDict()
        (config[group] if group else config)[inner] = key.default
    config.lock()
    return config


def parse(name: str, overrides: list[str]) -> ml_collections.ConfigDict:
    """Returns the config of a shipped study's name or a .py file, with `--config.key=value`.

    Raises ValueError for an unknown study or key, or a value of the wrong type.
    """
    path = _path(name)
    config = _load(path)
    _override(config, overrides, path)
    changed = [override.removeprefix("--config.").split("=")[0] for override in overrides]
    _keep_or_drop_paper(config, changed)
    return config


def _override(
    config: ml_collections.ConfigDict, overrides: list[str], path: pathlib.Path | str
) -> None:
    for override in overrides:
        if not override.startswith("--config.") or "=" not in override:
            raise ValueError(
                f"{override!r} is not understood; change the study by --config.KEY=VALUE"
            )
    values = flags.FlagValues()
    try:
        # Defines the flags of the overrides, too; a config that is given is not loaded again.
        config_flags.DEFINE_config_dict(
            "config", config, flag_values=values, sys_argv=["sweeps", *overrides]
        )
        values(["sweeps", *overrides])
    except (AttributeError, LookupError, TypeError, ValueError, flags.Error) as error:
        raise ValueError(_explain(path, overrides, error)) from error


def changed(
    settings: dict[str, Any], overrides: list[str], changeable: Sequence[str]
) -> dict[str, Any]:
    """Returns what `--config.key=value` change of a stored study's settings, whole groups of keys.

    changeable: the keys, and groups of keys, that may be given. Raises ValueError for another one,
    or a value of the wrong type.
    """
    config = base()
    config.update(settings)
    named = [override.removeprefix("--config.").split("=")[0] for override in overrides]
    _override(config, overrides, settings["name"])
    groups = dict.fromkeys(key.split(".")[0] for key in named)
    if others := [key for key in named if key.split(".")[0] not in changeable]:
        raise ValueError(
            f"{others[0]} is what the study was trained with, and stays; what may be given here: "
            f"{', '.join(changeable)}"
        )
    found = config.to_dict()
    check(found)
    return {group: found[group] for group in groups}


def _load(path: pathlib.Path) -> ml_collections.ConfigDict:
    """Returns what a study file's get_config() does, with the keys and types of `base`.

    Raises ValueError, with the line, for whatever goes wrong in a file that a person wrote.
    """
    try:
        make = runpy.run_path(str(path)).get("get_config")
        config = make() if callable(make) else None
    except (Exception, SystemExit) as error:
        lines = [
            f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)
        ]
        if isinstance(error, SyntaxError):
            lines = [error.lineno]
        where = f", line {lines[-1]}" if lines else ""
        raise ValueError(f"{path}{where}: {_told(error)}") from error
    if not isinstance(config, ml_collections.ConfigDict):
        raise ValueError(
            f"{path}: a study file defines get_config(), and that returns "
            "sweeps.study.config.base() with the changes it makes"
        )
    _check_keys(path, config)
    return config


# Modules that studies imported from `sweeps` before it had folders, to where they are now.
_MOVED = {
    "lm_config": "from sweeps import studies as lm_config",
    **dict.fromkeys(("config", "space", "halton", "trial", "study"), "from sweeps.study import {}"),
}


def _told(error: BaseException) -> str:
    """Returns an error in a study file in words; of a file of before, what it says today."""
    text = str(error)
    if (found := re.match(r"\W*Key \W(\w+)\W does not exist", text)) and found[1] in _LEFT:
        return f"{found[1]} has left: {_LEFT[found[1]][1]}. Leave the line out"
    found = re.search(r"cannot import name '(\w+)' from 'sweeps'|'sweeps\.(\w+)'", text)
    name = found[1] or found[2] if found and isinstance(error, ImportError) else ""
    remedy = f". It has moved: {_MOVED[name].format(name)}" if name in _MOVED else ""
    return f"{type(error).__name__}: {text}{remedy}"


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
    path = files.typed_path(name)
    if path.suffix != ".py":
        path = SHIPPED / f"{name}.py"
    if os.path.isfile(path):
        return path
    shipped = shipped_names()
    nearest = difflib.get_close_matches(name, shipped, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    raise ValueError(
        f"no study {shown(name)}: give a .py file or one of {', '.join(shipped)}.{hint}"
    )


def shipped_names() -> list[str]:
    """Returns the names of the studies that come with the package."""
    return sorted(file.stem for file in SHIPPED.glob("*.py") if file.stem != "__init__")


def docstring(name: str) -> str:
    """Returns a study file's docstring without running it."""
    import ast

    return ast.get_docstring(ast.parse(_path(name).read_bytes())) or ""


def _explain(path: pathlib.Path | str, overrides: list[str], error: BaseException) -> str:
    known = keys()
    for override in overrides:
        key = override.removeprefix("--config.").split("=")[0]
        if key in _LEFT:
            return f"{key} has left: {_LEFT[key][1]}. Leave {shown(override)} out"
        if key not in known:
            nearest = difflib.get_close_matches(key, known, n=1)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
            return f"unknown config key {shown(key)}.{hint} `python -m sweeps keys` lists them all"
        # The library calls it a flag, and says Python's types.
        if str(error).startswith(f"flag --config.{key}="):
            given = override.partition("=")[2]
            return f"{key} is {shown(given)}; it must be {known[key].describe()}"
    return f"{path} with {' '.join(overrides) or 'no overrides'}: {error}"


def _check_keys(path: pathlib.Path, config: ml_collections.ConfigDict) -> None:
    """Raises ValueError where a study file added or lost a key."""
    given, known = set(flat(config)), set(keys())
    if given - known:
        raise ValueError(
            f"{path}: unknown config key {sorted(given - known)[0]!r}; start from "
            "sweeps.study.config.base() and leave it locked"
        )
    if known - given:
        raise ValueError(f"{path}: the config lacks {', '.join(sorted(known - given))}")


def completed(stored: dict[str, Any]) -> dict[str, Any]:
    """Returns a stored config with the defaults of keys that came later than it.

    Raises ValueError where it has a key that has left, at a value that has no meaning any more.
    """
    whole = base().to_dict()
    for key, (meaningful, reason) in _LEFT.items():
        if stored.get(key, meaningful) != meaningful:
            raise ValueError(
                f"{key} is {shown(stored[key])} in the study.json of {stored.get('name')}, and "
                f"{reason}. Set it to {meaningful} there, which changes results by rounding alone, "
                "or finish the study with the version that began it"
            )
    stored = {key: value for key, value in stored.items() if key not in _LEFT}
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
