"""A variant: one mixer with its modifiers, usable as a Flax `attention_fn`.

`AttentionFunction` is the `attention_fn` of one layer, with all that a variant may need.
"""

import dataclasses
import inspect
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from attention import probe, records, table
from attention.call import Call, LayerIndex, Memory
from attention.entries import Entry
from attention.functions import Leaves, Score
from attention.kernels import inputs
from attention.kernels.library import SPAN
from attention.masks import Bias, Mask, Masks

# Gives the learned leaves that a part declares, by path.
LeafSource = Callable[[Sequence[records.Leaf]], Leaves]


# Keywords of flax's function that no variant has. The softmax is always in float32.
_FLAX_ONLY = {
    "module": "sow_weights",
    "input_positions": "input_positions",
    "einsum_dot_general": "einsum_dot_general",
    "qk_attn_weights_einsum": "qk_attn_weights_einsum",
    "attn_weights_value_einsum": "attn_weights_value_einsum",
}

# What `flax.linen.dot_product_attention` takes: flax passes the keywords that a function's
# signature lists, and functools.partial checks its own.
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("query", "key", "value"), inspect.Parameter.empty),
    "bias": None,
    "mask": None,
    "broadcast_dropout": True,
    "dropout_rng": None,
    "dropout_rate": 0.0,
    "deterministic": False,
    "dtype": None,
    "precision": None,
    "module": None,
    "force_fp32_for_softmax": False,
    "einsum_dot_general": None,
    "qk_attn_weights_einsum": None,
    "attn_weights_value_einsum": None,
}
_FLAX_SIGNATURE = inspect.Signature(
    [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
        for name, default in _DEFAULTS.items()
    ]
)
_OURS = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
    for name in ("is_causal", "x", "layer", "scale")
]
_SIGNATURE = _FLAX_SIGNATURE.replace(parameters=[*_FLAX_SIGNATURE.parameters.values(), *_OURS])


