"""The keys of a study: default, meaning, allowed values and role, each written once.

What may change when a study is continued, what the paper's table depends on, and what a trial's id
leaves out follow from the roles.
"""

from typing import Any

from attention import table as variants_table
from attention.common import files, precision
from sweeps.launchers import table as launchers
from sweeps.launchers.config_keys import PATH, Key, OneOf, Range, Role, Text, shown
from sweeps.launchers.config_keys import check as check_keys
from sweeps.records import layout
from workloads.base.options import POSITIONS

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
# Of a study; the largest that was simulated has 100,000 trials (docs/faults.md).
MOST_VARIANTS, MOST_TRIALS = 100, 100_000
# What to do with a study that another version recorded.
OTHER_VERSION = "Choose another --config.experiment_dir, or go on with the version that began it"


# Also of a number in a results file's study.json, and of `analysis table --margin`.
MARGIN = Text(
    "a positive number such as 0.01, or a per cent such as 0.5%",
    r"(?=[0-9.]*[1-9])([0-9]+\.?[0-9]*|\.[0-9]+)(e-?[0-9]{1,2})?%?",
    20,
)
_STEPS, _SEEDS = Range(0, 10**9), Range(1, 1000)
_NAME = Text("a name", most=200)
# A key per hyperparameter of mechanisms and modifiers but τ and Diff's norm.
_ATTENTION = {
    f"attention.{name}": Key(hyperparameter.default, f"{name} of every variant with {mechanism}")
    for table in (variants_table.MIXERS, variants_table.MODIFIERS)
    for mechanism, entry in table.items()
    for name, hyperparameter in entry.hyperparameters.items()
    if name not in ("tau", "head_norm")
}
# Keys that records of earlier versions have; '' is ignored there.
REMOVED = ("init2winit_dir", "init2winit_config")
# Of the study itself. Launchers have tables of their own.
OWN: dict[str, Key] = {
    "name": Key(
        "",
        "the study's directory below experiment_dir",
        Text(
            "a name without '/' and control characters that begins with neither '.' nor '-'. A "
            "study file that names no study gives it its own name; change it by "
            "--config.name=NAME",
            r"(?![.-])[^/\x00-\x1f\x7f-\x9f\ud800-\udfff]+",
            200,
        ),
        role=Role.FORM,
    ),
    "experiment_dir": Key("experiments", "the folder of studies", PATH, role=Role.PATH),
    # What is compared, where.
    "workload": Key(
        "",
        "what is trained: see `python -m workloads list`; of a module of yours, MODULE:NAME",
        _NAME,
    ),
    "variants": Key(
        ("standard", "laser"),
        f"what is compared, at most {MOST_VARIANTS}: see `python -m attention list`",
        role=Role.EXTENT,
    ),
    "baseline": Key(
        "standard", "the variant that others are compared with", _NAME, role=Role.EXTENT
    ),
    "tau": Key(
        0.9,
        "τ of every `+temp` variant; the paper does not print its own",
        Range(1e-6, 1e6),
    ),
    "kernel": Key(
        "xla",
        "what computes attention: xla, jax_xla, cudnn (GPU), splash (TPU) or fused (both)",
        _NAME,
    ),
    "diff_head_norm": Key(
        True,
        "Diff attention's norm per head; the paper does not say whether",
    ),
    **_ATTENTION,
    # How the model is computed; see workloads/base/options.py.
    "compute_dtype": Key("float32", "dtype of activations: float32 or bfloat16", _NAME),
    "param_dtype": Key("float32", "dtype of parameters: float32 or bfloat16", _NAME),
    "matmul_precision": Key(
        "default",
        "what products of float32 arrays are computed in, by jax's names; default: float32 on "
        "CPUs, TF32 on GPUs, bfloat16 on TPUs (attention/common/precision.py)",
        OneOf(precision.NAMES),
    ),
    "scan_layers": Key(
        False, "one compiled block, run in a loop over stacked parameters", role=Role.FORM
    ),
    "remat": Key(
        False, "activations are computed again in the backward pass, not kept", role=Role.ROUNDING
    ),
    "loss_chunk_tokens": Key(
        0,
        "tokens of a device whose logits the loss of a language model has at a time; 0: all. "
        "Results differ by rounding alone",
        Range(0, 10**9),
        role=Role.ROUNDING,
    ),
    "kv_heads": Key(
        0,
        "of a language model: heads of keys and values, each serving as many heads of queries; 0: "
        "as many as queries have",
        Range(0, 65_536),
    ),
    "positions": Key(
        "sinusoids",
        "of a language model: what is added to its embeddings; with +rope and +alibi nothing is",
        OneOf(POSITIONS),
    ),
    "global_every": Key(
        0,
        "of a language model: every so many layers one ignores +window; 0: none does",
        Range(0, 65_536),
    ),
    "document_mask": Key(
        False,
        "of a language model: a token sees its own document's tokens alone. Kernels: xla, fused, "
        "jax_xla, cudnn",
    ),
    "mesh.data": Key(
        0,
        "devices that share a batch; 0: all that fsdp and tensor leave",
        Range(0, 65_536),
        role=Role.ROUNDING,
    ),
    "mesh.fsdp": Key(
        1,
        "devices that share a batch and divide the parameters",
        Range(1, 65_536),
        role=Role.ROUNDING,
    ),
    "mesh.tensor": Key(
        1, "devices that divide heads, MLP and vocabulary", Range(1, 65_536), role=Role.ROUNDING
    ),
    "mesh.context": Key(
        1,
        "of a language model: devices that divide the tokens of each sequence. Kernels: xla, "
        "fused, jax_xla",
        Range(1, 65_536),
        role=Role.ROUNDING,
    ),
    "data_dir": Key("", "where the data lie; empty: the workload's default", PATH, role=Role.PATH),
    "algoperf_dir": Key(
        "",
        "of algoperf: workloads, AlgoPerf's checkout; empty: the installed one",
        PATH,
        role=Role.PATH,
    ),
    "tokenizer_vocab_path": Key(
        "",
        "of algoperf: workloads, the SentencePiece model that speech was prepared with",
        PATH,
        role=Role.PATH,
    ),
    "paper_table": Key(
        "",
        "table of the LASER paper to stand beside the measured one, as long as nothing that "
        "the result depends on is changed",
        OneOf(("", *PAPER_TABLES)),
        role=Role.TABLE,
    ),
    "paper_note": Key("", "what to know about the paper's table", Text(), role=Role.TABLE),
    "hypothesis": Key(
        "", "what the study asks, a sentence for `analysis ledger`", Text(), role=Role.TABLE
    ),
    "loader_workers": Key(
        0,
        "processes that decode data for one trial, for evaluations as many; 0: threads only",
        Range(0, 256),
        role=Role.RUNNER,
    ),
    # How points become trials.
    "protocol": Key(
        "tune_then_compare",
        "who is tuned: tuning_variant alone, each variant, or none (every point is compared). "
        "No interval of tune_each covers its choice of points: with 3 tuning seeds 16 % of studies "
        "tell equal variants apart. Those of grid do",
        OneOf(PROTOCOLS),
    ),
    "tuning_variant": Key("standard", "whose best point all take in tune_then_compare", _NAME),
    "space": Key(
        "paper_nadamw",
        "search space: a shipped one, a .json file, or selected:STUDY for the point that a "
        "study of the same experiment_dir selected",
        PATH,
        role=Role.EXTENT,
    ),
    "points": Key(8, "points of the space", Range(1, 10_000), role=Role.EXTENT),
    "tuning_seeds": Key(1, "seeds of a point in stage 'tune'", _SEEDS, role=Role.EXTENT),
    "first_seed": Key(
        0, "first seed of every stage", Range(0, layout.SEEDS_PER_POINT - 1), role=Role.FORM
    ),
    "seeds": Key(
        3, "seeds of a variant in stage 'compare', of a point in 'grid'", _SEEDS, role=Role.TABLE
    ),
    "looks": Key(
        (),
        "ascending numbers of seeds at which verdicts are given, such as 6,12: the last one is "
        "planned, and seeds is one of them, first 6, then 12. Thresholds: docs/analysis.md",
        Range(2, 1000),
        role=Role.FORM,
    ),
    "margin": Key(
        "",
        "difference that is practically none, in the metric's unit, or of the baseline's mean: "
        "0.5%. Variants shown to be nearer are called equal. Empty: none",
        MARGIN,
        role=Role.TABLE,
    ),
    # Budget.
    "steps": Key(0, "updates of a trial; 0: the workload's own number", _STEPS),
    "step_hint": Key(0, "horizon of the schedule; 0: as many as steps", _STEPS),
    "batch_size": Key(
        0,
        "examples of an update; 0: the workload's own number",
        Range(0, 1_048_576),
    ),
    "microbatches": Key(
        1,
        "parts of a batch that are computed one after the other, their gradients summed: less "
        "memory. Results differ by rounding alone, so models with BatchNorm are refused",
        Range(1, 65_536),
        role=Role.ROUNDING,
    ),
    "eval_every": Key(0, "updates between evaluations; 0: a tenth of steps", _STEPS),
    "checkpoint_every": Key(
        0, "updates between checkpoints; 0: at every evaluation", _STEPS, role=Role.OBSERVATION
    ),
    "checkpoint_minutes": Key(
        0,
        "minutes after which a checkpoint is due before the next one of checkpoint_every; 0: off",
        Range(0, 100_000),
        role=Role.OBSERVATION,
    ),
    "keep_checkpoints": Key(
        1,
        "checkpoints that outlive a trial's training: the last ones that an evaluation goes "
        "with; 5 for ± over checkpoints by `sweeps evaluate`. Results stay the same",
        Range(1, 10_000),
        role=Role.OBSERVATION,
    ),
    "downstream": Key(
        "",
        "suite that each trained model is evaluated by, of `python -m sweeps evaluate`, when "
        "its training is over; empty: none. Results of training stay the same",
        _NAME,
        role=Role.OBSERVATION,
    ),
    "finetune_from": Key(
        "",
        "another study, its directory or its name in experiment_dir: trials start from the "
        "parameters of its last checkpoints, same variant, same seed (or its seeds in turn); "
        "empty: from random ones",
        PATH,
        role=Role.EXTENT,
    ),
    "log_every": Key(
        100,
        "updates between records of loss, gradient norm and speed, and between looks for a "
        "loss that is not finite",
        Range(1, 10**9),
        role=Role.FORM,
    ),
    "tensorboard": Key(
        False,
        "event files of every figure in each trial's directory; pip's extra tensorboard",
        role=Role.OBSERVATION,
    ),
    "profile": Key(
        "",
        "updates of every trial that jax.profiler traces, for ui.perfetto.dev: 100:110 are "
        "those from 100 to before 110; empty: none",
        Text("two whole numbers first:last", r"[0-9]{1,10}:[0-9]{1,10}", 21),
        role=Role.OBSERVATION,
    ),
    "diagnostics": Key(
        0,
        "updates between records of what attention does in each layer, before the first and "
        "after the last too; 0: none. Results stay the same",
        _STEPS,
        role=Role.OBSERVATION,
    ),
    "diagnostics_examples": Key(
        8,
        "of each seed's first batch, that diagnostics look at",
        Range(1, 1_048_576),
        role=Role.OBSERVATION,
    ),
    "optimizer": Key("nadamw", "the update rule", OneOf(OPTIMIZERS)),
    # Who runs it.
    "launcher": Key(
        "local", "who runs the trials: see docs/", OneOf(launchers.CLASSES), role=Role.RUNNER
    ),
    "max_attempts": Key(
        3, "of one trial, preemptions not counted", Range(1, 100_000), role=Role.RUNNER
    ),
    "queue_warn_hours": Key(
        24,
        "hours in an engine's queue after which `run` and `status` name a job; 0: never",
        Range(0, 100_000),
        role=Role.RUNNER,
    ),
}


