"""Injection: a variant put into any Flax Linen model, unmodified.

The model must be built on `nn.MultiHeadDotProductAttention`. Inside `injected(variant)` such a
module has our function as its `attention_fn` while it is called.

Interceptors are not part of jit's cache key: enter the context *inside* the traced function, and
keep one variant per jitted function. A model with `nn.jit` inside keeps the variant of its first
trace: one variant a process, or `jax.clear_caches()` between two.
"""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from flax import linen as nn
from flax.core import tracers

from attention import probe
from attention.call import Call, Memory
from attention.kernels.inputs import layer_number, per_query_head
from attention.masks import merged
from attention.variant import AttentionFunction, Variant

Array = jax.Array
LayerRule = Callable[[str], int | Array]
CrossRule = bool | Callable[[str], bool]
Injected = contextlib.AbstractContextManager["Injection"]

_FLAX_ARGUMENTS = frozenset(inspect.signature(nn.dot_product_attention).parameters)
# What AlgoPerf's Conformer adds to flax's function: an argument that multiplies the output, and a
# module that scales the query (algoperf/workloads/librispeech_conformer/librispeech_jax/models.py).
_OUTPUT_FACTOR = "temperature"
_QUERY_SCALER = "QueryScaler"
_FLAX_WEIGHTS = nn.dot_product_attention_weights.__name__


class InjectionError(RuntimeError, ValueError):
    """A variant did not run in a layer. A ValueError, too, which commands answer in a sentence."""


class NothingCalledError(InjectionError):
    """No attention module was called inside the context."""


@dataclasses.dataclass
class Injection:
    """The layers that ran a variant. `injected` fills it in while Flax modules run in Python.

    calls: how often a module called the variant, by its path
    ("encoderblock_3/MultiHeadDotProductAttention_0"; '' for a module that is the whole model).
    Tracing may call a module more than once, so only 0 and the paths have a meaning. classes: the
    modules' class names, by path. memory: what the layers called so far left. trace: the trace of
    JAX in which they left it.
    """

    calls: dict[str, int] = dataclasses.field(default_factory=dict)
    classes: dict[str, str] = dataclasses.field(default_factory=dict)
    memory: Memory = dataclasses.field(default_factory=dict)
    trace: Any = None

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

    def memory_of(self, variant: Variant, layer: int | Array | None, path: str) -> Memory | None:
        """Returns what earlier layers left for a layer, None if the variant has no memory.

        Raises ValueError inside nn.scan or nn.remat, whose layers cannot hand on what they leave.
        """
        if "memory" not in variant.needs:
            return None
        trace = tracers.current_trace()
        if isinstance(layer, int) and layer == 0:
            self.memory, self.trace = {}, trace
        elif trace != self.trace or not isinstance(layer, int):
            raise ValueError(
                f"{variant.name!r} hands values from layer to layer, from layer 0 on and not out "
                f"of nn.scan or nn.remat. At path {path!r} the layer's index is {layer}; build the "
                "model without them, and count layers from 0"
            )
        return self.memory

    def check(self, variant: Variant) -> None:
        """Raises RuntimeError if an attention module never called the variant."""
        unused = [path for path, count in self.calls.items() if not count]
        if unused:
            names = ", ".join(f"{self.classes[path]} at {path!r}" for path in unused)
            raise InjectionError(
                f"{variant.name!r} ran in {len(self.layers)} of {len(self.calls)} attention "
                f"modules. These never called their attention_fn: {names}. Their class computes "
                "attention in its own way; have it call self.attention_fn"
            )


