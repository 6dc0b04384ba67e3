"""Injection: a variant put into any Flax Linen model, unmodified.

The host must be built on `nn.MultiHeadDotProductAttention`. Inside `injected(variant)` such a
module has our function as its `attention_fn` while it is called.

Interceptors are not part of jit's cache key: enter the context *inside* the traced function, and
keep one variant per jitted function. A model with `nn.jit` inside keeps the variant of its first
trace: one variant a process, or `jax.clear_caches()` between two.
"""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
from flax import linen as nn

from attention.hosts import host_attention, probe
from attention.kernels.inputs import per_query_head
from attention.kernels.library import SPAN
from attention.kernels.masks import merged
from attention.variant import Variant

Array = jax.Array
DepthRule = Callable[[str], int | Array]

# Arguments flax's own function has, and the one extra that AlgoPerf's Conformer adds
# (algoperf/workloads/librispeech_conformer/librispeech_jax/models.py).
_FLAX_ARGUMENTS = frozenset(inspect.signature(nn.dot_product_attention).parameters)
_OUTPUT_FACTOR = "temperature"


class InjectionError(RuntimeError, ValueError):
    """A variant did not run where it was put. A ValueError too, which commands answer in words."""


@dataclasses.dataclass
class Injection:
    """Where a variant ran. `injected` fills it in while Flax modules are called in Python.

    calls: by the path of an attention module ("encoderblock_3/MultiHeadDotProductAttention_0", ''
    for a module that is the whole model), how often it called the variant. Tracing may call a
    module more than once; only 0 and the paths have a meaning. classes: the same paths, by class.
    """

    calls: dict[str, int] = dataclasses.field(default_factory=dict)
    classes: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def layers(self) -> tuple[str, ...]:
        """The paths of the attention modules that ran the variant, in the order of their calls.

        A layer inside `nn.scan` is one path, whatever the length of the loop. So is a module whose
        parameters several layers share.
        """
        return tuple(path for path, count in self.calls.items() if count)

    def add(self, module: nn.Module, calls: int) -> None:
        """Records that a module has returned, after this many calls of the variant."""
        path = "/".join(module.path)
        self.calls[path] = self.calls.get(path, 0) + calls
        self.classes[path] = type(module).__name__

    def check(self, variant: Variant) -> None:
        """Raises RuntimeError where an attention module never called the variant."""
        unused = [path for path, count in self.calls.items() if not count]
        if unused:
            names = ", ".join(f"{self.classes[path]} at {path!r}" for path in unused)
            raise InjectionError(
                f"{variant.name!r} ran in {len(self.layers)} of {len(self.calls)} attention "
                f"modules. These never called their attention_fn: {names}. Their class computes "
                "attention in its own way; have it call self.attention_fn"
            )


@contextlib.contextmanager
def injected(variant: Variant, depth: DepthRule | None = None) -> Iterator[Injection]:
    """Puts `variant` into every `nn.MultiHeadDotProductAttention` called inside the context.

    Yields an `Injection`, whose `layers` are the paths of the modules that ran the variant::

        with injected(variant) as injection:
            model.init(key, inputs)
        print(len(injection.layers), "attention layers")

    It sees what is called in Python: a jitted function adds its layers while it is traced, and
    none when its compiled program runs again.

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

    Raises RuntimeError on a clean exit that found nothing to inject into, as in a flax.nnx model,
    and where a module never called its attention function, as a subclass with a kernel of its own;
    an exception in flight is never masked. Raises ValueError for a host function or setting a
    variant cannot serve, and for a differential mixer without a rule.
    """
    _check_rule(variant, depth)
    injection = Injection()

    def intercept(
        call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext
    ) -> Any:
        module = context.module
        is_attention = isinstance(module, nn.MultiHeadDotProductAttention)
        if not is_attention or isinstance(module.attention_fn, _OURS):
            return call(*args, **kwargs)
        if context.method_name != "__call__":
            output = call(*args, **kwargs)
            # Flax looks at the setup of a module by a method without a name.
            if context.method_name != "setup" and hasattr(type(module), context.method_name):
                injection.add(module, 0)
            return output
        _check_host(module, variant)
        index = _depth(depth, module.path) if depth and variant.needs_depth else None
        replacement = _Injected(variant, module.attention_fn, index)
        if probe.is_on():
            replacement.look(module, args, kwargs)
        with attending_by(module, replacement):
            output = call(*args, **kwargs)
        injection.add(module, replacement.calls)
        return output

    with nn.intercept_methods(intercept):
        yield injection
    if not injection.calls:
        raise InjectionError(
            f"nothing to inject {variant.name!r} into: no nn.MultiHeadDotProductAttention was "
            "called inside the context. Enter it around init or apply, inside the jitted "
            "function (a function that is compiled already calls no module); models with an "
            "attention of their own need it rebuilt on that module. A "
            "flax.nnx model cannot be injected into: build its "
            "nnx.MultiHeadAttention with attention_fn=variant (variants without learned factors)"
        )
    injection.check(variant)


@contextlib.contextmanager
def attending_by(module: Any, function: Callable[..., Array]) -> Iterator[None]:
    """Gives a module another `attention_fn` inside the context.

    The module itself, not a clone of it: Flax records the calls of both (capture_intermediates).
    """
    host = module.attention_fn
    object.__setattr__(module, "attention_fn", function)  # Flax freezes modules
    try:
        yield
    finally:
        object.__setattr__(module, "attention_fn", host)


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
        self.calls = 0
        self.seen: host_attention.HostAttention | None = None
        self.__signature__ = inspect.signature(nn.dot_product_attention)

    def look(self, module: nn.MultiHeadDotProductAttention, args: Any, kwargs: Any) -> None:
        """Has a host's own function say what its softmax sees, for `probe`."""
        if self.host is not nn.dot_product_attention:
            _, host = _split_output_factor(self.host)
            self.seen = host_attention.of_module(module, host, self.variant.prepare, args, kwargs)

    def __call__(self, query: Array, key: Array, value: Array, **settings: Any) -> Array:
        self.calls += 1
        if self.host is nn.dot_product_attention:
            return self.variant(query, key, value, depth=self.depth, **settings)
        key, value = (per_query_head(query, array) for array in (key, value))
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
