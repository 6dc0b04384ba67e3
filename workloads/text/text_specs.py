"""The language-model workloads and their Transformers' sizes. Standard library only.

AlgoPerf's released tree has no language model: these are ours, in the shape of the LASER paper
(ICML 2025). Targets are the paper's test losses (nats per token) and MLM error of its standard
attention, where it prints them. The language models' sizes are the paper's configurations. Its
caption gives the 1.1B model a width of 1024, which makes 570 M parameters; 2048 gives the 1.1 B
that it names. It does not state the layers of the 7.7B and the BERT models: 32 give the totals
that it names.
"""

import dataclasses
from typing import Any

from workloads.base.workload_spec import BOTH_WAYS, OWN_QUERIES, ModelSupport, WorkloadSpec

_OPTIONS = (
    *("compute_dtype", "param_dtype", "scan_layers", "remat", "mesh", "loss_chunk_tokens"),
    *("kv_heads", "positions", "global_every", "document_mask"),
)


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

    def flops(self, predicted: float = 1.0) -> float:
        """Returns a training step's model FLOP per sequence, forward and backward.

        6 per parameter and token, those of the embedding per token that is `predicted` (a share of
        all), and 12·layers·heads·head_size·context per token for QKᵀ and A·V, without taking off
        what a causal mask hides (PaLM, arXiv:2204.02311, appendix B).
        """
        output = self.vocabulary * self.width
        per_token = 6 * (self.parameters - output + predicted * output)
        return per_token * self.context + self.attention_flops

    @property
    def attention_flops(self) -> float:
        """The part of QKᵀ and A·V in `flops`."""
        return 12 * self.layers * self.heads * self.head_size * self.context**2

    def support(self, decoder: bool) -> ModelSupport:
        """Returns what a Transformer of this size can take of a study."""
        return ModelSupport(
            lacks=() if decoder else (BOTH_WAYS,),
            options=_OPTIONS,
            layers=self.layers,
            divided=(
                ("heads", self.heads, "tensor"),
                ("mlp_width", self.mlp_width, "tensor"),
                ("vocabulary", self.vocabulary, "tensor"),
                ("width", self.width, "fsdp"),
                ("tokens of a sequence", self.context, "context"),
            ),
            decoder=decoder,
        )


SIZES: dict[str, TransformerSize] = {
    "c4_lm": TransformerSize(32, 1024, 2048, 8, 128),
    "c4_lm_234m": TransformerSize(16, 1024, 4096, 8, 128),
    "c4_lm_435m": TransformerSize(32, 1024, 4096, 8, 128),
    "c4_lm_1b": TransformerSize(32, 2048, 4096, 8, 256),
    "c4_lm_2b": TransformerSize(32, 2048, 8192, 8, 512),
    "c4_lm_8b": TransformerSize(32, 3440, 11584, 16, 720),
    "c4_lm_32k": TransformerSize(32, 1024, 2048, 8, 128, context=32_768),
    "pydoc_lm": TransformerSize(2, 64, 256, 4, 16, vocabulary=1024, context=64),
    "finewebedu_lm": TransformerSize(12, 1024, 4096, 8, 128, vocabulary=50_257),
    "pydoc_finewebedu": TransformerSize(2, 64, 256, 4, 16, vocabulary=1024, context=64),
    "wikipedia_bert": TransformerSize(12, 768, 3072, 12, 64, context=512),
    "wikipedia_bert_2b": TransformerSize(32, 2048, 8192, 16, 256, context=512),
    "pydoc_bert": TransformerSize(2, 64, 256, 4, 16, vocabulary=1024, context=64),
    "pysource_lm_57k": TransformerSize(2, 32, 128, 2, 16, vocabulary=1024, context=64),
    "pysource_lm_105k": TransformerSize(2, 48, 192, 3, 16, vocabulary=1024, context=64),
    "pysource_lm_164k": TransformerSize(2, 64, 256, 4, 16, vocabulary=1024, context=64),
    "pysource_lm_320k": TransformerSize(2, 96, 384, 6, 16, vocabulary=1024, context=64),
    "pysource_lm_722k": TransformerSize(3, 128, 512, 8, 16, vocabulary=1024, context=64),
}


