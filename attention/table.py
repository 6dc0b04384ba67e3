"""The table of mixers, modifiers and kernels. Standard library only.

A variant is named `mixer[+modifier...]`. This table is what a driver checks a name against without
loading JAX; `attention.records` finds the code, by name: mixer `x` is the record MIXER of
attention/mixers/x.py, modifier `x` the record MODIFIER of attention/modifiers/x.py. Adding either
is that file and one line here; a test holds that the two agree.
"""

import difflib
import re
import types
from collections.abc import Iterable, Mapping
from typing import Any

from attention.backends import KERNEL_NEEDS, KERNELS, check_needs
from attention.entries import MODEL_NEEDS, Entry, Hyperparameter, MixerEntry, ModifierEntry

_PAIRS = {
    "head_norm": Hyperparameter(True, False, "the norm after each pair is on or off", (True, False))
}

MIXERS: dict[str, MixerEntry] = {
    "standard": MixerEntry(
        "Standard",
        "softmax(QKᵀ/√D)·V",
        "arXiv:1706.03762, eq. 1",
        normalised=True,
    ),
    "laser": MixerEntry(
        "LASER",
        "log(softmax(QKᵀ/√D)·exp(V))",
        "LASER, ICML 2025, eq. 6",
        normalised=True,
    ),
    "diff": MixerEntry(
        "Diff",
        "(A₁ − λ·A₂)·V per pair of heads, A = softmax(QKᵀ/√D), then (1 − λ_init)·RMSNorm",
        "arXiv:2410.05258, eq. 1-3; heads in pairs, the layer's index in λ_init",
        parameters="4·D (vectors of λ, sd 0.1 at start) + 2·Dv (head norm's g, zero at start)",
        hyperparameters=_PAIRS,
        needs=("layer",),
        normalised=True,
        value_width=2,  # both heads of a pair are given the pair's value
    ),
    "diff_laser": MixerEntry(
        "Diff + LASER",
        "log(A₁·exp(V)) − λ·log(A₂·exp(V)) per pair of heads, then (1 − λ_init)·RMSNorm",
        "LASER, ICML 2025, Differential Transformer experiment (mixers/diff_laser.py)",
        parameters="as diff",
        hyperparameters=_PAIRS,
        needs=("layer",),
        group="Diff",
        normalised=True,
        value_width=2,
    ),
    "diff2": MixerEntry(
        "Diff V2",
        "A₁·V − σ(x·w)·A₂·V per head, A₂ of a second query",
        "Differential Transformer V2 (Microsoft, 2026-01)",
        parameters="W·H·D (second queries) + W·H (w, zero at start)",
        needs=("x", "inside"),
        normalised=True,
        maps=2,
    ),
    "diff2_laser": MixerEntry(
        "Diff V2 + LASER",
        "log(A₁·exp(V)) − σ(x·w)·log(A₂·exp(V)) per head",
        "as diff2, LASER in both branches",
        parameters="as diff2",
        needs=("x", "inside"),
        group="Diff V2",
        normalised=True,
        maps=2,
    ),
    "sigmoid": MixerEntry(
        "Sigmoid",
        "sigmoid(QKᵀ/√D − log S)·V, S the number of key positions",
        "arXiv:2409.04431",
        needs=("weighting", "inside"),
    ),
    "softpick": MixerEntry(
        "Softpick",
        "relu(e^s − 1)/(ε + Σ|e^s − 1|)·V, s = QKᵀ/√D, ε = 1e-6",
        "arXiv:2504.20966",
        needs=("weighting", "inside"),
    ),
    "stick_breaking": MixerEntry(
        "Stick-breaking",
        "σ(s_ij)·Π_{j<l<i}(1 − σ(s_il)) over earlier keys j < i, s = QKᵀ/√D",
        "arXiv:2410.17980",
        needs=("weighting", "running_sum", "strict", "causal", "self", "inside"),
    ),
}

