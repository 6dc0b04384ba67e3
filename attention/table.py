"""The table of mixers, modifiers and their hyperparameters. Standard library only.

A variant is named `mixer[+modifier...]`. This table is what a driver checks a name against
without loading JAX; `attention.registry.get` turns a checked name into a callable. Adding a
mixer is one file with an `attend` function, one line in `MIXERS` and one in `variant.ATTEND`.
"""

import difflib
import importlib
import itertools
import math
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple


class Hyperparameter(NamedTuple):
    """`check` returns a value as the variant keeps it, or raises ValueError.

    `other`: a value beside the default, at which the output must be another (`check.unheard`).
    """

    check: Callable[[object], Any]
    default: Any
    other: Any


def check_tau(tau: object) -> float:
    """Returns τ as a float. Raises ValueError unless it is a number from 1e-30 to 1e30."""
    if isinstance(tau, bool) or not isinstance(tau, int | float):
        raise ValueError(
            f"tau={tau!r} is not a Python number: τ is part of a variant's identity and is "
            "compiled in, so it cannot be an array or a traced value"
        )
    try:
        tau = float(tau)
    except OverflowError:
        tau = math.inf
    if not (math.isfinite(tau) and tau > 0):
        raise ValueError(f"tau={tau!r}: logits are divided by τ·√D, so τ must be finite and > 0")
    if not 1e-30 <= tau <= 1e30:
        raise ValueError(f"tau={tau!r}: 1/τ must be a float32; give 1e-30 to 1e30")
    return tau


def check_head_norm(head_norm: object) -> bool:
    """Returns `head_norm`. Raises ValueError unless it is True or False."""
    if not isinstance(head_norm, bool):
        raise ValueError(f"head_norm={head_norm!r}: the norm after each pair is on (True) or off")
    return head_norm


class Entry(NamedTuple):
    """One line of the table: what `python -m attention list` prints, and what `get` accepts.

    `label`: as the paper writes it. `group`: of mixers, the label of the group within which a
    table marks the best, where it is not the mixer's own.

    Of mixers alone, as 'module:function', '' where there is none: `weights` makes the weights
    [..., H, T, S] that diagnostics look at, rows of a softmax, from an `observe.Layer`;
    `host_mean` makes the output from the weighted mean of a model that keeps its own softmax
    (signature of `standard.weighted_mean`).
    """

    formula: str
    parameters: str = "none"
    hyperparameters: Mapping[str, Hyperparameter] = types.MappingProxyType({})
    source: str = ""
    weights: str = ""
    host_mean: str = ""
    label: str = ""
    group: str = ""


_HEAD_NORM = Hyperparameter(check_head_norm, default=True, other=False)
_SOFTMAX = "attention.hosts.probe:softmax"

MIXERS: dict[str, Entry] = {
    "standard": Entry(
        "softmax(QKᵀ/√D)·V",
        source="arXiv:1706.03762, eq. 1",
        weights=_SOFTMAX,
        host_mean="attention.mixers.standard:weighted_mean",
        label="Standard",
    ),
    "laser": Entry(
        "log(softmax(QKᵀ/√D)·exp(V))",
        source="LASER, ICML 2025, eq. 6",
        weights=_SOFTMAX,
        host_mean="attention.mixers.laser:log_mean_exp",
        label="LASER",
    ),
    "diff": Entry(
        "(A₁ − λ·A₂)·V per pair of heads, A = softmax(QKᵀ/√D), then (1 − λ_init)·RMSNorm",
        parameters="4·D (vectors of λ, sd 0.1 at start) + 2·Dv (head norm's g, zero at start)",
        hyperparameters={"head_norm": _HEAD_NORM},
        source="arXiv:2410.05258, eq. 1-3; heads in pairs, depth needed (attention/mixers/diff.py)",
        weights=_SOFTMAX,  # of the two maps of a pair, each by itself
        host_mean="attention.mixers.standard:weighted_mean",
        label="Diff",
    ),
    "diff_laser": Entry(
        "log(A₁·exp(V)) − λ·log(A₂·exp(V)) per pair of heads, then (1 − λ_init)·RMSNorm",
        parameters="as diff",
        hyperparameters={"head_norm": _HEAD_NORM},
        source="LASER, ICML 2025, Differential Transformer experiment (mixers/diff_laser.py)",
        weights=_SOFTMAX,
        host_mean="attention.mixers.laser:log_mean_exp",
        label="Diff + LASER",
        group="Diff",
    ),
}

# In the order of the paper's rows.
MODIFIERS: dict[str, Entry] = {
    "temp": Entry(
        "QKᵀ/(τ·√D)",
        hyperparameters={"tau": Hyperparameter(check_tau, default=1.0, other=0.5)},
        source="LASER, ICML 2025, section 5",
        label="temp",
    ),
    "qk_norm": Entry(
        "Q, K ← (1 + g)·LayerNorm(Q), (1 + h)·LayerNorm(K) over D",
        parameters="2·D (g, h, zero at start)",
        source="arXiv:2302.05442",
        label="QK-normalization",
    ),
    "per_dim_temp": Entry(
        "Q ← 1.442695041·softplus(p)·Q",
        parameters="D (p, zero at start: exactly the mixer at initialisation)",
        source="AlgoPerf librispeech_conformer QueryScaler; praxis PerDimScale",
        label="per-dim temp",
    ),
}