@dataclasses.dataclass(frozen=True)
class Variant:
    """An attention variant: immutable, hashable, callable. Made by `attention.registry.get`.

    Equal variants compile to the same program; hyperparameters and the kernel are part of the
    identity. sharding: how the model's heads [B, T, H, D] lie on its devices; kernels `splash` and
    `fused` need it there, XLA divides the others itself.
    """

    mixer: str
    modifiers: tuple[str, ...] = ()
    kernel: str = "xla"
    settings: tuple[tuple[str, Any], ...] = ()
    sharding: NamedSharding | None = None

    @property
    def name(self) -> str:
        """Returns the canonical name, 'mixer+modifier...' with sorted modifiers."""
        return "+".join((self.mixer, *self.modifiers))

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Returns what `registry.get(name, **hyperparameters)` needs to make this variant again."""
        return dict(self.settings)

    @property
    def needs(self) -> frozenset[str]:
        """Returns what it needs: names of `backends.KERNEL_NEEDS` and `entries.MODEL_NEEDS`."""
        return table.needs_of(self.name)

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        bias: jax.Array | Bias | None = None,
        mask: jax.Array | Mask | None = None,
        *,
        is_causal: bool = False,
        x: jax.Array | None = None,
        layer: LayerIndex | int | jax.Array | None = None,
        deterministic: bool | None = None,
        **settings: Any,
    ) -> jax.Array:
        """Returns attention's output [..., T, H, Dv], as flax's `dot_product_attention` would.

        key and value may have fewer heads than the query. settings: other keywords of flax's
        function, and `scale` of `attend`. is_causal: query t sees keys 0..t,
        beside what the mask says. x [..., T, W]: the block's input. layer: its index from 0,
        possibly traced.

        Raises ValueError for quantised einsums and sown weights, for learned factors outside a Flax
        module, for what the variant needs and is not given, and for a variant with memory (call
        `attend`). A Flax module does not say whose keys they are: give it an
        `inject.AttentionFunction` if the variant needs self-attention.
        """
        if deterministic is not None:
            unsaid = (
                "does not say whether keys come from the queries' sequence (if they do, give "
                "attention_fn=attention.inject.AttentionFunction(variant, x=x), x the block's "
                "input)"
            )
            table.check_model(self.name, {"self": unsaid}, "this call by a Flax module")
            mask = inputs.from_cache(query, mask)
        call = inputs.make_call(
            query, key, value, x=x, layer=layer, bias=bias, mask=mask, is_causal=is_causal
        )
        return self.attend(call, deterministic=bool(deterministic), **settings)[0]

    __signature__ = _SIGNATURE

    @inputs.promoting
    def attend(
        self,
        call: Call,
        *,
        leaves: Mapping[str, jax.Array] | LeafSource | None = None,
        scale: float | None = None,
        scale_query: Callable[[jax.Array], jax.Array] | None = None,
        precision: jax.lax.PrecisionLike = None,
        broadcast_dropout: bool = True,
        dropout_rng: jax.Array | None = None,
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        dtype: Any = None,
        **flax_only: Any,
    ) -> tuple[jax.Array, Memory]:
        """Returns the output [..., T, H, Dv], in the query's dtype, and the memory to hand on.

        call: from `inputs.make_call`, with `memory` from the layer before ({} or `empty_memory` in
        the first). leaves: the learned ones by path, as `Variant.leaves` makes them, or a function
        that gives them; None: the Flax module that calls makes them. scale: multiplies the logits
        before τ divides them, D**-0.5 unless given. scale_query: what the model does to its
        queries, after modifiers. Other arguments are those of flax. Raises ValueError as
        `__call__`, and for leaves that are not this variant's.
        """
        _refuse_flax_only(self.name, flax_only)
        source = _source(self.name, leaves)
        if dtype is not None:
            arrays = {name: getattr(call, name).astype(dtype) for name in ("query", "key", "value")}
            call = call._replace(**arrays)
        self._check_call(call)
        mixer, settings = records.mixer(self.mixer), self.settings_of(table.MIXERS[self.mixer])
        mixer_leaves = _leaves(source, mixer, call, settings)
        changed = call._replace(mask=call.mask & mixer.mask)
        if mixer.inputs is not None:
            changed = mixer.inputs(changed, mixer_leaves, **settings)
        changed = self._modified(changed, source)
        if scale_query is not None:
            changed = changed._replace(query=scale_query(changed.query))
        query, scale = inputs.scaled(changed.query, scale)
        score, score_leaves = self._score(changed, source)
        shared: dict[str, Any] = {"score": score, "leaves": score_leaves, "precision": precision}
        changed = probe.record(
            changed._replace(query=query),
            scale=scale / changed.temperature,
            mixer=self.mixer,
            span=records.kernel(self.kernel).span,
            **shared,
        )
        shared |= {"dropout_rng": dropout_rng, "broadcast_dropout": broadcast_dropout}
        shared["dropout_rate"] = 0.0 if deterministic else dropout_rate
        output = inputs.solve(
            mixer, changed, scale=scale, kernel=self.kernel, sharding=self.sharding, **shared
        )
        output = self._finished(output, changed._replace(query=call.query), mixer_leaves, source)
        if isinstance(source, _GivenLeaves):
            source.check_unused()
        return output, changed.memory or {}

    def leaves(self, call: Call, key: jax.Array | None = None) -> dict[str, jax.Array]:
        """Returns the learned leaves of a layer at their start, float32, by path: "gate/scale".

        call: one like the layer's; of its arrays only shapes and dtypes count. key: of starts that
        are drawn. Raises ValueError if one is drawn and there is no key, and as `attend`.
        """
        declared: dict[str, records.Leaf] = {}

        def collect(leaves: Sequence[records.Leaf]) -> Leaves:
            declared.update((leaf.path, leaf) for leaf in leaves)
            return {leaf.path: jnp.zeros(leaf.shape, jnp.float32) for leaf in leaves}

        jax.eval_shape(lambda: self.attend(call, leaves=collect))
        return {path: _start(self.name, leaf, key) for path, leaf in declared.items()}

    def empty_memory(self, value: jax.Array) -> Memory:
        """Returns what `attend` is given as memory in a first layer whose index is traced.

        value: an array like the layers' values, [..., S, K, Dv].
        """
        kept = {name: records.modifier(name).keeps for name in self.modifiers}
        return {name: zeros(value) for name, zeros in kept.items() if zeros is not None}

    @inputs.promoting
    def prepare(self, call: Call) -> Call:
        """Returns the call whose query, key and value a model's own softmax gets, τ in them.

        Inside a Flax module's compact method, where learned leaves are created. Raises ValueError
        for what acts inside the softmax, and if what the variant needs is not given.
        """
        table.check_model(self.name, {"inside": "keeps its own softmax"}, "the model")
        self._check_call(call)
        changed = self._modified(call, _source(self.name, None))
        if changed.temperature != 1.0:
            changed = changed._replace(query=changed.query / changed.temperature, temperature=1.0)
        return changed

    @inputs.promoting
    def through_host(
        self,
        weighted_mean: Callable[[jax.Array], jax.Array],
        call: Call,
        *,
        masks: Masks,
        sums_to_one: bool,
    ) -> jax.Array:
        """Returns the output [..., T, H, Dv], in the value's dtype, by somebody else's softmax.

        The model keeps its logits, masks and dropout; it got query, key and value of `call` from
        `prepare`. `weighted_mean(values)` is called once, because its own learned factors may be
        made by the call; it need only be linear in the values, whatever their size (differential
        mixers hand it those of pairs, [..., S, H, 2·Dv]). `sums_to_one`: no dropout. Inside a
        compact method, as `prepare`. Raises ValueError as `attend`.
        """
        mixer, value = records.mixer(self.mixer), inputs.per_query_head(call.query, call.value)
        mean = mixer.host_mean or mixer.mean
        output = mean(
            lambda values: weighted_mean(values.astype(call.value.dtype)),
            value if mixer.values is None else mixer.values(value),
            masks,
            dtype=call.value.dtype,
            span=SPAN,
            sums_to_one=sums_to_one,
        )
        source = _source(self.name, None)
        leaves = _leaves(source, mixer, call, self.settings_of(table.MIXERS[self.mixer]))
        return self._finished(output, call, leaves, source)

    def _check_call(self, call: Call) -> None:
        """Raises ValueError if a call lacks what the variant needs."""
        queries, keys = call.query.shape[-3], call.key.shape[-3]
        lacks = {
            "x": call.x is None and "has no x (give the block's input, x=[..., T, W])",
            "layer": call.layer is None
            and "has no layer (its index from 0: give layer=index, build the layer with "
            "attention_fn=functools.partial(variant, layer=index), or enter "
            "attention.inject.injected(variant, layer=rule), rule(path) -> index)",
            "memory": call.memory is None
            and "has no memory (call variant.attend, and hand its memory from layer to layer)",
            "self": _why_not_self(call.is_cross, queries, keys),
        }
        table.check_model(self.name, {need: why for need, why in lacks.items() if why}, "this call")

    def _modified(self, call: Call, source: LeafSource) -> Call:
        for modifier, settings in self.modifiers_on("inputs"):
            call = modifier.apply(call, _leaves(source, modifier, call, settings), **settings)
        return call

    def _score(
        self, call: Call, source: LeafSource
    ) -> tuple[tuple[Score, ...], tuple[Leaves, ...]]:
        scores, every = [], []
        for modifier, settings in self.modifiers_on("score"):
            leaves = _leaves(source, modifier, call, settings)
            kinds = tuple((path, "head") for path in leaves)
            scores.append(Score(modifier.apply, tuple(settings.items()), kinds))
            every.append(leaves)
        return tuple(scores), tuple(every)

    def _finished(
        self, output: jax.Array, call: Call, leaves: Leaves, source: LeafSource
    ) -> jax.Array:
        """Returns the output after the mixer's own step and modifiers, in the query's dtype."""
        mixer = records.mixer(self.mixer)
        if mixer.output is not None:
            output = mixer.output(
                output, call, leaves, **self.settings_of(table.MIXERS[self.mixer])
            )
        acting = list(self.modifiers_on("output"))
        if acting:
            output = output.astype(jnp.promote_types(output.dtype, jnp.float32))
        for modifier, settings in acting:
            output = modifier.apply(
                output, call, _leaves(source, modifier, call, settings), **settings
            )
        return output.astype(call.query.dtype)

    def settings_of(self, entry: Entry) -> dict[str, Any]:
        """Returns the hyperparameters that a mixer or modifier reads, by its line."""
        return {key: self.hyperparameters[key] for key in entry.hyperparameters}

    def modifiers_on(self, place: str) -> Iterator[tuple[records.Modifier, dict[str, Any]]]:
        """Yields the modifiers that act on `place`, with their hyperparameters.

        By precedence; those of equal precedence as the table lists them.
        """
        listed = [name for name in table.MODIFIERS if name in self.modifiers]
        for name in sorted(listed, key=lambda name: records.modifier(name).precedence):
            modifier = records.modifier(name)
            if modifier.acts_on == place:
                yield modifier, self.settings_of(table.MODIFIERS[name])


class AttentionFunction:
    """A variant as one layer's `attention_fn`: with the layer's index, its input and the memory.

    x [..., T, W]: the layer's input. memory: what earlier layers left, and after the call what this
    one leaves too. is_cross: keys and values are made of something else than x. float_masks: the
    model's masks may be floats of 0 and 1, as of `injected`; has_cache: so may those of one query,
    which flax's cache makes. Its signature is flax's in full: flax passes only what it finds there.
    """

    float_masks = False
    has_cache = True

    def __init__(
        self,
        variant: Variant,
        layer: int | jax.Array | None = None,
        x: jax.Array | None = None,
        memory: Memory | None = None,
        is_cross: bool = False,
    ) -> None:
        self.variant = variant
        self.memory = memory
        self.about: dict[str, Any] = {"layer": layer, "x": x, "is_cross": is_cross}
        self.calls = 0

    def make_call(self, query: jax.Array, key: jax.Array, value: jax.Array, **masks: Any) -> Call:
        """Returns the call, checked; masks: bias, mask and is_causal as of `Variant.__call__`."""
        mask = masks.get("mask")
        if self.has_cache:
            mask = inputs.from_cache(query, mask)
        if self.float_masks and mask is not None:
            mask = mask > 0
        masks["mask"] = mask
        return inputs.make_call(query, key, value, memory=self.memory, **masks, **self.about)

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        bias: jax.Array | None = None,
        mask: jax.Array | None = None,
        is_causal: bool = False,
        **settings: Any,
    ) -> jax.Array:
        """Returns the output [..., T, H, Dv]; settings as of `Variant.attend`."""
        self.calls += 1
        call = self.make_call(query, key, value, bias=bias, mask=mask, is_causal=is_causal)
        output, self.memory = self.variant.attend(call, **settings)
        return output

    def prepare(
        self, query: jax.Array, key: jax.Array, value: jax.Array, *, is_causal: bool = False
    ) -> Call:
        """Returns `Variant.prepare`'s call, for a model that keeps its own softmax."""
        call = self.variant.prepare(self.make_call(query, key, value, is_causal=is_causal))
        self.memory = call.memory
        return call

    __signature__ = _FLAX_SIGNATURE


