"""A fixed temperature: logits are divided by τ·√D (LASER, ICML 2025, section 5)."""

from collections.abc import Callable

from attention.records import Inputs, Leaves, Modifier


def apply(inputs: Inputs, *, tau: float) -> Inputs:
    """Returns the inputs with the temperature τ."""
    return inputs._replace(temperature=tau * inputs.temperature)


def formula(
    inputs: Inputs, leaves: Leaves, *, tau: float
) -> tuple[Inputs, Callable[[Inputs], tuple[Inputs, Leaves]]]:
    """Returns `apply` in float64; gradients with respect to the inputs are not touched."""
    del leaves
    return apply(inputs, tau=tau), lambda bars: (bars, {})


MODIFIER = Modifier("inputs", apply, formula)
