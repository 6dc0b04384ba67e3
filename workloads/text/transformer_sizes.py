"""Sizes of the Transformers, full and embedded. Standard library only.

The language models' sizes are the paper's configurations. Its caption gives the 1.1B model a
width of 1024, which makes 570 M parameters; 2048 gives the 1.1 B that it names. It does not state
the layers of the 7.7B and the BERT models: 32 give the totals that it names.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class TransformerSize:
    """What fixes a Transformer's parameters, and the context: tokens per sequence.

    heads · head_size need not be the width.
    """

    layers: int
    width: int
    mlp_width: int
    heads: int
    head_size: int
    vocabulary: int = 32_000
    context: int = 1024

    @property
    def parameters(self) -> int:
        """Parameters with standard attention: embedding, four projections, MLP and norms."""
        layer = 4 * self.width * self.heads * self.head_size + 2 * self.width * self.mlp_width
        norms = (2 * self.layers + 1) * self.width
        return self.vocabulary * self.width + self.layers * layer + norms

    def check_mesh(self, mesh: tuple[int, int, int]) -> None:
        """Raises ValueError where (data, fsdp, tensor) devices cannot share the parameters."""
        _, fsdp, tensor = mesh
        shared = (
            ("heads", self.heads, "tensor", tensor),
            ("mlp_width", self.mlp_width, "tensor", tensor),
            ("vocabulary", self.vocabulary, "tensor", tensor),
            ("width", self.width, "fsdp", fsdp),
        )
        for name, size, axis, devices in shared:
            if size % devices:
                raise ValueError(
                    f"{name} {size} cannot be divided over mesh.{axis} = {devices}; choose a "
                    f"mesh.{axis} that divides it"
                )


SIZES: dict[str, TransformerSize] = {
    "c4_lm": TransformerSize(32, 1024, 2048, 8, 128),
    "c4_lm_234m": TransformerSize(16, 1024, 4096, 8, 128),
    "c4_lm_435m": TransformerSize(32, 1024, 4096, 8, 128),
    "c4_lm_1b": TransformerSize(32, 2048, 4096, 8, 256),
    "c4_lm_2b": TransformerSize(32, 2048, 8192, 8, 512),
    "c4_lm_8b": TransformerSize(32, 3440, 11584, 16, 720),
    "pydoc_lm": TransformerSize(2, 64, 256, 4, 16, vocabulary=1024, context=64),
    "wikipedia_bert": TransformerSize(12, 768, 3072, 12, 64, context=512),
    "wikipedia_bert_2b": TransformerSize(32, 2048, 8192, 16, 256, context=512),
    "pydoc_bert": TransformerSize(2, 64, 256, 4, 16, vocabulary=1024, context=64),
}