def injected(
    variant: Variant,
    layer: LayerRule | None = None,
    is_cross: CrossRule | None = None,
    *,
    float_masks: bool = False,
) -> Injected:
    """Puts `variant` into every `nn.MultiHeadDotProductAttention` called inside the context.

    Yields an `Injection`, whose `layers` are the paths of the modules that ran the variant::

        with injected(variant) as injection:
            model.init(key, inputs)
        print(len(injection.layers), "attention layers")

    A jitted function adds its layers while it is traced, and none when its compiled program runs
    again.

    The parameter tree stays the model's for `standard` and `laser`; parts that learn add leaves
    beside the model's projections. The variant replaces flax's default attention function. It
    replaces the one of AlgoPerf's Conformer, too: its query scaler runs after the modifiers, its
    factor `temperature` last. Any other function is wrapped and keeps its softmax.

    layer: gives a layer's index from 0, possibly traced, from the path of its attention module:
    `lambda path: int(re.search(r"encoderblock_([0-9]+)", path)[1])`. `diff`, `diff_laser` and
    `value_residual` need it; other variants do not call it.

    is_cross: whether keys come from another sequence than the queries, for all modules or by path.
    `rope`, `window` and other parts need self-attention. Without this rule a module attends to
    itself if its queries and keys are made of one array.

    float_masks: the model cannot be changed and its masks are floats of 0 and 1, as flax's
    functions make them unless told `dtype=bool`. Otherwise masks of floats are refused.

    Raises RuntimeError on a clean exit if no module was called (as in a flax.nnx model), if a
    module never called its attention function, or if another variant is injected around this one.
    An exception in flight is never masked. Raises ValueError for a model's function or setting that
    a variant cannot serve, and for a variant that needs a rule without one.
    """
    check_rule(variant, layer)

    def attending(module: Any, function: InjectedFunction) -> Any:
        _check_module(module, variant)
        function.model_function, function.float_masks = module.attention_fn, float_masks
        function.has_cache = module.decode
        return attending_by(module, function)

    return injected_layers(
        variant,
        layer,
        lambda module: isinstance(module, nn.MultiHeadDotProductAttention),
        attending,
        "nn.MultiHeadDotProductAttention",
        is_cross=is_cross,
        advice=". Enter it around init or apply, inside the jitted function (a function that is "
        "compiled already calls no module); models with an attention of their own need it rebuilt "
        "on that module. A flax.nnx model cannot be injected into: build its "
        "nnx.MultiHeadAttention with attention_fn=variant (variants without learned factors)",
    )


@contextlib.contextmanager
def injected_layers(
    variant: Variant,
    layer: LayerRule | None,
    is_layer: Callable[[Any], bool],
    attending: Callable[[Any, "InjectedFunction"], contextlib.AbstractContextManager[object]],
    name: str,
    *,
    kind: "type[InjectedFunction] | None" = None,
    is_cross: CrossRule | None = None,
    advice: str = "",
) -> Iterator[Injection]:
    """Runs every call of a layer within `attending`, which gets the layer and the variant as the
    layer's attention function, and makes it the layer's `attention_fn`.

    name: of the layers' class; advice: what a message that none was called says next. kind: of the
    attention function. Raises RuntimeError as `injected`.
    """
    injection = Injection()

    def intercept(
        call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext
    ) -> Any:
        module, method = context.module, context.method_name
        if not is_layer(module):
            return call(*args, **kwargs)
        if method != "__call__":
            # Flax looks at the setup of a module by a method without a name.
            if method != "setup" and hasattr(type(module), method):
                injection.add(module, 0)
            return call(*args, **kwargs)
        running = getattr(module, "attention_fn", None)
        if isinstance(running, InjectedFunction):
            if running.injection is not injection:
                raise InjectionError(
                    f"{running.variant.name!r} is injected around {variant.name!r}, and a layer "
                    "has one variant: leave the outer context before you enter another"
                )
            # A subclass calls flax's method, whose arguments say more than the subclass's.
            running.take(context, args, kwargs, is_cross)
            return call(*args, **kwargs)
        path = "/".join(module.path)
        index = layer_index(variant, layer, path)
        memory = injection.memory_of(variant, index, path)
        function = (kind or InjectedFunction)(variant, index, memory=memory)
        function.injection = injection
        function.take(context, args, kwargs, is_cross)
        with attending(module, function):
            output = call(*args, **kwargs)
        injection.memory = function.memory or {}
        injection.add(module, function.calls)
        return output

    with nn.intercept_methods(intercept):
        yield injection
    if not injection.calls:
        raise NothingCalledError(
            f"nothing to inject {variant.name!r} into: no {name} was called inside the context"
            f"{advice}"
        )
    injection.check(variant)


