"""A variant: one mixer with its modifiers, usable as a Flax `attention_fn`."""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import errors as flax_errors
from jax.sharding import NamedSharding

from attention import records, table
from attention.hosts import probe
from attention.kernels.inputs import per_query_head
from attention.kernels.library import SPAN
from attention.kernels.masks import Masks
from attention.records import Applied, Inputs

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Variant:
    """An attention variant: immutable, hashable, callable. Made by `attention.registry.get`.

    Equal variants compile to the same program; hyperparameters and the kernel are part of the
    identity. A hyperparameter is an attribute, too: `variant.tau`. sharding: how the host's heads
    [B, T, H, D] lie on its devices; kernels `splash` and `fused` need it there, XLA divides the
    others itself.
    """

    mixer: str
    modifiers: tuple[str, ...] = ()
    kernel: str = "xla"
    settings: tuple[tuple[str, Any], ...] = ()
    sharding: NamedSharding | None = None

    @property
    def name(self) -> str:
        """The canonical name, 'mixer+modifier...' with sorted modifiers."""
        return "+".join((self.mixer, *self.modifiers))

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """What `registry.get(name, **hyperparameters)` needs to make this variant again."""
        return dict(self.settings)

    def __getattr__(self, name: str) -> Any:
        for key, given in self.__dict__.get("settings", ()):
            if key == name:
                return given
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    @property
    def needs_depth(self) -> bool:
        """Whether a layer's index must be given: differential mixers."""
        return table.MIXERS[self.mixer].needs_depth

    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None = None,
        mask: Array | None = None,
        broadcast_dropout: bool = True,
        dropout_rng: Array | None = None,
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        dtype: Any = None,
        precision: jax.lax.PrecisionLike = None,
        module: Any = None,
        force_fp32_for_softmax: bool = False,
        einsum_dot_general: Any = None,
        qk_attn_weights_einsum: Any = None,
        attn_weights_value_einsum: Any = None,
        is_causal: bool = False,
        depth: int | Array | None = None,
        scale: float | None = None,
        scale_query: Callable[[Array], Array] | None = None,
    ) -> Array:
        """Returns attention's output [..., T, H, Dv], as flax's `dot_product_attention` would.

        key and value may have fewer heads than the query (grouped heads): `inputs.per_query_head`.

        Four arguments are ours. `is_causal`: query t sees keys 0..t, beside what the mask says.
        `depth`: the layer's index from 0, possibly traced (layers in `nn.scan`); a model passes
        it always, and mixers other than `diff` and `diff_laser` leave it unused. `scale`: what
        logits are multiplied with before τ divides them, D**-0.5 unless given. `scale_query`: what
        the model itself does to its queries (the Conformer's learned factors), after modifiers.

        The whole signature of flax is spelled out because flax passes only the keywords it finds
        by `inspect.signature`: behind `**kwargs` the mask would be lost without a word. The
        softmax is always in float32, so `force_fp32_for_softmax` changes nothing.

        Raises ValueError where quantised einsums or sown weights are asked for (no variant has
        them), where learned factors are called for outside a Flax module, and where `diff` or
        `diff_laser` gets no depth or an odd number of heads.
        """
        del force_fp32_for_softmax
        _refuse(
            module=module,
            einsum_dot_general=einsum_dot_general,
            qk_attn_weights_einsum=qk_attn_weights_einsum,
            attn_weights_value_einsum=attn_weights_value_einsum,
        )
        if dtype is not None:
            query, key, value = (array.astype(dtype) for array in (query, key, value))
        result_dtype = jnp.result_type(query, key, value)
        key, value = (per_query_head(query, array) for array in (key, value))
        given = self._modified(Inputs(query, key, value, bias, mask, is_causal))
        query, key, value = given.query, given.key, given.value
        if scale_query is not None:
            query = scale_query(query)
        head_size = query.shape[-1]
        settings: dict[str, Any] = {
            "scale": (head_size**-0.5 if scale is None else scale) / given.temperature,
            "mask": given.mask,
            "is_causal": given.is_causal,
            "precision": precision,
            "logits": self._on_logits(),
        }
        bias = probe.record(
            query,
            key,
            value,
            mixer=self.mixer,
            span=records.kernel(self.kernel).span,
            bias=given.bias,
            host_probabilities=None,
            **settings,
        )
        attend = functools.partial(
            records.mixer(self.mixer).attend,
            query,
            key,
            value,
            bias=bias,
            dropout_rng=None if deterministic else dropout_rng,
            dropout_rate=0.0 if deterministic else dropout_rate,
            broadcast_dropout=broadcast_dropout,
            kernel=self.kernel,
            sharding=self.sharding,
            **settings,
        )
        return self._finished(attend, head_size, depth, result_dtype)

    def prepare(self, query: Array, key: Array) -> tuple[Array, Array]:
        """Returns query and key as a host's own softmax gets them: modifiers and τ in them.

        Call it inside a Flax module's compact method, where learned leaves are created. Raises
        ValueError for what acts inside the softmax.
        """
        table.check_host_mean(self.name, "the host")
        # Modifiers that a host can have look at query and key alone.
        given = self._modified(Inputs(query, key, value=key))
        query, temperature = given.query, given.temperature
        return (query if temperature == 1.0 else query / temperature), given.key

    def through_host(
        self,
        weighted_mean: Callable[[Array], Array],
        value: Array,
        *,
        masks: Masks,
        head_size: int,
        depth: int | Array | None,
        sums_to_one: bool,
    ) -> Array:
        """Returns the output [..., T, H, Dv], in the value's dtype, by somebody else's softmax.

        The host keeps its logits, masks and dropout; it got query and key from `prepare`.
        `weighted_mean(values)` is called once, because its own learned factors may be made by the
        call; it need only be linear in the values, whatever their size (differential mixers hand
        it those of pairs, [..., S, H, 2·Dv]). value [..., S, H, Dv]; `head_size` is that of the
        queries; `sums_to_one`: no dropout. Inside a compact method, as `prepare`. Raises
        ValueError for a variant that no weighted mean makes, and as `__call__`.
        """
        table.check_host_mean(self.name, "the host")
        host_mean = records.mixer(self.mixer).host_mean
        assert host_mean is not None
        mean = functools.partial(
            host_mean,
            lambda values: weighted_mean(values.astype(value.dtype)),
            value,
            masks,
            dtype=value.dtype,
            span=SPAN,
            sums_to_one=sums_to_one,
        )
        return self._finished(mean, head_size, depth, value.dtype)

    def _modified(self, inputs: Inputs) -> Inputs:
        with self._learning():
            for apply, given in self._acting("inputs"):
                inputs = apply(inputs, **given)
        return inputs

    def _on_logits(self) -> tuple[Applied, ...]:
        acting = self._acting("logits")
        return tuple(Applied(apply, tuple(given.items())) for apply, given in acting)

    def _finished(
        self,
        attend: Callable[..., Array],
        head_size: int,
        depth: int | Array | None,
        dtype: jnp.dtype,
    ) -> Array:
        """Returns attend's output, with what is learned around it and what modifies it."""
        learned = records.mixer(self.mixer).learned
        if depth is None and self.needs_depth:
            raise ValueError(
                f"{self.name} needs the layer's depth (from 0) for λ_init = 0.8 − 0.6·exp(−0.3·"
                "depth): call variant(..., depth=index), build the layer with attention_fn="
                "functools.partial(variant, depth=index), or enter "
                "attention.inject.injected(variant, depth=rule), rule(path) -> index"
            )
        own = {key: getattr(self, key) for key in table.MIXERS[self.mixer].hyperparameters}
        with self._learning():
            if learned is None:
                output = attend(**own)
            else:
                output = learned(attend, head_size=head_size, depth=depth, dtype=dtype, **own)
            for apply, given in self._acting("output"):
                output = apply(output, **given)
        return output

    def _acting(self, place: str) -> Iterator[tuple[Callable[..., Any], dict[str, Any]]]:
        """Yields what acts on `place`, in order, with its hyperparameters."""
        for name in records.in_order(self.modifiers):
            if records.modifier(name).acts_on == place:
                given = {key: getattr(self, key) for key in table.MODIFIERS[name].hyperparameters}
                yield records.modifier(name).apply, given

    @contextlib.contextmanager
    def _learning(self) -> Iterator[None]:
        """Says what to do where the host has no place for learned leaves, or has them already."""
        try:
            yield
        except flax_errors.NameInUseError as error:
            raise ValueError(
                f"the host already has what {self.name} adds ({error}); drop the modifier, or the "
                "host's own normalisation (normalize_qk=True)"
            ) from error
        except flax_errors.CallCompactUnboundModuleError as error:
            raise ValueError(
                f"{self.name} has learned factors and can only be called inside a Flax module of "
                "flax.linen (nnx has no place for them): pass it as attention_fn there, or use "
                "attention.inject.injected"
            ) from error


def _refuse(**unsupported: Any) -> None:
    """Raises ValueError naming the first argument that is not None."""
    for name, given in unsupported.items():
        if given is not None:
            what = "sow_weights" if name == "module" else name
            raise ValueError(f"{what} is not available with an attention variant; leave it unset")


def make(name: str, kernel: str, hyperparameters: dict[str, Any]) -> Variant:
    """Returns the variant for a checked name. Use `attention.registry.get`.

    Raises ValueError for what the table has a line for and no code.
    """
    mixer, parts = table.parse(name)
    record = records.mixer(mixer)
    _check_read(mixer, table.MIXERS[mixer].hyperparameters, record.learned or record.attend)
    for part in parts:
        modifier = records.modifier(part)
        _check_read(part, table.MODIFIERS[part].hyperparameters, modifier.apply)
    return Variant(mixer, parts, kernel, tuple(hyperparameters.items()))


def _check_read(part: str, keys: Iterable[str], code: Callable[..., Any]) -> None:
    """Raises ValueError where a part's code has no parameter for a hyperparameter of its line."""
    for key in keys:
        if key not in inspect.signature(code).parameters:
            raise ValueError(f"no code reads {key!r} of {part!r}: {code} has no such parameter")
