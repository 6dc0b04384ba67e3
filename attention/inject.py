"""Injection: a variant put into any Flax Linen model, unmodified.

The host must be built on `nn.MultiHeadDotProductAttention`. Inside `injected(variant)` every call
of such a module runs a clone of it, in the same scope, whose `attention_fn` is ours.

Interceptors are not part of jit's cache key: enter the context *inside* the traced function, and
keep one variant per jitted function.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
from flax import linen as nn

from attention import laser, shift
from attention.variant import Variant
from attention.visibility import visibility

Array = jax.Array

# Arguments flax's own function has, and the one extra that AlgoPerf's Conformer adds
# (algoperf/workloads/librispeech_conformer/librispeech_jax/models.py).
_FLAX_ARGUMENTS = frozenset(inspect.signature(nn.dot_product_attention).parameters)
_OUTPUT_FACTOR = "temperature"


@contextlib.contextmanager
def injected(variant: Variant) -> Iterator[None]:
    """Puts `variant` into every `nn.MultiHeadDotProductAttention` called inside the context.

    The parameter tree stays the host's for `standard` and `laser`; `qk_norm` and `per_dim_temp`
    add leaves beside the host's projections. flax's default attention function is replaced by
    the variant; any other is wrapped, so that what it does to the query survives, and a factor it
    puts on its output (AlgoPerf's `temperature`) is applied after LASER's logarithm.

    Raises RuntimeError on a clean exit that found nothing to inject into; an exception in flight
    is never masked. Raises ValueError for a host function or setting a variant cannot serve.
    """
    found = False

    def intercept(
        call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext
    ) -> Any:
        nonlocal found
        module = context.module
        if not isinstance(module, nn.MultiHeadDotProductAttention):
            return call(*args, **kwargs)
        if context.method_name != "__call__" or isinstance(module.attention_fn, _Injected):
            return call(*args, **kwargs)
        found = True
        _check_host(module, variant)
        replacement = _Injected(variant, module.attention_fn)
        return module.clone(parent=module.scope, attention_fn=replacement)(*args, **kwargs)

    with nn.intercept_methods(intercept):
        yield
    if not found:
        raise RuntimeError(
            f"nothing to inject {variant.name!r} into: no nn.MultiHeadDotProductAttention was "
            "called inside the context. Enter it around init or apply, inside the jitted "
            "function; models with an attention of their own need it rebuilt on that module"
        )


class _Injected:
    """An attention function that runs the variant around the host's own.

    Its signature is flax's in full: flax passes only what it finds there.
    """

    def __init__(self, variant: Variant, host: Callable[..., Array]) -> None:
        self.variant = variant
        self.host = host
        self.__signature__ = inspect.signature(nn.dot_product_attention)

    def __call__(self, query: Array, key: Array, value: Array, **settings: Any) -> Array:
        if self.host is nn.dot_product_attention:
            return self.variant(query, key, value, **settings)
        return _around(self.variant, self.host, query, key, value, settings)


def _around(
    variant: Variant,
    host: Callable[..., Array],
    query: Array,
    key: Array,
    value: Array,
    settings: dict[str, Any],
) -> Array:
    """Returns the variant computed through a foreign attention function."""
    query, key = variant.modify(query, key)
    if variant.tau != 1.0:
        query = query / variant.tau
    factor, host = _split_output_factor(host)
    accepted = inspect.signature(host).parameters
    settings = {name: given for name, given in settings.items() if name in accepted}
    attend = functools.partial(host, query, key, **settings)
    if variant.mixer == "standard":
        return attend(value) * factor if factor is not None else attend(value)
    drops = settings.get("dropout_rate", 0.0) > 0.0 and not settings.get("deterministic", False)
    output = laser.log_mean_exp(
        attend,
        value,
        visibility(
            query.shape[-3],
            key.shape[-3],
            mask=settings.get("mask"),
            bias=settings.get("bias"),
            is_causal=False,
        ),
        span=shift.LIBRARY_SPAN,
        sums_to_one=not drops,
    )
    return output if factor is None else output * factor


def _split_output_factor(
    host: Callable[..., Array],
) -> tuple[float | None, Callable[..., Array]]:
    """Returns the factor a host puts on its output, or None, and the host with factor 1."""
    parameter = inspect.signature(host).parameters.get(_OUTPUT_FACTOR)
    if parameter is None:
        return None, host
    return parameter.default, functools.partial(host, **{_OUTPUT_FACTOR: 1.0})


def _check_host(module: nn.MultiHeadDotProductAttention, variant: Variant) -> None:
    """Raises ValueError for a host that would silently become something else."""
    if getattr(module, "normalize_qk", False) and "qk_norm" in variant.modifiers:
        raise ValueError(
            f"the host already normalises queries and keys (normalize_qk=True), so "
            f"{variant.name!r} would do it twice; drop +qk_norm or the host's setting"
        )
    host = module.attention_fn
    if host is nn.dot_product_attention or isinstance(host, Variant):
        if isinstance(host, Variant):
            raise ValueError(
                f"the host was built with attention_fn={host.name!r}; inject into the plain model"
            )
        return
    extra = set(inspect.signature(host).parameters) - _FLAX_ARGUMENTS - {_OUTPUT_FACTOR}
    if extra:
        raise ValueError(
            f"the host's attention function takes {', '.join(sorted(extra))}, which is not known "
            "to leave a weighted mean of the values; pass the variant as attention_fn instead"
        )
    if variant.kernel != "xla":
        raise ValueError(
            f"kernel={variant.kernel!r} cannot run through the host's own attention function; "
            "use kernel='xla', which leaves the sum to the host"
        )