@contextlib.contextmanager
def attending_by(module: Any, function: Callable[..., Array]) -> Iterator[None]:
    """Gives a module another `attention_fn` inside the context.

    The module itself, not a clone of it: Flax records the calls of both (capture_intermediates).
    """
    replaced = getattr(module, "attention_fn", None)
    object.__setattr__(module, "attention_fn", function)  # Flax freezes modules
    try:
        yield
    finally:
        object.__setattr__(module, "attention_fn", replaced)


class InjectedFunction(AttentionFunction):
    """The attention function of a module that a variant was injected into.

    injection: by which context. model_function: the model's own. flax's is replaced, and so is that
    of AlgoPerf's Conformer, whose query scaler and factor stay; around others the variant runs.
    inputs: arrays that the module's queries and keys are made of, each once, the queries' first.
    is_known_cross: what the user's rule says, None without a rule.
    """

    injection: Injection
    model_function: Callable[..., Array] = staticmethod(nn.dot_product_attention)
    inputs: Sequence[Array] = ()
    is_known_cross: bool | None = None

    def take(
        self,
        context: nn.module.InterceptorContext,
        args: Any,
        kwargs: Any,
        is_cross: CrossRule | None,
    ) -> None:
        """Notes the arguments of the module's call, and what the user's rule says of its path.

        Raises ValueError for a rule's answer that is no boolean.
        """
        path = "/".join(context.module.path)
        self.inputs = inputs_of(context.orig_method, args, kwargs)
        self.is_known_cross = is_cross(path) if callable(is_cross) else is_cross
        if is_cross is not None and self.is_known_cross not in (True, False):
            raise ValueError(
                f"is_cross given to injected is {self.is_known_cross!r} at path {path!r}; give "
                "True if keys come from another sequence than the queries, else False"
            )

    def make_call(self, query: Array, key: Array, value: Array, **masks: Any) -> Call:
        """Returns the call, checked. Arrays [..., T, W] among `inputs` are as long as queries."""
        fitting = [array for array in self.inputs if array.shape[:-1] == query.shape[:-2]]
        is_cross = len(fitting) > 1 if self.is_known_cross is None else self.is_known_cross
        self.about |= {"x": next(iter(fitting), None), "is_cross": is_cross}
        return super().make_call(query, key, value, **masks)

    def __call__(self, query: Array, key: Array, value: Array, *masks: Any, **settings: Any) -> Any:
        model_function, factor = self.model_function, None
        parameter = inspect.signature(model_function).parameters.get(_OUTPUT_FACTOR)
        if parameter is not None:
            factor = parameter.default
            model_function = functools.partial(model_function, **{_OUTPUT_FACTOR: 1.0})
        scaler = _query_scaler(model_function)
        if scaler is not None:
            settings["scale_query"] = scaler
        if scaler is not None or model_function is nn.dot_product_attention:
            output = super().__call__(query, key, value, *masks, **settings)
        else:
            settings |= zip(("bias", "mask"), masks, strict=False)
            masking = {name: settings.get(name) for name in ("bias", "mask")}
            call = self.make_call(query, key, value, **masking)
            output = self._around(model_function, call, settings)
        return output if factor is None else output * factor

    def _around(
        self, model_function: Callable[..., Array], call: Call, settings: dict[str, Any]
    ) -> Array:
        """Returns the output by the model's own function, of values that the variant hands it."""
        if probe.is_on():
            raise ValueError(
                "the model attends by a function of its own, which cannot be observed; leave "
                "diagnostics off"
            )
        self.calls += 1
        call = self.variant.prepare(call)
        self.memory = call.memory
        accepted = inspect.signature(model_function).parameters
        settings = {name: value for name, value in settings.items() if name in accepted}
        drops = settings.get("dropout_rate", 0.0) > 0.0 and not settings.get("deterministic", False)
        key = per_query_head(call.query, call.key)
        return self.variant.through_host(
            functools.partial(model_function, call.query, key, **settings),
            call,
            masks=merged(call.mask, call.query.shape[-3], key.shape[-3]),
            sums_to_one=not drops,
        )


