"""The language-model workloads. Standard library only.

AlgoPerf's released tree has no language model: these are ours, in the shape of the LASER paper
(ICML 2025). Targets are the paper's test losses (nats per token) and MLM error of its standard
attention, where it prints them.
"""

from typing import Any

from workloads.base.workload_spec import Entry
from workloads.text.transformer_sizes import SIZES

# 6 FLOP per parameter and token, at 40 % of a TPU v5e's 197 TFLOP/s in bfloat16. The paper's
# 2.2 B model is 27 h on 256 chips to nearly its end; this reckoning gives 31 h for the whole.
_FLOPS_PER_CHIP = 0.4 * 197e12
_SERVES = ("compute_dtype", "param_dtype", "scan_layers", "remat", "mesh")


def _estimate(parameters: int, tokens: int, chips: int) -> tuple[float, str]:
    seconds = 6 * parameters * tokens / (chips * _FLOPS_PER_CHIP)
    return seconds, (
        f"hours of {chips} TPU v5e chips: {seconds:.2f} s a step, estimated as 6 FLOP per "
        "parameter and token at 40 % of bfloat16's peak; not measured, float32 takes longer"
    )


def _full_size(name: str, target: float | None, chips: int, **particulars: Any) -> Entry:
    """Returns the entry of a model of the paper: 1024 sequences a batch, 160,000 steps."""
    size = SIZES[name]
    seconds, source = _estimate(size.parameters, 1024 * size.context, chips)
    return Entry(
        batch_size=1024,
        step_hint=160_000,
        validation_target=target,
        test_target=target,
        serves=_SERVES,
        parameters=size.parameters,
        head_size=size.head_size,
        step_seconds=seconds,
        step_source=source,
        devices=chips,
        device_gb=16.0,
        **particulars,
    )


def _c4(name: str, says: str, loss: float | None, chips: int) -> Entry:
    return _full_size(
        name,
        loss,
        chips,
        factory="workloads.text.c4_lm:make",
        data="workloads.text.corpora.c4",
        data_name="c4_lm",
        description=f"decoder-only Transformer, {says}, on C4",
        metric="loss",
        mode="min",
        target_source="the paper's standard attention, test",
    )


def _bert(name: str, says: str, accuracy: float | None, chips: int) -> Entry:
    return _full_size(
        name,
        accuracy,
        chips,
        factory="workloads.text.wikipedia_bert:make",
        data="workloads.text.corpora.wikipedia",
        data_name="wikipedia_bert",
        description=f"masked language model, {says}, on Wikipedia",
        metric="accuracy",
        mode="max",
        target_source="1 - the paper's MLM error of standard attention",
    )


_C4: dict[str, tuple[str, float | None, int]] = {
    "c4_lm": ("301 M parameters", 2.641, 64),
    "c4_lm_234m": ("234 M parameters", 2.681, 64),
    "c4_lm_435m": ("435 M parameters", 2.575, 64),
    "c4_lm_1b": ("1.1 B parameters", None, 128),
    "c4_lm_2b": ("2.2 B parameters", 2.344, 256),
    "c4_lm_8b": ("7.7 B parameters", None, 256),
}

ENTRIES: dict[str, Entry] = {
    **{name: _c4(name, *line) for name, line in _C4.items()},
    "wikipedia_bert": _bert("wikipedia_bert", "base size", None, 64),
    "wikipedia_bert_2b": _bert("wikipedia_bert_2b", "2.2 B parameters", 1 - 0.2145, 256),
    "pydoc_lm": Entry(
        factory="workloads.text.pydoc_lm:make",
        data="workloads.text.corpora.pydoc_text",
        data_name="pydoc",
        description="small decoder-only Transformer on Python's own documentation",
        metric="loss",
        mode="min",
        batch_size=8,
        step_hint=3000,
        validation_target=4.0,
        test_target=4.0,
        serves=_SERVES,
        parameters=SIZES["pydoc_lm"].parameters,
        head_size=SIZES["pydoc_lm"].head_size,
        target_source="ours",
        embedded=True,
        stands_in_for="c4_lm",
        step_seconds=0.020,
        step_source="hours of one CPU core: 0.020 s a step, measured on a 2-core cloud machine",
    ),
    "pydoc_bert": Entry(
        factory="workloads.text.pydoc_bert:make",
        data="workloads.text.corpora.pydoc_text",
        data_name="pydoc",
        description="small masked language model on Python's own documentation",
        metric="accuracy",
        mode="max",
        batch_size=16,
        step_hint=4000,
        validation_target=0.2,
        test_target=0.2,
        serves=_SERVES,
        parameters=SIZES["pydoc_bert"].parameters,
        head_size=SIZES["pydoc_bert"].head_size,
        target_source="ours",
        embedded=True,
        stands_in_for="wikipedia_bert",
        step_seconds=0.031,
        step_source="hours of one CPU core: 0.031 s a step, measured on a 2-core cloud machine",
    ),
}
