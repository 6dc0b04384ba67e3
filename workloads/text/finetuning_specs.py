"""Workloads that train a decoder on a suite's questions: MODEL:SUITE, `pydoc_lm:pydoc_returns` or
`c4_lm_2b:superglue`. Standard library only.

The suites are those whose answers are generated (`workloads.downstream.suites`). A model is trained
on the training questions of all tasks of its suite, mixed as many as they are. Of SuperGLUE the
paper says four tasks and ten epochs, but neither batch nor rate nor mixture: the batch of 32 is
ours. Its test labels are not public, so the published validation questions are the test here, and
every tenth training question is kept for selection by validation.
"""

import dataclasses
from collections.abc import Iterable

from workloads.base.workload_spec import WorkloadSpec

SEPARATOR = ":"
# Of training questions without a validation split of their own, every so many is one of validation.
HELD_OUT = 10


@dataclasses.dataclass(frozen=True)
class FinetuningSuite:
    """What there is to know of a suite's training. questions: for training, all tasks together;
    `pydoc_returns` has Python 3.11's."""

    name: str
    questions: int
    epochs: int
    batch_size: int


SUITES = {
    suite.name: suite
    for suite in (
        FinetuningSuite("superglue", 360 + 4885 + 498 + 2241, epochs=10, batch_size=32),
        FinetuningSuite("superglue_copa", 360, epochs=10, batch_size=32),
        FinetuningSuite("superglue_wic", 4885, epochs=10, batch_size=32),
        FinetuningSuite("superglue_wsc", 498, epochs=10, batch_size=32),
        FinetuningSuite("superglue_rte", 2241, epochs=10, batch_size=32),
        FinetuningSuite("pydoc_returns", 3340, epochs=3, batch_size=16),
    )
}


def split(name: str) -> tuple[str, str]:
    """Returns (model, suite) of a workload's name; suite '' for one that is no fine-tuning."""
    model, _, suite = name.partition(SEPARATOR)
    return (model, suite) if suite in SUITES else (name, "")


def specs(decoders: Iterable[WorkloadSpec]) -> list[WorkloadSpec]:
    """Returns a row for every decoder and suite."""
    return [_spec(model, suite) for model in decoders for suite in SUITES.values()]


def _spec(model: WorkloadSpec, suite: FinetuningSuite) -> WorkloadSpec:
    return dataclasses.replace(
        model,
        name=f"{model.name}{SEPARATOR}{suite.name}",
        factory="workloads.downstream.finetuning.finetuning_workload:make",
        data="workloads.downstream.finetuning.data:FinetuningData",
        data_name=model.data_name or model.name,
        description=f"{model.name} fine-tuned to answer the questions of {suite.name}",
        metric="accuracy",
        mode="max",
        batch_size=suite.batch_size,
        train_examples=suite.questions,
        step_hint=-(-suite.epochs * suite.questions // suite.batch_size),
        validation_target=None,
        test_target=None,
        stands_in_for=f"{model.stands_in_for}{SEPARATOR}superglue" if model.embedded else "",
        # Of the model's own, which is for batches of a thousand.
        topology="" if model.embedded else "v5e:4x8",
        step_seconds=None,
        step_source="not measured",
    )