# In the order of the paper's rows; the order of application is `records.Modifier.precedence`.
MODIFIERS: dict[str, ModifierEntry] = {
    "temp": ModifierEntry(
        "temp",
        "QKᵀ/(τ·√D)",
        "LASER, ICML 2025, section 5",
        hyperparameters={"tau": Hyperparameter(1.0, 0.5, "logits are divided by τ·√D")},
    ),
    "qk_norm": ModifierEntry(
        "QK-normalization",
        "Q, K ← (1 + g)·LayerNorm(Q), (1 + h)·LayerNorm(K) over D",
        "arXiv:2302.05442",
        parameters="2·D (g, h, zero at start)",
    ),
    "per_dim_temp": ModifierEntry(
        "per-dim temp",
        "Q ← 1.442695041·softplus(p)·Q",
        "AlgoPerf librispeech_conformer QueryScaler; praxis PerDimScale",
        parameters="D (p, zero at start: exactly the mixer at initialisation)",
    ),
    "softcap": ModifierEntry(
        "soft cap",
        "logits ← cap·tanh(logits/cap), before bias and mask",
        "Gemma 2, arXiv:2408.00118, section 2",
        hyperparameters={"cap": Hyperparameter(50.0, 5.0, "logits are kept between −cap and cap")},
        needs=("softcap", "inside"),
    ),
    "sink": ModifierEntry(
        "sink",
        "one more key per head, of value 0, with the logit s (learned, or 0: softmax1)",
        "gpt-oss, arXiv:2508.10925",
        parameters="H (s, zero at start)",
        hyperparameters={
            "learned": Hyperparameter(
                True, False, "the sink's logit is learned, or 0", (True, False)
            )
        },
        needs=("sink", "inside"),
        takes_weight=True,
    ),
    "gate": ModifierEntry(
        "gate",
        "Y ← Y·2σ(x·W_g), per channel or per head",
        "arXiv:2505.06708; start of marin",
        parameters="W·H·Dv or W·H (W_g, zero at start: exactly the mixer)",
        hyperparameters={
            "per": Hyperparameter(
                "channel", "head", "a gate for each channel or for each head", ("channel", "head")
            )
        },
        needs=("x",),
    ),
    "xsa": ModifierEntry(
        "XSA",
        "y_i ← y_i − (y_i·v_i/(‖v_i‖² + 1e-6))·v_i",
        "arXiv:2603.09078",
        needs=("self",),
    ),
    "qk_rms_norm": ModifierEntry(
        "QK-RMSNorm",
        "Q, K ← (1 + g)·Q/rms(Q), (1 + h)·K/rms(K) over D, ε = 1e-6",
        "Qwen3, arXiv:2505.09388; OLMo 2, arXiv:2501.00656",
        parameters="2·D (g, h, zero at start)",
    ),
    "value_residual": ModifierEntry(
        "value residual",
        "V ← a·V + b·V₀ in layers after the first, V₀ the first layer's",
        "arXiv:2410.17897, learnable form",
        parameters="2 (a − ½, b − ½, zero at start)",
        needs=("layer", "memory", "self"),
    ),
    "fox": ModifierEntry(
        "FoX",
        "logits_ij + c_i − c_j for j ≤ i, c_t = Σ_{l≤t} log σ(x_l·w + b)",
        "arXiv:2503.02130",
        parameters="W·H + H (w, b − log 99, zero at start)",
        needs=("x", "bias_vectors", "causal", "self", "inside"),
    ),
    "ssmax": ModifierEntry(
        "SSMax",
        "Q_i ← s·log(n_i)·Q_i, n_i the keys that query i sees",
        "arXiv:2501.19399",
        parameters="H (s, 1/log S at start)",
    ),
    "alibi": ModifierEntry(
        "ALiBi",
        "logits_ij − 2^(−8h/H)·|i − j|, h = 1 … H",
        "arXiv:2108.12409",
        needs=("score", "self", "inside"),
    ),
    "rope": ModifierEntry(
        "RoPE",
        "Q, K rotated by position, neighbouring channels in pairs",
        "arXiv:2104.09864",
        hyperparameters={
            "base": Hyperparameter(10_000.0, 10.0, "wavelengths of positions run up to 2π·base")
        },
        needs=("self",),
    ),
    "control": ModifierEntry(
        "control",
        "Q, K ← e^p·Q, e^−p·K: a row of a study that must find nothing",
        "ours (modifiers/control.py)",
        parameters="1 (p, 0.1 at start; the logits stay)",
    ),
    "window": ModifierEntry(
        "window",
        "a query sees keys fewer than width away",
        "Mistral 7B, arXiv:2310.06825",
        hyperparameters={
            "width": Hyperparameter(256, 8, "a query sees keys fewer than width away")
        },
        needs=("window", "self", "inside"),
    ),
}

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

# The mixers of the paper's Differential Transformer table.
DIFF_ROWS = ("diff", "diff_laser")