def roles() -> dict[str, Role]:
    """Returns the role of every key or group of keys: 'mesh' for 'mesh.data'."""
    study_roles = {name.split(".")[0]: key.role for name, key in OWN.items()}
    return study_roles | dict.fromkeys(launchers.CLASSES, Role.RUNNER)


def every() -> dict[str, Key]:
    """Returns every key by its name, such as 'points' or 'slurm.gpus'."""
    keys = dict(OWN)
    for name in launchers.CLASSES:
        for inner, key in launchers.launcher_class(name).KEYS.items():
            keys[f"{name}.{inner}"] = key._replace(role=Role.RUNNER)
    return keys


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError for the first value of the wrong type or outside of its key's limits.

    A launcher's keys are left to the launcher that runs the study.
    """
    nested = {
        f"{group}.{name}": value
        for group in ("attention", "mesh")
        for name, value in settings[group].items()
    }
    check_keys(OWN, {**settings, **nested})


def typed_paths(settings: dict[str, Any]) -> dict[str, str]:
    """Returns the settings that are paths and not empty, as `files.typed_path` reads them.

    Raises ValueError naming the key.
    """
    paths = {}
    for name, key in OWN.items():
        if key.allowed is PATH and settings[name]:
            try:
                paths[name] = str(files.typed_path(settings[name]))
            except files.PathError as error:
                raise ValueError(f"{name}: {error}") from error
    return paths


def describe(word: str = "") -> str:
    """Returns a line per key whose name holds `word`: default, meaning, allowed values.

    Raises ValueError if there is none.
    """
    matching = {name: key for name, key in every().items() if word in name}
    if not matching:
        raise ValueError(f"no key has {shown(word)} in its name; see python -m sweeps keys")
    return "\n".join(
        f"{name}={key.default!r}\n    {key.meaning}\n    allowed: {key.describe()}"
        for name, key in matching.items()
    )
