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

from attention.hosts import host_attention, probe
from attention.kernels.library import SPAN
from attention.kernels.masks import merged
from attention.variant import Variant

Array = jax.Array
DepthRule = Callable[[str], int | Array]

# Arguments flax's own function has, and the one extra that AlgoPerf's Conformer adds
# (algoperf/workloads/librispeech_conformer/librispeech_jax/models.py).
_FLAX_ARGUMENTS = frozenset(inspect.signature(nn.dot_product_attention).parameters)
_OUTPUT_FACTOR = "temperature"


@contextlib.contextmanager
def injected(variant: Variant, depth: DepthRule | None = None) -> Iterator[None]:
    """Puts `variant` into every `nn.MultiHeadDotProductAttention` called inside the context.

    The parameter tree stays the host's for `standard` and `laser`; `qk_norm`, `per_dim_temp` and
    the differential mixers add leaves beside the host's projections. flax's default attention
    function is replaced by the variant; any other is wrapped, so that what it does to the query
    survives, and a factor it puts on its output (AlgoPerf's `temperature`) is applied last, after
    LASER's logarithm and the head norm.

    `depth` gives a layer's index from 0, possibly traced, from the path of its attention module
    ("encoderblock_3/MultiHeadDotProductAttention_0"):
    `lambda path: int(re.search(r"encoderblock_([0-9]+)", path)[1])`. `diff` and `diff_laser` need
    it (λ_init), because no rule could guess the order of somebody else's layers; other mixers
    do not call it.

    Raises RuntimeError on a clean exit that found nothing to inject into, as in a flax.nnx model;
    an exception in flight is never masked. Raises ValueError for a host function or setting a
    variant cannot serve, and for a differential mixer without a rule.
    """
    _check_rule(variant, depth)
    found = False

    def intercept(
        call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext
    ) -> Any:
        nonlocal found
        module = context.module
        if not isinstance(module, nn.MultiHeadDotProductAttention):
            return call(*args, **kwargs)
        if context.method_name != "__call__" or isinstance(module.attention_fn, _OURS):
            return call(*args, **kwargs)
        found = True
        _check_host(module, variant)
        index = _depth(depth, module.path) if depth and variant.needs_depth else None
        replacement = _Injected(variant, module.attention_fn, index)
        if probe.is_on():
            replacement.look(module, args, kwargs)
        return module.clone(parent=module.scope, attention_fn=replacement)(*args, **kwargs)

    with nn.intercept_methods(intercept):
        yield
    if not found:
        raise RuntimeError(
            f"nothing to inject {variant.name!r} into: no nn.MultiHeadDotProductAttention was "
            "called inside the context. Enter it around init or apply, inside the jitted "
            "function; models with an attention of their own need it rebuilt on that module. A "
            "flax.nnx model cannot be injected into: build its "
            "nnx.MultiHeadAttention with attention_fn=variant (variants without learned factors)"
        )


