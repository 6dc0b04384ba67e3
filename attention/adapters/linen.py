"""Learned leaves of a variant that a Flax Linen module calls: parameters of that module."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import errors as flax_errors
from flax import linen as nn

from attention.records import Leaf, Leaves

Array = jax.Array


class _LeafModule(nn.Module):
    """A module's learned leaves, float32."""

    declared: tuple[Leaf, ...]

    @nn.compact
    def __call__(self) -> dict[str, Array]:
        """Returns the leaves by path."""
        return {
            leaf.path: self.param(leaf.path.split("/")[1], leaf.start, leaf.shape, jnp.float32)
            for leaf in self.declared
        }


def leaves(variant: str, declared: Sequence[Leaf]) -> Leaves:
    """Returns the declared leaves, made in the Flax module that calls.

    Raises ValueError if no module calls, or it has leaves of that name already.
    """
    made: dict[str, Array] = {}
    for module, parts in itertools.groupby(declared, lambda leaf: leaf.path.split("/")[0]):
        with _learning(variant, module):
            made |= _LeafModule(tuple(parts), name=module)()
    return made


@contextlib.contextmanager
def _learning(variant: str, name: str) -> Iterator[None]:
    """Says what to do if a model has no place for leaves called `name`, or has them."""
    try:
        yield
    except flax_errors.NameInUseError as error:
        model: Any = _LeafModule(()).parent
        if isinstance(model._state.children.get(name), _LeafModule):
            raise ValueError(
                f"{variant} is called twice in one module, {type(model).__name__}, and its learned "
                f"factors ({name}) can be made once: give each attention call a Flax module of its "
                "own"
            ) from error
        raise ValueError(
            f"the model already has what {variant} adds ({error}); drop the modifier, or the "
            "model's own (normalize_qk=True)"
        ) from error
    except flax_errors.CallCompactUnboundModuleError as error:
        raise ValueError(
            f"{variant} has learned factors and is called outside a Flax module of flax.linen: "
            "pass it as attention_fn there, use attention.inject.injected, or make the factors by "
            "variant.leaves(call, key) and give them to variant.attend(call, leaves=...)"
        ) from error