class _GivenLeaves:
    """Learned leaves that a caller gives by path. Each is used once."""

    def __init__(self, variant: str, leaves: Mapping[str, jax.Array]) -> None:
        if not isinstance(leaves, Mapping):
            raise ValueError(
                f"leaves= of {variant} is a {type(leaves).__name__}: give a mapping from paths to "
                "arrays, as variant.leaves(call, key) does"
            )
        self.variant = variant
        self.unused = dict(leaves)

    def __call__(self, declared: Sequence[records.Leaf]) -> Leaves:
        """Returns the declared leaves, float32 or wider."""
        return {leaf.path: self._take(leaf) for leaf in declared}

    def _take(self, leaf: records.Leaf) -> jax.Array:
        if leaf.path not in self.unused:
            raise ValueError(
                f"{self.variant} learns {leaf.path!r} {list(leaf.shape)}, which leaves= lacks; "
                "make all by variant.leaves(call, key)"
            )
        array = jnp.asarray(self.unused.pop(leaf.path))
        if array.shape != leaf.shape:
            raise ValueError(
                f"leaves[{leaf.path!r}] has shape {list(array.shape)}; here {self.variant} learns "
                f"{list(leaf.shape)}"
            )
        return array.astype(jnp.promote_types(array.dtype, jnp.float32))

    def check_unused(self) -> None:
        """Raises ValueError for leaves that the variant does not have."""
        if self.unused:
            raise ValueError(
                f"{self.variant} has no leaf {', '.join(map(repr, self.unused))}; give those of "
                "variant.leaves(call, key)"
            )