def forbidden(mixer: str, modifiers: Iterable[str]) -> str:
    """Returns why the mathematics forbids a combination, '' if it does not."""
    takers = [name for name in modifiers if MODIFIERS[name].takes_weight]
    if not takers or MIXERS[mixer].normalised:
        return ""
    able = ", ".join(name for name, entry in MIXERS.items() if entry.normalised)
    return (
        f"{takers[0]!r} takes weight from the others of a row, and mixer {mixer!r} has no "
        f"normaliser to take it from: every key has its weight by itself. Mixers that have: {able}"
    )


def parse(name: str) -> tuple[str, tuple[str, ...]]:
    """Returns (mixer, sorted modifiers) of a variant's name.

    Raises ValueError if a part is unknown or given twice, the message listing what exists and
    the nearest match, and if the mathematics forbids the combination, saying why.
    """
    if not isinstance(name, str):
        raise ValueError(f"a variant's name is a string such as 'laser+qk_norm'; got {name!r}")
    mixer, *modifiers = (part.strip() for part in name.split("+"))
    base = mixer.removesuffix("_laser")
    if mixer not in MIXERS and base in MIXERS and not MIXERS[base].normalised:
        able = ", ".join(known for known in MIXERS if "laser" in known)
        raise ValueError(
            f"there is no {mixer!r}: the weights of {base!r} may sum to 0, and LASER takes the "
            f"logarithm of their sum. Mixers with LASER: {able}"
        )
    for number, part in enumerate((mixer, *modifiers)):
        if part not in (MODIFIERS if number else MIXERS):
            raise ValueError(_misplaced(name, part, is_modifier=number > 0))
    if len(set(modifiers)) < len(modifiers):
        raise ValueError(f"variant {name!r} names a modifier twice; each may be given once")
    if why := forbidden(mixer, modifiers):
        raise ValueError(f"there is no variant {name!r}: {why}")
    return mixer, tuple(sorted(modifiers))


def _misplaced(name: str, part: str, is_modifier: bool) -> str:
    """Returns the message for a part of a variant's name that cannot stand at its place.

    It ends with the variant that the words of the name make, if they make one.
    """
    words = dict.fromkeys(re.findall(r"\w+", name.lower()))
    mixers = [word for word in words if word in MIXERS] or ["standard"]
    ordered = [*mixers, *sorted(word for word in words if word in MODIFIERS)]
    is_variant = len(mixers) == 1 and words.keys() <= {*ordered}
    meant = "+".join(ordered) if is_variant and not forbidden(mixers[0], ordered[1:]) else ""
    if part not in {*MIXERS, *MODIFIERS}:
        kind, known = ("modifier", MODIFIERS) if is_modifier else ("mixer", MIXERS)
        return unknown(kind, part, known, f" in variant {name!r}", meant)
    role = "an attention mechanism; one stands first, alone"
    if part in MODIFIERS:
        role = "a modifier; an attention mechanism stands before it"
    return f"variant {name!r}: {part!r} is {role}." + f" Did you mean {meant!r}?" * bool(meant)


def canonical(name: str) -> str:
    """Returns the name with its modifiers sorted. Raises ValueError as `parse` does."""
    mixer, modifiers = parse(name)
    return "+".join((mixer, *modifiers))


def hyperparameters(
    name: str,
    tau: float,
    diff_head_norm: bool = True,
    others: Mapping[str, Any] = types.MappingProxyType({}),
) -> dict[str, Any]:
    """Returns what `registry.get` takes for a variant in a study.

    `tau` goes to variants with `+temp`, `diff_head_norm` as `head_norm` to `diff` and
    `diff_laser`; `others` by their own names, at their defaults if they are not given.
    """
    given = {**others, "tau": tau, "head_norm": diff_head_norm}
    return {
        key: given.get(key, parameter.default)
        for key, parameter in hyperparameters_of(name).items()
    }


def entries_of(name: str) -> dict[str, Entry]:
    """Returns the lines of a variant by name, its mixer's first."""
    mixer, modifiers = parse(name)
    return {mixer: MIXERS[mixer], **{modifier: MODIFIERS[modifier] for modifier in modifiers}}


def hyperparameters_of(name: str) -> dict[str, Hyperparameter]:
    """Returns the hyperparameters that a variant has, by name; its mixer's first."""
    lines = entries_of(name).values()
    return {key: parameter for entry in lines for key, parameter in entry.hyperparameters.items()}


