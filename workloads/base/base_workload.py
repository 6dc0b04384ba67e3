"""What every workload takes from the table: names, targets, sizes, and the variant's injection."""

import abc
import contextlib
import copy
import dataclasses
import math
import re
from typing import Any, Self

from workloads import table
from workloads.base import devices, spec
from workloads.base.options import Options


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Numbers of examples per split, and the batch size of evaluations."""

    num_train: int
    num_eval_train: int
    num_validation: int
    num_test: int
    eval_batch_size: int


class TableWorkload(spec.Workload):
    """A workload of `workloads.table` with its variant; subclasses bring model, data and loss.

    Raises ValueError for a variant that the host model already contains, and for an option that
    the workload cannot serve.
    """

    def __init__(self, name: str, variant: Any, options: Options, sizes: Sizes) -> None:
        self.name = name
        self.variant = variant
        self.options = options
        self.layout = devices.Layout(options.mesh)
        self._sizes = sizes
        self._entry = table.entry(name)
        table.check_options(name, options)
        if variant is not None:
            table.check_variant(name, variant.name, variant.kernel)

    def __str__(self) -> str:
        return self.name

    @property
    def target_metric_name(self) -> str:
        return self._entry.metric

    @property
    def validation_target_value(self) -> float:
        return _or_nan(self._entry.validation_target)

    @property
    def test_target_value(self) -> float:
        return _or_nan(self._entry.test_target)

    def has_reached_validation_target(self, eval_result: dict[str, float]) -> bool:
        value = eval_result[f"validation/{self._entry.metric}"]
        return self._reaches(value, self.validation_target_value)

    def has_reached_test_target(self, eval_result: dict[str, float]) -> bool:
        return self._reaches(eval_result[f"test/{self._entry.metric}"], self.test_target_value)

    def _reaches(self, value: float, target: float) -> bool:
        return value > target if self._entry.mode == "max" else value < target

    @property
    def num_train_examples(self) -> int:
        return self._sizes.num_train

    @property
    def num_eval_train_examples(self) -> int:
        return self._sizes.num_eval_train

    @property
    def num_validation_examples(self) -> int:
        return self._sizes.num_validation

    @property
    def num_test_examples(self) -> int:
        return self._sizes.num_test

    @property
    def eval_batch_size(self) -> int:
        """Rounded up to what divides over the devices: evaluations fill up with weight 0."""
        return self.layout.rounded_up(self._sizes.eval_batch_size)

    @property
    def step_hint(self) -> int:
        return self._entry.step_hint

    # (regular expression on a parameter's path, axis names from the last dimension backwards);
    # see workloads/base/partition.py. None: every device holds all parameters.
    parameter_rules: tuple[tuple[str, tuple[str | None, ...]], ...] = ()

    @abc.abstractmethod
    def example_batch(self, batch_size: int) -> spec.Batch:
        """Returns a random batch of the shapes and dtypes that training uses: for `bench`."""

    def observable(self) -> Self:
        """Returns this workload with a model whose attention can be observed, for `model_fn` alone.

        It computes the same from `observable_parameters`. cuDNN's kernel, whose bias has shapes
        and a gradient of its own, gives way to XLA's form of the same call.
        """
        one = copy.copy(self)
        if self.variant is not None and self.variant.kernel == "cudnn":
            one.variant = dataclasses.replace(self.variant, kernel="jax_xla")
        return one

    def observable_parameters(self, params: spec.Parameters) -> spec.Parameters:
        """Returns parameters as the model of `observable` has them."""
        return params

    def _injected(self) -> contextlib.AbstractContextManager[None]:
        """Returns the context in which a model built on flax's attention runs the variant."""
        if self.variant is None:
            return contextlib.nullcontext()
        from attention import inject

        return inject.injected(self.variant, depth=self._depth)

    def _depth(self, path: str) -> int:
        """Returns a layer's index from 0, by which Differential attention sets its λ_init.

        path: of the attention module, its layer's number in it ('encoderblock_3/…'). Raises
        ValueError where there is none.
        """
        found = re.search(r"block_(\d+)", path, re.IGNORECASE)
        if found is None:
            raise ValueError(f"{self.name}: no layer number in {path!r}, which sets Diff's λ_init")
        return int(found[1])


def _or_nan(target: float | None) -> float:
    """Returns a target as a number: NaN, which no metric reaches, where none was published."""
    return math.nan if target is None else target
