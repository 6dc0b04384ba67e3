"""Which device holds which part of a parameter: rules by path, for parameters and moments alike.

A rule is (regular expression, axes): the first one whose expression is found in a leaf's path
'a/b/c' gives mesh axes to its dimensions, counted from the last one backwards, so that leaves
stacked by scan_layers match as their single layers do. Optimizer moments have the paths of
their parameters at the end of their own, and are found by the same rules.
"""

import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

Rule = tuple[str, tuple[str | None, ...]]


def shardings(tree: Any, rules: Sequence[Rule], mesh: Mesh | AbstractMesh) -> Any:
    """Returns the tree of shardings for a tree of arrays or shapes; what no rule names is whole.

    Raises ValueError where a dimension is not a multiple of the devices that are to share it,
    with the path and the numbers.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: NamedSharding(mesh, _spec(_name(path), leaf.shape, rules, mesh)), tree
    )


def unmatched(tree: Any, rules: Sequence[Rule]) -> list[str]:
    """Returns the paths of leaves that no rule names, to be looked at when a model changes."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [
        name
        for path, _ in leaves
        if not any(re.search(rule, name := _name(path)) for rule, _ in rules)
    ]


def _name(path: Any) -> str:
    return "/".join(str(getattr(part, "key", getattr(part, "name", part))) for part in path)


def _spec(
    name: str, shape: tuple[int, ...], rules: Sequence[Rule], mesh: Mesh | AbstractMesh
) -> PartitionSpec:
    axes = next((axes for rule, axes in rules if re.search(rule, name)), ())
    axes = axes[: len(shape)] if shape else ()
    for distance, axis in enumerate(axes, 1):
        size = shape[-distance]
        if axis is not None and size % mesh.shape[axis]:
            raise ValueError(
                f"{name} of shape {shape}: dimension {len(shape) - distance} ({size}) cannot be "
                f"divided over {mesh.shape[axis]} devices of mesh axis {axis!r}; choose a size of "
                "the axis that divides it"
            )
    given = [axis for axis in reversed(axes)]
    return PartitionSpec(*[None] * (len(shape) - len(given)), *given)