def check(name: str, hyperparameters: Mapping[str, object], kernel: str = "xla") -> None:
    """Raises ValueError unless `name`, its hyperparameters and the kernel can be used together.

    Whether a kernel runs on this machine is for the kernel to say.
    """
    checked(name, hyperparameters)
    if kernel not in KERNELS:
        raise ValueError(unknown("kernel", kernel, KERNELS))
    for part, entry in entries_of(name).items():
        check_needs(kernel, entry.needs, f"{name!r}, whose {part} needs it")


def needs_of(name: str) -> frozenset[str]:
    """Returns what a variant needs of a backend and of a model."""
    return frozenset(need for entry in entries_of(name).values() for need in entry.needs)


def kernels_of(name: str) -> tuple[str, ...]:
    """Returns the kernels that can serve a variant whose model's heads are all of one size."""
    wide = value_size(name, 1) > 1
    needs = needs_of(name) & frozenset(KERNEL_NEEDS)
    return tuple(
        kernel
        for kernel, limits in KERNELS.items()
        if not (wide and limits.one_head_size) and needs.issubset(limits.offers)
    )


def checked(name: str, hyperparameters: Mapping[str, object]) -> dict[str, Any]:
    """Returns all hyperparameters of a variant, those that are not given at their defaults.

    Raises ValueError for one that the variant has not, and for a value that it cannot have.
    """
    allowed = hyperparameters_of(name)
    for key in hyperparameters:
        if key not in allowed:
            owners = [line for line, entry in MIXERS.items() if key in entry.hyperparameters]
            owners += [
                f"+{line}" for line, entry in MODIFIERS.items() if key in entry.hyperparameters
            ]
            where = f" ({key} goes with {' and '.join(owners)})" if owners else ""
            raise ValueError(unknown("hyperparameter", key, allowed, f" of {name!r}{where}"))
    return {
        k: parameter.check(k, hyperparameters.get(k, parameter.default))
        for k, parameter in allowed.items()
    }


def check_model(name: str, lacks: Mapping[str, str], model: str) -> None:
    """Raises ValueError if a variant needs what a model lacks: {need, mixer or modifier: why}.

    `model` begins the message: "the model".
    """
    for part, entry in entries_of(name).items():
        for lack, why in lacks.items():
            if lack != part and lack not in entry.needs:
                continue
            needed = "" if lack == part else f", and {part!r} needs {MODEL_NEEDS[lack]}"
            table: Mapping[str, Entry] = MODIFIERS if part in MODIFIERS else MIXERS
            able = [other for other, entry in table.items() if not {other, *entry.needs} & {*lacks}]
            raise ValueError(
                f"{model} cannot have {name!r}: it {why}{needed}; drop {part!r}. "
                f"{'Modifiers' if part in MODIFIERS else 'Mixers'} that it can have: "
                f"{', '.join(able) or 'none'}"
            )


def value_size(variant: str, head_size: int) -> int:
    """Returns the head size of V that a variant's kernel meets if a host's heads are all D.

    Differential mixers give both heads of a pair the pair's value: 2·D.
    """
    return MIXERS[parse(variant)[0]].value_width * head_size


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


def label(variant: str) -> str:
    """Returns the paper's name: `LASER + per-dim temp` for `laser+per_dim_temp`."""
    names = modifiers(variant)
    labels = [MODIFIERS[name].label if name in MODIFIERS else name for name in names]
    return " + ".join((mixer_label(variant), *labels))


def group(variant: str) -> str:
    """Returns the name of the group within which a table marks the best: `LASER`, `Diff`."""
    name = mixer(variant)
    return (MIXERS[name].group if name in MIXERS else "") or mixer_label(variant)


def order(variant: str) -> tuple[Any, ...]:
    """Returns a sort key: the groups in the order of MIXERS, in each the paper's row order."""

    def rank(name: str, table: Mapping[str, Any]) -> tuple[int, str]:
        return (list(table).index(name) if name in table else len(table), name)

    ranks = tuple(rank(name, MODIFIERS) for name in modifiers(variant))
    return (rank(mixer(variant), MIXERS), len(ranks), ranks)


def unknown(kind: str, given: str, allowed: Iterable[str], where: str = "", meant: str = "") -> str:
    """Returns the message for an unknown name: what exists, and `meant` or the nearest match."""
    choices = list(allowed)
    nearest = [meant] if meant else difflib.get_close_matches(str(given).lower(), choices, 1, 0.5)
    suggestion = f" Did you mean {nearest[0]!r}?" if nearest else ""
    listing = ", ".join(choices) if choices else "none"
    return f"unknown {kind} {given!r}{where}. Known: {listing}.{suggestion}"
