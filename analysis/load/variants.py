"""How a variant is called in a table, in which group it stands, and in which order.

A canonical name is `mixer[+modifier...]` with its modifiers sorted (`laser+per_dim_temp`).
Names that are not in the tables below are shown as they are.
"""

MIXERS = {
    "standard": "Standard",
    "laser": "LASER",
    "diff": "Diff",
    "diff_laser": "Diff + LASER",
}
# Groups within which a table marks the best, where they are not the mixer's own.
GROUPS = {"diff_laser": "Diff"}
MODIFIERS = {"temp": "temp", "qk_norm": "QK-normalization", "per_dim_temp": "per-dim temp"}


def mixer(variant: str) -> str:
    """Returns the mixer's name: `laser` for `laser+temp`."""
    return variant.split("+")[0]


def modifiers(variant: str) -> tuple[str, ...]:
    """Returns the modifiers, sorted: `("temp",)` for `laser+temp`."""
    return tuple(sorted(variant.split("+")[1:]))


def group(variant: str) -> str:
    """Returns the name of the group within which a table marks the best: `LASER`, `Diff`."""
    return GROUPS.get(mixer(variant), mixer_label(variant))


def mixer_label(variant: str) -> str:
    """Returns the mixer as the paper writes it: `Diff + LASER` for `diff_laser+temp`."""
    return MIXERS.get(mixer(variant), mixer(variant))


def modifier_label(variant: str) -> str:
    """Returns the modifiers as the paper writes them: `+ QK-normalization`, empty for none."""
    return " ".join(f"+ {MODIFIERS.get(name, name)}" for name in modifiers(variant))


def label(variant: str) -> str:
    """Returns the paper's name: `LASER + per-dim temp` for `laser+per_dim_temp`."""
    return f"{mixer_label(variant)} {modifier_label(variant)}".strip()


def _rank(name: str, table: dict[str, str]) -> tuple[int, str]:
    return (list(table).index(name) if name in table else len(table), name)


def order(variant: str) -> tuple:
    """Returns a sort key: the groups in the order of MIXERS, in each the paper's row order."""
    ranks = tuple(_rank(name, MODIFIERS) for name in modifiers(variant))
    return (_rank(mixer(variant), MIXERS), len(ranks), ranks)
