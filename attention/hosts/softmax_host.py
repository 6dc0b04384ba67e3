"""A variant computed through somebody else's softmax.

The host keeps its logits, masks and dropout. It gets queries and keys with the variant's modifiers
in them, and gives its weighted mean for whatever values it is handed: mixers work on the values.
"""

from collections.abc import Callable

import jax

from attention import table
from attention.kernels.masks import Visibility
from attention.mixers import head_pairs, shift
from attention.variant import Variant

Array = jax.Array


def prepared(variant: Variant, query: Array, key: Array) -> tuple[Array, Array]:
    """Returns query and key as the host gets them: modifiers and τ in them.

    Call it inside a Flax module's compact method, as `Variant.modify`.
    """
    query, key = variant.modify(query, key)
    return (query if variant.tau == 1.0 else query / variant.tau), key


def mixed(
    variant: Variant,
    attend: Callable[[Array], Array],
    value: Array,
    *,
    visible: Visibility,
    head_size: int,
    depth: int | Array | None,
    sums_to_one: bool,
) -> Array:
    """Returns the variant's output [..., T, H, Dv], in the value's dtype; value [..., S, H, Dv].

    `attend(values)` is the host's weighted mean, called once, because its own learned factors may
    be made by the call. Differential mixers hand it the values of pairs, [..., S, H, 2·Dv]; it
    need only be linear in them, whatever their size. `head_size` is that of the queries;
    `sums_to_one`: no dropout. Inside a compact method. Raises ValueError for a mixer that no
    weighted mean makes, and for an odd number of heads, and without a depth, where the mixer is
    differential.
    """
    if variant.mixer == "standard":  # the mean itself, as the host left it
        return attend(value)
    table.check_host_mean(variant.name, "the host")
    host_mean = table.function(table.MIXERS[variant.mixer].host_mean)

    def mean(values: Array) -> Array:
        result: Array = host_mean(
            lambda given: attend(given.astype(value.dtype)),
            value=values,
            visible=visible,
            dtype=value.dtype,
            span=shift.LIBRARY_SPAN,
            sums_to_one=sums_to_one,
        )
        return result

    if not variant.is_differential:
        return mean(value).astype(value.dtype)
    head_pairs.check_even(value.shape[-2])
    branches = mean(head_pairs.values_of_pairs(value))

    def difference(lambda_: Array) -> Array:
        return head_pairs.difference(branches, lambda_)

    result = variant.from_pairs(difference, head_size=head_size, depth=depth)
    return head_pairs.heads_of_pairs(result, value.dtype)