def inputs_of(method: Callable[..., Any], args: Any, kwargs: Any) -> list[Array]:
    """Returns the arrays that a module's queries and keys are made of, each once.

    method: the module's, called with `args` and `kwargs`. Flax's names them inputs_q, inputs_k and
    inputs_kv. Of a method with other arguments they are all arrays of floats but masks.
    """
    arguments = inspect.signature(method).bind(*args, **kwargs).arguments | kwargs
    arrays: list[Any] = [arguments.get(name) for name in ("inputs_q", "inputs_k", "inputs_kv")]
    if "inputs_q" not in arguments:
        arrays = [
            leaf
            for leaf in jax.tree.leaves([arguments[key] for key in arguments if "mask" not in key])
            if jax.numpy.issubdtype(getattr(leaf, "dtype", bool), jax.numpy.floating)
        ]
    return list({id(array): array for array in arrays if getattr(array, "ndim", 0) > 1}.values())


def _query_scaler(model_function: Any) -> Callable[[Array], Array] | None:
    """Returns what AlgoPerf's Conformer does to its query, None for another function.

    The rest of that function is flax's attention, so the variant computes it. The scaler's learned
    factors are made in the module that calls it.
    """
    python_function = getattr(model_function, "func", model_function)
    code = getattr(python_function, "__code__", None)
    if code is None or not {_QUERY_SCALER, _FLAX_WEIGHTS} <= set(code.co_names):
        return None

    def scale(query: Array) -> Array:
        scaler: nn.Module = python_function.__globals__[_QUERY_SCALER](dim=query.shape[-1])
        return scaler(query)

    return scale


def check_rule(variant: Variant, layer: LayerRule | None) -> None:
    """Raises ValueError for a rule that is missing or no function, and for what is no variant."""
    if not isinstance(variant, Variant):
        raise ValueError(f"{variant!r} is no variant; give registry.get({variant!r})")
    if layer is None and "layer" in variant.needs:
        raise ValueError(
            f"{variant.name} needs each layer's index (from 0), and the model does not say it: "
            "give injected(variant, layer=rule), rule(path) -> index, such as "
            "lambda path: int(re.search(r'encoderblock_([0-9]+)', path)[1])"
        )
    if layer is not None and not callable(layer):
        raise ValueError(
            f"layer={layer!r}: give a rule from an attention module's path to its layer's index; "
            "for one index everywhere, lambda path: 0"
        )


def layer_index(variant: Variant, rule: LayerRule | None, path: str) -> int | Array | None:
    """Returns the rule's answer for a module's path, None for a variant that needs no index.

    A rule that fails says at which path. Raises ValueError for an answer that is no index.
    """
    if rule is None or "layer" not in variant.needs:
        return None
    try:
        return layer_number(rule(path))
    except Exception as error:
        error.add_note(f"raised by the layer rule given to injected, at path {path!r}")
        raise


def _check_module(module: nn.MultiHeadDotProductAttention, variant: Variant) -> None:
    """Raises ValueError for a module that would silently become something else."""
    check_normalised(getattr(module, "normalize_qk", False), variant)
    function = module.attention_fn
    if function is nn.dot_product_attention:
        return
    built = function.func if isinstance(function, functools.partial) else function
    built = built.variant if isinstance(built, AttentionFunction) else built
    if isinstance(built, Variant):
        raise ValueError(
            f"the model was built with attention_fn={built.name!r}; inject into the plain model"
        )
    extra = set(inspect.signature(function).parameters) - _FLAX_ARGUMENTS - {_OUTPUT_FACTOR}
    if extra:
        raise ValueError(
            f"the model's attention function takes {', '.join(sorted(extra))}, which is not known "
            "to leave a weighted mean of the values; pass the variant as attention_fn instead"
        )
    if variant.kernel != "xla" and _query_scaler(function) is None:
        raise ValueError(
            f"kernel={variant.kernel!r} cannot run through the model's own attention function; "
            "use kernel='xla', which leaves the sum to the model"
        )


def check_normalised(normalises: bool, variant: Variant) -> None:
    """Raises ValueError if a model that normalises queries and keys would do it twice."""
    twice = [name for name in ("qk_norm", "qk_rms_norm") if name in variant.modifiers]
    if normalises and twice:
        raise ValueError(
            f"the model already normalises queries and keys, so {variant.name!r} would do it "
            f"twice; drop +{twice[0]} or the model's setting"
        )