# "jax_xla" and "cudnn" go through jax.nn.dot_product_attention; see attention/kernels/library.py.
KERNELS = ("xla", "jax_xla", "cudnn")

# The rows of the paper's ViT table, in its order.
PAPER_ROWS = (
    "standard",
    "standard+temp",
    "standard+qk_norm",
    "standard+per_dim_temp",
    "laser",
    "laser+temp",
    "laser+qk_norm",
    "laser+per_dim_temp",
)

# The mixers of the paper's Differential Transformer table: heads in pairs, values twice as wide.
DIFF_ROWS = ("diff", "diff_laser")


def canonical_names() -> tuple[str, ...]:
    """Returns every legal combination, modifiers sorted: 'standard', 'standard+per_dim_temp' ..."""
    subsets = [
        combination
        for size in range(len(MODIFIERS) + 1)
        for combination in itertools.combinations(sorted(MODIFIERS), size)
    ]
    return tuple("+".join((mixer, *subset)) for mixer in MIXERS for subset in subsets)


def parse(name: str) -> tuple[str, tuple[str, ...]]:
    """Returns (mixer, sorted modifiers) of a variant's name.

    Raises ValueError where a part is unknown or given twice; the message lists what exists and
    the nearest match.
    """
    if not isinstance(name, str):
        raise ValueError(f"a variant's name is a string such as 'laser+qk_norm'; got {name!r}")
    mixer, *modifiers = (part.strip() for part in name.split("+"))
    if mixer not in MIXERS:
        raise ValueError(unknown("mixer", mixer, MIXERS, f" in variant {name!r}"))
    for modifier in modifiers:
        if modifier not in MODIFIERS:
            raise ValueError(unknown("modifier", modifier, MODIFIERS, f" in variant {name!r}"))
    if len(set(modifiers)) < len(modifiers):
        raise ValueError(f"variant {name!r} names a modifier twice; each may be given once")
    return mixer, tuple(sorted(modifiers))


def canonical(name: str) -> str:
    """Returns the name with its modifiers sorted. Raises ValueError as `parse` does."""
    mixer, modifiers = parse(name)
    return "+".join((mixer, *modifiers))


def hyperparameters(name: str, tau: float, diff_head_norm: bool = True) -> dict[str, Any]:
    """Returns what `registry.get` takes for a variant in a study.

    `tau` goes to variants with `+temp`, `diff_head_norm` as `head_norm` to `diff` and
    `diff_laser`; what a variant does not have is left out.
    """
    given = {"tau": tau, "head_norm": diff_head_norm}
    return {key: given[key] for key in hyperparameters_of(name) if key in given}


def hyperparameters_of(name: str) -> dict[str, Hyperparameter]:
    """Returns the hyperparameters that a variant has, by name; its mixer's first."""
    mixer, modifiers = parse(name)
    entries = [MIXERS[mixer], *(MODIFIERS[modifier] for modifier in modifiers)]
    return {key: one for entry in entries for key, one in entry.hyperparameters.items()}


def check(name: str, hyperparameters: Mapping[str, object], kernel: str = "xla") -> None:
    """Raises ValueError unless `name`, its hyperparameters and the kernel's name can be used.

    `tau` (τ, a finite float above 0) belongs to `+temp` alone, `head_norm` (a bool) to `diff` and
    `diff_laser`. Whether a kernel runs on this machine is for the kernel to say.
    """
    checked(name, hyperparameters)
    if kernel not in KERNELS:
        raise ValueError(unknown("kernel", kernel, KERNELS))


def checked(name: str, hyperparameters: Mapping[str, object]) -> dict[str, Any]:
    """Returns all hyperparameters of a variant, those that are not given at their defaults.

    Raises ValueError for one that the variant has not, and for a value that it cannot have.
    """
    allowed = hyperparameters_of(name)
    for key in hyperparameters:
        if key not in allowed:
            raise ValueError(unknown("hyperparameter", key, allowed, f" of {name!r}{_owners(key)}"))
    return {k: one.check(hyperparameters.get(k, one.default)) for k, one in allowed.items()}


def _owners(key: str) -> str:
    """Returns where a hyperparameter that was refused belongs."""
    owners = [name for name, entry in MIXERS.items() if key in entry.hyperparameters]
    owners += [f"+{name}" for name, entry in MODIFIERS.items() if key in entry.hyperparameters]
    return f" ({key} goes with {' and '.join(owners)})" if owners else ""


def check_weights(name: str) -> None:
    """Raises ValueError where diagnostics cannot know a variant's weights."""
    mixer = parse(name)[0]
    if not MIXERS[mixer].weights:
        able = ", ".join(other for other, entry in MIXERS.items() if entry.weights)
        raise ValueError(
            f"no diagnostics of {name!r}: mixer {mixer!r} does not say its own weights "
            "(attention/table.py), and another's would be wrong figures. Set "
            f"--config.diagnostics=0, or leave the variant out; mixers that do: {able}"
        )


