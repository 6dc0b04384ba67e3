"""Which models of init2winit take our attention, and which variants. Loads no JAX."""

import dataclasses
import difflib
import re

from attention import table

# Seams: where a model's attention is met. `flax`: flax's own attention module, whose function is
# wrapped; `own`: init2winit's copy of it (model_lib/attention.py), whose function is replaced;
# `causal`: the einsums, or jax.nn's function, of a layer with a name.
FLAX, OWN, CAUSAL = "flax", "own", "causal"


@dataclasses.dataclass(frozen=True)
class Support:
    """How one model is injected into.

    `refused`: modifiers that no variant may have there, with the reason. `class_name`: the layer's
    at the seam `causal`.
    """

    seam: str
    refused: tuple[tuple[str, str], ...] = ()
    class_name: str = ""

    def check(self, model: str, attention: str) -> None:
        """Raises ValueError for a variant, by name, that the model cannot have, with the reason."""
        has = attention.split("+")[1:]
        for modifier, reason in self.refused:
            if modifier in has:
                raise ValueError(f"{model} {reason}, so not {attention!r}; drop +{modifier}")
        if self.seam != OWN:
            table.check_host_mean(attention, f"init2winit's {model}")


_SCALED = (("per_dim_temp", "scales its queries per dimension itself"),)
# Model names: init2winit/model_lib/models.py.
SUPPORTED: dict[str, Support] = {
    "vit": Support(FLAX),
    "conformer": Support(FLAX, _SCALED),
    "mlcommons_conformer": Support(FLAX, _SCALED),
    "transformer": Support(OWN),
    "nanodo": Support(
        CAUSAL,
        (("qk_norm", "divides its queries by √D before a variant meets them"),),
        "CausalAttn",
    ),
    "rope_nanodo": Support(
        CAUSAL,
        (("qk_norm", "normalises and scales its queries before a variant meets them"),),
        "Attention",
    ),
}
_HAVE_NOT_BEEN_TRIED = (
    "xformer_translate",
    "mlcommons_xformer_translate",
    "mdlm_rope_nanodo",
    "local_attention_transformer",
    "transformer_stu",
)


def support(model: str) -> Support:
    """Returns how init2winit's `model` is injected into.

    Raises ValueError with the reason, and what works, for one that cannot be.
    """
    if model in SUPPORTED:
        return SUPPORTED[model]
    words = ", ".join(SUPPORTED)
    if model.startswith(_HAVE_NOT_BEEN_TRIED):
        raise ValueError(f"no variant was tried in init2winit's {model}; those that are: {words}")
    near = difflib.get_close_matches(model, SUPPORTED, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(
        f"init2winit's {model!r} has no attention that a variant goes through{hint} Models with: "
        f"{words}"
    )


def layer_index(path: str, layers: int) -> int:
    """Returns a layer's index from 0, by the path of its attention module: 'encoderblock_3/…',
    'ConformerBlock_0/…', 'blocks_1/…'; a pooling layer behind the last comes after them.

    Raises ValueError where the path has no such name.
    """
    if "MAPHead" in path:
        return layers
    found = re.search(r"blocks?_(\d+)", path, re.IGNORECASE)
    if found is None:
        raise ValueError(f"no layer number in {path!r}; differential attention needs one")
    return int(found[1])
