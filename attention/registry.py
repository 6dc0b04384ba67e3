"""The registry: names of variants, and variants by name. Loads JAX only in `get`."""

import itertools
from typing import TYPE_CHECKING, Any

from attention import table

if TYPE_CHECKING:
    from attention.variant import Variant


def names() -> tuple[str, ...]:
    """Returns the canonical names of every mixer alone and with each modifier that it can have,
    mixers first to last in `table.MIXERS`.

    More modifiers may stand together: 'laser+qk_norm+temp'.
    """
    pairs = itertools.product(table.MIXERS, ("", *sorted(table.MODIFIERS)))
    return tuple(
        f"{mixer}+{modifier}" if modifier else mixer
        for mixer, modifier in pairs
        if not table.forbidden(mixer, (modifier,) if modifier else ())
    )


def get(name: str, *, kernel: str = "xla", **hyperparameters: Any) -> "Variant":
    """Returns the variant called `name`: `get("laser+temp", tau=0.9)`.

    The order of modifiers does not matter. `tau` (τ > 0, 1 unless given) belongs to `+temp`,
    `cap` (50 unless given) to `+softcap`, `head_norm` (True unless given: the RMSNorm of each pair)
    to `diff` and `diff_laser`.
    `kernel` says who computes the weighted sum (`backends.KERNELS`).

    Raises ValueError for an unknown name, hyperparameter or kernel, listing what exists and the
    nearest match. So it does for a combination that the mathematics forbids or the kernel cannot
    serve, for a value that a hyperparameter cannot have, and for an entry that has no code.
    """
    table.check(name, hyperparameters, kernel)
    from attention import records, variant

    mixer, modifiers = table.parse(name)
    records.mixer(mixer)
    for modifier in modifiers:
        records.modifier(modifier)
    return variant.Variant(
        mixer, modifiers, kernel, tuple(table.checked(name, hyperparameters).items())
    )