# Of BERT's tokens, those to predict: CHOSEN in workloads/text/language_models.py.
_PREDICTED = 0.15


def _of_model(name: str, factory: str) -> dict[str, Any]:
    """Returns what the entry of a Transformer says of its model, its tokens and FLOP."""
    size, is_bert = SIZES[name], "bert" in name
    return {
        "factory": f"workloads.text.language_models:{factory}",
        "model": size,
        "parameters": size.parameters,
        "head_size": size.head_size,
        "support": size.support(decoder=not is_bert),
        "unit": "tokens",
        "units": size.context,
        "flops": size.flops(_PREDICTED if is_bert else 1.0),
        "attention_flops": size.attention_flops,
        "positions": size.context,
    }


def _full_size(name: str, target: float | None, topology: str, **particulars: Any) -> WorkloadSpec:
    """Returns the entry of a model of the paper: 1024 sequences a batch, 160,000 steps."""
    return WorkloadSpec(
        name=name,
        step_hint=160_000,
        validation_target=target,
        test_target=target,
        topology=topology,
        **_of_model(name, "make"),
        **{"batch_size": 1024, **particulars},
    )


def _c4(
    name: str, says: str, loss: float | None, topology: str, **particulars: Any
) -> WorkloadSpec:
    records = {"data": "workloads.text.corpora.large_corpora:C4", "data_name": "c4_lm"}
    return _full_size(
        name,
        loss,
        topology,
        **{**records, **particulars},
        description=f"decoder-only Transformer, {says}, on C4",
        metric="loss",
        mode="min",
        target_source="the paper's standard attention, test",
    )


def _bert(name: str, says: str, accuracy: float | None, topology: str) -> WorkloadSpec:
    return _full_size(
        name,
        accuracy,
        topology,
        data="workloads.text.corpora.large_corpora:WIKIPEDIA",
        data_name="wikipedia_bert",
        description=f"masked language model, {says}, on Wikipedia",
        metric="accuracy",
        mode="max",
        target_source="1 - the paper's MLM error of standard attention",
    )


def _small(name: str, target: float | None, seconds: float, **particulars: Any) -> WorkloadSpec:
    """Returns the entry of a model on embedded text that takes so many seconds a step."""
    return WorkloadSpec(
        name=name,
        validation_target=target,
        test_target=target,
        target_source="ours",
        embedded=True,
        step_seconds=seconds,
        step_source=f"hours of one CPU core: {seconds:.3f} s a step, measured on a 2-core cloud "
        "machine",
        **_of_model(name, "make_small"),
        **particulars,
    )


_PYDOC = {
    "data": "workloads.text.corpora.pydoc_text:PYDOC",
    "data_name": "pydoc",
    "train_examples": 6800,
}


_C4: dict[str, tuple[str, float | None, str]] = {
    "c4_lm": ("301 M parameters", 2.641, "v5e:8x8"),
    "c4_lm_234m": ("234 M parameters", 2.681, "v5e:8x8"),
    "c4_lm_435m": ("435 M parameters", 2.575, "v5e:8x8"),
    "c4_lm_1b": ("1.1 B parameters", None, "v5e:8x16"),
    "c4_lm_2b": ("2.2 B parameters", 2.344, "v5e:16x16"),
    "c4_lm_8b": ("7.7 B parameters", None, "v5e:16x16"),
}


# Seconds of a step.
_PYSOURCE: dict[str, float] = {
    "pysource_lm_57k": 0.011,
    "pysource_lm_105k": 0.014,
    "pysource_lm_164k": 0.019,
    "pysource_lm_320k": 0.031,
    "pysource_lm_722k": 0.055,
}


