"""Flax Linen: learned leaves as parameters of the module that calls, and injection into modules."""

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import errors as flax_errors
from flax import linen as nn

from attention import probe
from attention.adapters.injection import (
    CrossRule,
    Injection,
    InjectionError,
    LayerRule,
    NothingCalledError,
    check_normalised,
    layer_index,
)
from attention.call import Call
from attention.kernels.inputs import per_query_head
from attention.masks import merged
from attention.records import Leaf, Leaves
from attention.variant import AttentionFunction, Variant

_FLAX_ARGUMENTS = frozenset(inspect.signature(nn.dot_product_attention).parameters)
# What AlgoPerf's Conformer adds to flax's function: an argument that multiplies the output, and a
# module that scales the query (algoperf/workloads/librispeech_conformer/librispeech_jax/models.py).
_OUTPUT_FACTOR = "temperature"
_QUERY_SCALER = "QueryScaler"
_FLAX_WEIGHTS = nn.dot_product_attention_weights.__name__


class _LeafModule(nn.Module):
    """A module's learned leaves, float32."""

    declared: tuple[Leaf, ...]

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        """Returns the leaves by path."""
        return {
            leaf.path: self.param(leaf.path.split("/")[1], leaf.start, leaf.shape, jnp.float32)
            for leaf in self.declared
        }


def leaves(variant: str, declared: Sequence[Leaf]) -> Leaves:
    """Returns the declared leaves, made in the Flax module that calls.

    Raises ValueError if no module calls, or it has leaves of that name already.
    """
    made: dict[str, jax.Array] = {}
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


@contextlib.contextmanager
def followed(paths: list[str]) -> Iterator[None]:
    """Keeps in `paths` those of the modules that are being called, the innermost last."""

    def follow(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        paths.append("/".join(context.module.path))
        try:
            return call(*args, **kwargs)
        finally:
            paths.pop()

    with nn.intercept_methods(follow):
        yield


def injected(
    variant: Variant, layer: LayerRule | None, is_cross: CrossRule | None, float_masks: bool
) -> contextlib.AbstractContextManager[Injection]:
    """Puts a variant into modules called inside, as `attention.inject.injected` says."""

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
        "on that module. A flax.nnx model cannot be injected into: call "
        "attention.inject.assign(model, variant)",
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
def attending_by(module: Any, function: Callable[..., jax.Array]) -> Iterator[None]:
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
    model_function: Callable[..., jax.Array] = staticmethod(nn.dot_product_attention)
    inputs: Sequence[jax.Array] = ()
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

    def make_call(self, query: jax.Array, key: jax.Array, value: jax.Array, **masks: Any) -> Call:
        """Returns the call, checked. Arrays [..., T, W] among `inputs` are as long as queries."""
        fitting = [array for array in self.inputs if array.shape[:-1] == query.shape[:-2]]
        is_cross = len(fitting) > 1 if self.is_known_cross is None else self.is_known_cross
        self.about |= {"x": next(iter(fitting), None), "is_cross": is_cross}
        return super().make_call(query, key, value, **masks)

    def __call__(
        self, query: jax.Array, key: jax.Array, value: jax.Array, *masks: Any, **settings: Any
    ) -> Any:
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
        self, model_function: Callable[..., jax.Array], call: Call, settings: dict[str, Any]
    ) -> jax.Array:
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


def inputs_of(method: Callable[..., Any], args: Any, kwargs: Any) -> list[jax.Array]:
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


def _query_scaler(model_function: Any) -> Callable[[jax.Array], jax.Array] | None:
    """Returns what AlgoPerf's Conformer does to its query, None for another function.

    The rest of that function is flax's attention, so the variant computes it. The scaler's learned
    factors are made in the module that calls it.
    """
    python_function = getattr(model_function, "func", model_function)
    code = getattr(python_function, "__code__", None)
    if code is None or not {_QUERY_SCALER, _FLAX_WEIGHTS} <= set(code.co_names):
        return None

    def scale(query: jax.Array) -> jax.Array:
        scaler: nn.Module = python_function.__globals__[_QUERY_SCALER](dim=query.shape[-1])
        return scaler(query)

    return scale


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