def check_host_mean(name: str, host: str) -> None:
    """Raises ValueError where a variant cannot be computed through `host`'s own softmax."""
    mixer = parse(name)[0]
    if not MIXERS[mixer].host_mean:
        able = ", ".join(other for other, entry in MIXERS.items() if entry.host_mean)
        raise ValueError(
            f"{host} cannot have {name!r}: its model keeps its own softmax, from whose weighted "
            f"mean mixer {mixer!r} is not made (attention/table.py); mixers that are: {able}"
        )


def function(reference: str) -> Callable[..., Any]:
    """Returns the function that 'module:function' names; loads the module."""
    module, name = reference.split(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def check_kernel(
    kernel: str, *, platform: str, dtype: str, head_size: int, value_size: int | None = None
) -> None:
    """Raises ValueError where a kernel cannot run: on this platform, dtype or head size.

    platform: 'cpu', 'gpu' or 'tpu'. `value_size` is the head size of V where it is not that of Q
    and K: `value_size(variant, head_size)`. Limits of `jax_xla` and cuDNN as
    jax.nn.dot_product_attention has them.
    """
    if kernel != "xla" and value_size not in (None, head_size):
        limit = "; cuDNN's limit of 256 holds for both" if kernel == "cudnn" else ""
        raise ValueError(
            f"kernel={kernel!r} wants the head size of V ({value_size}) to be that of Q and K "
            f"({head_size}){limit}. diff and diff_laser give a pair of heads one value of twice "
            "the size; use kernel='xla'"
        )
    if kernel != "cudnn":
        return
    if platform != "gpu":
        raise ValueError(
            f"kernel='cudnn' needs an NVIDIA GPU and JAX runs on {platform!r} here; "
            "use kernel='xla' or 'jax_xla'"
        )
    if dtype not in ("bfloat16", "float16"):
        raise ValueError(
            f"kernel='cudnn' computes in bfloat16 or float16, not {dtype}; "
            "cast the inputs (compute_dtype='bfloat16') or use kernel='xla'"
        )
    if head_size % 8 or head_size > 256:
        raise ValueError(
            f"kernel='cudnn' cannot do head size {head_size}: it must be a multiple of 8, at "
            "most 256; use kernel='xla'"
        )


def value_size(variant: str, head_size: int) -> int:
    """Returns the head size of V that a variant's kernel meets where a host's heads are all D.

    Differential mixers give both heads of a pair the pair's value: 2·D.
    """
    return 2 * head_size if parse(variant)[0] in DIFF_ROWS else head_size


def mixer(variant: str) -> str:
    """Returns the mixer's name: `laser` for `laser+temp`."""
    return variant.split("+")[0]


def modifiers(variant: str) -> tuple[str, ...]:
    """Returns the modifiers, sorted: `("temp",)` for `laser+temp`."""
    return tuple(sorted(variant.split("+")[1:]))


def mixer_label(variant: str) -> str:
    """Returns the mixer as the paper writes it: `Diff + LASER` for `diff_laser+temp`.

    Here and below names that the table does not have are shown as they are.
    """
    name = mixer(variant)
    return MIXERS[name].label if name in MIXERS else name


def modifier_label(variant: str) -> str:
    """Returns the modifiers as the paper writes them: `+ QK-normalization`, empty for none."""
    names = modifiers(variant)
    return " ".join(f"+ {MODIFIERS[name].label if name in MODIFIERS else name}" for name in names)


def label(variant: str) -> str:
    """Returns the paper's name: `LASER + per-dim temp` for `laser+per_dim_temp`."""
    return f"{mixer_label(variant)} {modifier_label(variant)}".strip()


def group(variant: str) -> str:
    """Returns the name of the group within which a table marks the best: `LASER`, `Diff`."""
    name = mixer(variant)
    return (MIXERS[name].group if name in MIXERS else "") or mixer_label(variant)


def order(variant: str) -> tuple[Any, ...]:
    """Returns a sort key: the groups in the order of MIXERS, in each the paper's row order."""

    def rank(name: str, table: Mapping[str, Entry]) -> tuple[int, str]:
        return (list(table).index(name) if name in table else len(table), name)

    ranks = tuple(rank(name, MODIFIERS) for name in modifiers(variant))
    return (rank(mixer(variant), MIXERS), len(ranks), ranks)


def unknown(kind: str, given: str, allowed: Iterable[str], where: str = "") -> str:
    """Returns the message for an unknown name: what exists, and the nearest match."""
    choices = list(allowed)
    nearest = difflib.get_close_matches(str(given), choices, n=1, cutoff=0.5)
    suggestion = f" Did you mean {nearest[0]!r}?" if nearest else ""
    listing = ", ".join(choices) if choices else "none"
    return f"unknown {kind} {given!r}{where}. Known: {listing}.{suggestion}"