def _pysource(name: str, seconds: float) -> WorkloadSpec:
    """Returns the entry of a size of pydoc_lm's model, on the source code of Python's library."""
    parameters = SIZES[name].parameters
    return _small(
        name,
        None,
        seconds,
        data="workloads.text.corpora.pydoc_text:PYSOURCE",
        data_name="pysource",
        train_examples=28_000,
        description=f"decoder-only Transformer, {parameters:,} parameters, on Python's source code",
        metric="loss",
        mode="min",
        batch_size=8,
        step_hint=3000,
        stands_in_for="c4_lm",
    )


def _finewebedu(name: str, **particulars: Any) -> WorkloadSpec:
    """Returns the entry of AlgoPerf's decoder, whose gated MLP has a third matrix of its width."""
    size = SIZES[name]
    extra = size.layers * (size.width * size.mlp_width + 1)  # and a scale of the queries
    return WorkloadSpec(
        name=name,
        factory="workloads.text.finewebedu_workload:make",
        model=size,
        metric="ppl",
        mode="min",
        test_target=None,
        parameters=size.parameters + extra,
        head_size=size.head_size,
        support=ModelSupport(
            lacks=OWN_QUERIES,
            options=("compute_dtype", "loss_chunk_tokens"),
            ignores=("dropout_rate",),
        ),
        unit="tokens",
        units=size.context,
        flops=size.flops() + 6 * extra * size.context,
        attention_flops=size.attention_flops,
        positions=size.context,
        **particulars,
    )


SPECS: tuple[WorkloadSpec, ...] = (
    *(_c4(name, *line) for name, line in _C4.items()),
    # Not of the paper: as many tokens a batch in long sequences.
    _c4(
        "c4_lm_32k",
        "301 M parameters, 32,768 tokens a sequence",
        None,
        "v5e:8x8",
        batch_size=32,
        data="workloads.text.corpora.large_corpora:C4_32K",
        data_name="c4_lm_32k",
    ),
    _bert("wikipedia_bert", "base size", None, "v5e:8x8"),
    _bert("wikipedia_bert_2b", "2.2 B parameters", 1 - 0.2145, "v5e:16x16"),
    _small(
        "pydoc_lm",
        4.0,
        0.020,
        **_PYDOC,
        description="small decoder-only Transformer on Python's own documentation",
        metric="loss",
        mode="min",
        batch_size=8,
        step_hint=3000,
        stands_in_for="c4_lm",
    ),
    # AlgoPerf 1.0: algoperf/workloads/finewebedu_lm/workload.py at f364a0b, a tested commit.
    _finewebedu(
        "finewebedu_lm",
        data="workloads.text.corpora.fineweb_data",
        description="AlgoPerf's decoder, 253 M parameters, on FineWeb-Edu",
        batch_size=64,
        step_hint=72_000,
        validation_target=22.2995,
        train_examples=8_749_870,
        # 31,967 s allowed for 72,000 steps.
        step_seconds=0.4440,
        step_source="hours of 4 A100s: AlgoPerf's time budget of 0.444 s a step, an upper bound",
    ),
    _finewebedu(
        "pydoc_finewebedu",
        data="workloads.text.corpora.pydoc_text:PYDOC_FINEWEBEDU",
        description="small decoder as AlgoPerf's, on Python's own documentation",
        batch_size=8,
        step_hint=3000,
        validation_target=57.0,
        target_source="ours",
        embedded=True,
        stands_in_for="finewebedu_lm",
        train_examples=6600,
        step_seconds=0.020,
        step_source="hours of one CPU core: 0.020 s a step, measured on a 2-core cloud machine",
    ),
    _small(
        "pydoc_bert",
        0.2,
        0.031,
        **_PYDOC,
        description="small masked language model on Python's own documentation",
        metric="accuracy",
        mode="max",
        batch_size=16,
        step_hint=4000,
        stands_in_for="wikipedia_bert",
    ),
    *(_pysource(name, seconds) for name, seconds in _PYSOURCE.items()),
)