def _source(variant: str, leaves: Mapping[str, jax.Array] | LeafSource | None) -> LeafSource:
    """Returns what gives learned leaves: None for the Flax module that calls."""
    if leaves is None:
        return lambda declared: records.adapter("linen").leaves(variant, declared)
    return leaves if callable(leaves) else _GivenLeaves(variant, leaves)


def _leaves(
    source: LeafSource,
    part: records.Mixer | records.Modifier,
    call: Call,
    settings: Mapping[str, Any],
) -> Leaves:
    """Returns the leaves of a part: the learned ones from their source, and its constants."""
    declared = part.leaves(call, **settings)
    constants = {
        leaf.path: leaf.start(None, leaf.shape, jnp.float32)
        for leaf in declared
        if not leaf.is_learned
    }
    learned = [leaf for leaf in declared if leaf.is_learned]
    return constants | {**source(learned)} if learned else constants


def _start(variant: str, leaf: records.Leaf, key: jax.Array | None) -> jax.Array:
    """Returns a leaf at its start, a draw of its path's own."""
    if key is not None:
        if not hasattr(key, "dtype"):
            raise ValueError(f"key={key!r}: give jax.random.key(seed)")
        return leaf.start(
            jax.random.fold_in(key, zlib.crc32(leaf.path.encode())), leaf.shape, jnp.float32
        )
    try:
        return leaf.start(None, leaf.shape, jnp.float32)
    except (TypeError, AttributeError) as error:
        raise ValueError(
            f"{variant} draws the start of {leaf.path!r}: give variant.leaves a key, "
            "jax.random.key(seed), or inject.assign rngs=nnx.Rngs(seed)"
        ) from error


def _refuse_flax_only(variant: str, keywords: Mapping[str, Any]) -> None:
    """Raises ValueError for a keyword of flax that no variant has, TypeError for an unknown one."""
    for name, value in keywords.items():
        if name not in (*_FLAX_ONLY, "force_fp32_for_softmax"):
            raise TypeError(f"{variant} got an unexpected keyword argument {name!r}")
        if name in _FLAX_ONLY and value is not None:
            raise ValueError(
                f"{_FLAX_ONLY[name]} is not available with an attention variant; leave it unset"
            )


def _why_not_self(is_cross: bool, queries: int, keys: int) -> str:
    """Returns why a call is not self-attention, '' if it may be."""
    if queries != keys:
        several = f"has {queries} queries and {keys} keys"
        return several if queries != 1 else f"has 1 query and {keys} keys (a cached decoder?)"
    if not is_cross:
        return ""
    return (
        "takes its keys from another array than its queries (if they are one sequence, pass one "
        "array for both, or say it: injected(variant, is_cross=False), or is_cross=lambda path: "
        "...)"
    )