class _Injected:
    """An attention function that runs the variant around the host's own.

    Its signature is flax's in full: flax passes only what it finds there.
    """

    def __init__(
        self, variant: Variant, host: Callable[..., Array], depth: int | Array | None
    ) -> None:
        self.variant = variant
        self.host = host
        self.depth = depth
        self.seen: host_attention.HostAttention | None = None
        self.__signature__ = inspect.signature(nn.dot_product_attention)

    def look(self, module: nn.MultiHeadDotProductAttention, args: Any, kwargs: Any) -> None:
        """Has a host's own function say what its softmax sees, for `probe`."""
        if self.host is not nn.dot_product_attention:
            _, host = _split_output_factor(self.host)
            self.seen = host_attention.of_module(module, host, self.variant.prepare, args, kwargs)

    def __call__(self, query: Array, key: Array, value: Array, **settings: Any) -> Array:
        if self.host is nn.dot_product_attention:
            return self.variant(query, key, value, depth=self.depth, **settings)
        query, key = self.variant.prepare(query, key)
        factor, host = _split_output_factor(self.host)
        accepted = inspect.signature(host).parameters
        if self.seen is not None:
            settings["bias"] = self._recorded(self.seen, value, settings, "bias" in accepted)
        settings = {name: given for name, given in settings.items() if name in accepted}
        drops = settings.get("dropout_rate", 0.0) > 0.0 and not settings.get("deterministic", False)
        output = self.variant.through_host(
            functools.partial(host, query, key, **settings),
            value,
            masks=merged(
                query.shape[-3],
                key.shape[-3],
                mask=settings.get("mask"),
                bias=settings.get("bias"),
                is_causal=False,
            ),
            head_size=query.shape[-1],
            depth=self.depth,
            sums_to_one=not drops,
        )
        return output if factor is None else output * factor

    def _recorded(
        self,
        seen: host_attention.HostAttention,
        value: Array,
        settings: dict[str, Any],
        takes_bias: bool,
    ) -> Array | None:
        """Returns the bias for the host's function, with a probe where there are probes."""
        bias = settings.get("bias")
        probed = probe.record(
            seen.query,
            seen.key,
            value,
            mixer=self.variant.mixer,
            scale=seen.query.shape[-1] ** -0.5,
            span=SPAN,
            bias=bias,
            mask=settings.get("mask"),
            is_causal=False,
            precision=None,
            logits=(),
            host_probabilities=seen.probabilities,
        )
        if probed is not bias and not takes_bias:
            raise ValueError(
                "the host's attention function takes no bias, through which its logits are probed; "
                "observe it without probes"
            )
        return probed


# Attention functions that are not a host's own.
_OURS = (_Injected, host_attention.CallRecorder)


def _split_output_factor(
    host: Callable[..., Array],
) -> tuple[float | None, Callable[..., Array]]:
    """Returns the factor a host puts on its output, or None, and the host with factor 1."""
    parameter = inspect.signature(host).parameters.get(_OUTPUT_FACTOR)
    if parameter is None:
        return None, host
    return parameter.default, functools.partial(host, **{_OUTPUT_FACTOR: 1.0})


def _check_rule(variant: Variant, depth: DepthRule | None) -> None:
    """Raises ValueError where a rule is missing, or is not one, and for what is no variant."""
    if not isinstance(variant, Variant):
        raise ValueError(f"{variant!r} is no variant; give registry.get({variant!r})")
    if depth is None and variant.needs_depth:
        raise ValueError(
            f"{variant.name} needs each layer's depth (from 0) for λ_init, and the model "
            "does not say it: give injected(variant, depth=rule), rule(path) -> index, such as "
            "lambda path: int(re.search(r'encoderblock_([0-9]+)', path)[1])"
        )
    if depth is not None and not callable(depth):
        raise ValueError(
            f"depth={depth!r}: give a rule from an attention module's path to its layer's index; "
            "for one depth everywhere, lambda path: 0"
        )


def _depth(rule: DepthRule, path: tuple[str, ...]) -> int | Array:
    """Returns the rule's answer for a module's path; a rule that fails says at which path."""
    where = "/".join(path)
    try:
        index = rule(where)
    except Exception as error:
        error.add_note(f"raised by the depth rule given to injected, at path {where!r}")
        raise
    if index is None:
        raise ValueError(
            f"the depth rule given to injected returned None at path {where!r}; it must return "
            "the layer's index, an integer from 0"
        )
    return index


def _check_host(module: nn.MultiHeadDotProductAttention, variant: Variant) -> None:
    """Raises ValueError for a host that would silently become something else."""
    if getattr(module, "normalize_qk", False) and "qk_norm" in variant.modifiers:
        raise ValueError(
            f"the host already normalises queries and keys (normalize_qk=True), so "
            f"{variant.name!r} would do it twice; drop +qk_norm or the host's setting"
        )
    host = module.attention_fn
    if host is nn.dot_product_attention:
        return
    built = host.func if isinstance(host, functools.partial) else host
    if isinstance(built, Variant):
        raise ValueError(
            f"the host was built with attention_fn={built.name!r}; inject into the plain model"
        )
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
