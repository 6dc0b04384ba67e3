"""A fixed temperature: logits are divided by τ·√D (LASER, ICML 2025, section 5)."""

from attention.call import Call
from attention.records import Leaves, Modifier


def apply(call: Call, leaves: Leaves, *, tau: float) -> Call:
    """Returns the call with the temperature τ."""
    return call._replace(temperature=tau * call.temperature)


MODIFIER = Modifier("inputs", apply, apply, precedence=60)
