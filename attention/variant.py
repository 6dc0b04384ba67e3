"""A variant: one mixer with its modifiers, usable as a Flax `attention_fn`."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import errors as flax_errors

from attention import modifiers, table
from attention.hosts import probe
from attention.kernels import library
from attention.mixers import differential, head_pairs, laser, standard

Array = jax.Array

ATTEND: dict[str, Callable[..., Array]] = {
    "standard": standard.attend,
    "laser": laser.attend,
    "diff": functools.partial(head_pairs.attend, standard.weighted_mean),
    "diff_laser": functools.partial(head_pairs.attend, laser.log_mean_exp),
}


@dataclasses.dataclass(frozen=True)
class Variant:
    """An attention variant: immutable, hashable, callable. Made by `attention.registry.get`.

    Equal variants compile to the same program; τ, the kernel and the head norm (of differential
    mixers; True elsewhere) are part of the identity.
    """

    mixer: str
    modifiers: tuple[str, ...] = ()
    tau: float = 1.0
    kernel: str = "xla"
    head_norm: bool = True

    @property
    def name(self) -> str:
        """The canonical name, 'mixer+modifier...' with sorted modifiers."""
        return "+".join((self.mixer, *self.modifiers))

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """What `registry.get(name, **hyperparameters)` needs to make this variant again."""
        return {key: getattr(self, key) for key in table.hyperparameters_of(self.name)}

    @property
    def is_differential(self) -> bool:
        """Whether heads come in pairs, and a layer's depth is needed."""
        return self.mixer in table.DIFF_ROWS

    @property
    def has_parameters(self) -> bool:
        """Whether the variant adds learned leaves to its host."""
        entries = (table.MIXERS[self.mixer], *(table.MODIFIERS[name] for name in self.modifiers))
        return any(entry.parameters != "none" for entry in entries)

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

        Four arguments are ours. `is_causal`: query t sees keys 0..t, beside what the mask says.
        `depth`: the layer's index from 0, possibly traced (layers in `nn.scan`); a model passes
        it always, and mixers other than `diff` and `diff_laser` leave it unused. `scale`: what
        logits are multiplied with before τ divides them, D**-0.5 unless given. `scale_query`: what
        the model itself does to its queries (the Conformer's learned factors), behind `modify`.

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
        query, key = self.modify(query, key)
        if scale_query is not None:
            query = scale_query(query)
        scale = (query.shape[-1] ** -0.5 if scale is None else scale) / self.tau
        bias = probe.record(
            query,
            key,
            value,
            mixer=self.mixer,
            scale=scale,
            span=library.get(self.kernel).span,
            bias=bias,
            mask=mask,
            is_causal=is_causal,
            precision=precision,
        )
        attend = functools.partial(
            ATTEND[self.mixer],
            query,
            key,
            value,
            scale=scale,
            bias=bias,
            mask=mask,
            is_causal=is_causal,
            dropout_rng=None if deterministic else dropout_rng,
            dropout_rate=0.0 if deterministic else dropout_rate,
            broadcast_dropout=broadcast_dropout,
            precision=precision,
            kernel=self.kernel,
        )
        if not self.is_differential:
            return attend()
        output = self.from_pairs(
            lambda lambda_: attend(lambda_=lambda_), head_size=query.shape[-1], depth=depth
        )
        return head_pairs.heads_of_pairs(output, result_dtype)

    def modify(self, query: Array, key: Array) -> tuple[Array, Array]:
        """Returns query and key after `qk_norm` and `per_dim_temp` (not τ), in that order.

        Call it inside a Flax module's compact method: learned leaves are created there.
        """
        with self._learning():
            for name, modify in modifiers.MODIFY.items():
                if name in self.modifiers:
                    query, key = modify(query, key)
        return query, key

    def from_pairs(
        self,
        difference: Callable[[Array], Array],
        *,
        head_size: int,
        depth: int | Array | None,
    ) -> Array:
        """Returns `difference(λ)` after the head norm, [..., T, H/2, 2·Dv]; differential mixers.

        Call it inside a Flax module's compact method, as `modify`. Raises ValueError without a
        depth.
        """
        if depth is None:
            raise ValueError(
                f"{self.name} needs the layer's depth (from 0) for λ_init = 0.8 − 0.6·exp(−0.3·"
                "depth): call variant(..., depth=index), build the layer with attention_fn="
                "functools.partial(variant, depth=index), or enter "
                "attention.inject.injected(variant, depth=rule), rule(path) -> index"
            )
        with self._learning():
            return differential.apply(
                difference, head_size=head_size, depth=depth, head_norm=self.head_norm
            )

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
    if mixer not in ATTEND:
        raise ValueError(f"mixer {mixer!r} has no code: give it a line in variant.ATTEND")
    for part in parts:
        if part not in modifiers.MODIFY:
            raise ValueError(f"modifier {part!r} has no code: give it a line in modifiers.MODIFY")
    for key in hyperparameters:
        if key not in Variant.__dataclass_fields__:
            raise ValueError(f"no code reads {key!r} of {name!r}: it is no field of Variant")
    return Variant(mixer, parts, kernel=kernel, **hyperparameters)
