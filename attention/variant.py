"""A variant: one mixer with its modifiers, usable as a Flax `attention_fn`."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax import errors as flax_errors

from attention import laser, modifiers, standard, table

Array = jax.Array

ATTEND: dict[str, Callable[..., Array]] = {"standard": standard.attend, "laser": laser.attend}


@dataclasses.dataclass(frozen=True)
class Variant:
    """An attention variant: immutable, hashable, callable. Made by `attention.registry.get`.

    Equal variants compile to the same program; τ and the kernel are part of the identity.
    """

    mixer: str
    modifiers: tuple[str, ...] = ()
    tau: float = 1.0
    kernel: str = "xla"

    @property
    def name(self) -> str:
        """The canonical name, 'mixer+modifier...' with sorted modifiers."""
        return "+".join((self.mixer, *self.modifiers))

    @property
    def hyperparameters(self) -> dict[str, float]:
        """What `registry.get(name, **hyperparameters)` needs to make this variant again."""
        return {"tau": self.tau} if "temp" in self.modifiers else {}

    @property
    def has_parameters(self) -> bool:
        """Whether the variant adds learned leaves to its host."""
        return bool({"qk_norm", "per_dim_temp"} & set(self.modifiers))

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
    ) -> Array:
        """Returns attention's output [..., T, H, Dv], as flax's `dot_product_attention` would.

        Two arguments are ours. `is_causal`: query t sees keys 0..t, beside what the mask says.
        `depth`: the layer's index from 0, possibly traced (layers in `nn.scan`); a model passes
        it always, and mixers that do not depend on it leave it unused.

        The whole signature of flax is spelled out because flax passes only the keywords it finds
        by `inspect.signature`: behind `**kwargs` the mask would be lost without a word. The
        softmax is always in float32, so `force_fp32_for_softmax` changes nothing.

        Raises ValueError where quantised einsums or sown weights are asked for (no variant has
        them), and where `qk_norm` or `per_dim_temp` is called outside a Flax module.
        """
        del force_fp32_for_softmax, depth
        _refuse(
            module=module,
            einsum_dot_general=einsum_dot_general,
            qk_attn_weights_einsum=qk_attn_weights_einsum,
            attn_weights_value_einsum=attn_weights_value_einsum,
        )
        if dtype is not None:
            query, key, value = (array.astype(dtype) for array in (query, key, value))
        query, key = self.modify(query, key)
        return ATTEND[self.mixer](
            query,
            key,
            value,
            scale=query.shape[-1] ** -0.5 / self.tau,
            bias=bias,
            mask=mask,
            is_causal=is_causal,
            dropout_rng=None if deterministic else dropout_rng,
            dropout_rate=0.0 if deterministic else dropout_rate,
            broadcast_dropout=broadcast_dropout,
            precision=precision,
            kernel=self.kernel,
        )

    def modify(self, query: Array, key: Array) -> tuple[Array, Array]:
        """Returns query and key after `qk_norm` and `per_dim_temp` (not τ), in that order.

        Call it inside a Flax module's compact method: learned leaves are created there.
        """
        try:
            if "qk_norm" in self.modifiers:
                query = modifiers.QKNorm(name="query_ln")(query)
                key = modifiers.QKNorm(name="key_ln")(key)
            if "per_dim_temp" in self.modifiers:
                query = modifiers.PerDimTemp(name="per_dim_temp")(query)
        except flax_errors.NameInUseError as error:
            raise ValueError(
                f"the host already has what {self.name} adds ({error}); drop the modifier, or the "
                "host's own normalisation (normalize_qk=True)"
            ) from error
        except flax_errors.CallCompactUnboundModuleError as error:
            raise ValueError(
                f"{self.name} has learned factors and can only be called inside a Flax module: "
                "pass it as attention_fn, or use attention.inject.injected"
            ) from error
        return query, key


def _refuse(**unsupported: Any) -> None:
    """Raises ValueError naming the first argument that is not None."""
    for name, given in unsupported.items():
        if given is not None:
            what = "sow_weights" if name == "module" else name
            raise ValueError(f"{what} is not available with an attention variant; leave it unset")


def make(name: str, kernel: str, tau: float) -> Variant:
    """Returns the variant for a checked name. Use `attention.registry.get`."""
    mixer, parts = table.parse(name)
    return Variant(mixer, parts, tau, kernel)
