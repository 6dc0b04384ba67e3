"""The interface of a workload: AlgoPerf's `spec.Workload`, its names and their meaning.

Source: algoperf/spec.py and submission_runner.py of mlcommons/algorithmic-efficiency. Written anew
so that nothing of AlgoPerf need be installed; a training loop written against this class drives
AlgoPerf's own workload objects, and theirs ours. What is added here is said so.
"""

import abc
import dataclasses
import enum
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import numpy as np
from jax import Array

from workloads.base import sharding

Parameters = Any
ModelState = Any
Batch = dict[str, Array]


class ForwardPassMode(enum.Enum):
    """What `model_fn` is called for."""

    TRAIN = 0
    EVAL = 1


class LossType(enum.Enum):
    """AlgoPerf's loss types that workloads here use, with its values."""

    SOFTMAX_CROSS_ENTROPY = 0
    CTC_LOSS = 3


@dataclasses.dataclass(frozen=True)
class ShapeTuple:
    """A parameter's shape as a leaf of a tree (a bare tuple would be a subtree)."""

    shape_tuple: tuple[int, ...]


class Answers(NamedTuple):
    """What an evaluation says of each item of a split, in the order of the data.

    An item is an image, an utterance, a sequence of tokens or a question. values [N]: bool (right
    or wrong), errors, or losses in nats. weights [N]: 1, words or tokens. Σ values / Σ weights is
    the split's `metric`.
    """

    split: str
    metric: str
    values: np.ndarray
    weights: np.ndarray


class Workload(abc.ABC):
    """Model + data + loss + metric + targets.

    Metrics are named `<split>/<metric>` with splits train, validation, test; accuracies and error
    rates are fractions in [0, 1], losses are in nats per example (per token for text, per target
    id for speech).

    target_metric_name: the metric that targets are about, such as 'accuracy', with the value to
    reach on validation and on test. num_eval_train_examples: how many training examples
    `train/...` metrics are taken over. step_hint: steps of a full training run; schedules are
    fractions of it.
    """

    target_metric_name: str
    validation_target_value: float
    test_target_value: float
    loss_type: LossType
    num_train_examples: int
    num_eval_train_examples: int
    num_validation_examples: int
    num_test_examples: int
    step_hint: int
    _param_shapes: Any = None
    # How a batch and the parameters are divided over devices (`workloads.base.sharding`). Ours.
    devices: sharding.Devices = sharding.Devices()
    parameter_rules: tuple[sharding.Rule, ...] = ()
    # Of the last evaluation, on test or, without a test split, on validation; None where there are
    # none. Ours.
    answers: Answers | None = None
    # Processes that make training batches ahead of time; 0: threads. Changes speed alone. Ours.
    loader_workers: int = 0

    def observable(self) -> Self:
        """Returns this workload with a model whose attention can be observed, for `model_fn` alone.

        It computes the same from `observable_parameters`. Ours, as the next one.
        """
        return self

    def observable_parameters(self, params: Parameters) -> Parameters:
        """Returns parameters as the model of `observable` has them."""
        return params

    @abc.abstractmethod
    def has_reached_validation_target(self, eval_result: dict[str, float]) -> bool:
        """Whether an evaluation is past the validation target."""

    @abc.abstractmethod
    def has_reached_test_target(self, eval_result: dict[str, float]) -> bool:
        """Whether an evaluation is past the test target."""

    @property
    @abc.abstractmethod
    def eval_batch_size(self) -> int:
        """Batch size of evaluations."""

    @property
    def param_shapes(self) -> Any:
        """The parameter tree with `ShapeTuple` leaves. ValueError before `init_model_fn`."""
        if self._param_shapes is None:
            raise ValueError("param_shapes are known after init_model_fn; call that first")
        return self._param_shapes

    @abc.abstractmethod
    def is_output_params(self, param_key: str) -> bool:
        """Whether a top-level key of the parameters is the output layer."""

    @abc.abstractmethod
    def init_model_fn(self, rng: Array) -> tuple[Parameters, ModelState]:
        """Returns initial parameters and model state (None where there is none)."""

    @abc.abstractmethod
    def model_fn(
        self,
        params: Parameters,
        augmented_and_preprocessed_input_batch: Batch,
        model_state: ModelState,
        mode: ForwardPassMode,
        rng: Array,
        update_batch_norm: bool,
        use_running_average_bn: bool | None = None,
        dropout_rate: Any = 0.0,
    ) -> tuple[Array, ModelState]:
        """Returns logits and the new model state. `dropout_rate` may be traced."""

    @abc.abstractmethod
    def loss_fn(
        self,
        label_batch: Array,
        logits_batch: Array,
        mask_batch: Array | None = None,
        label_smoothing: Any = 0.0,
    ) -> dict[str, Array]:
        """Returns 'summed' loss, 'n_valid_examples', and 'per_example' losses [B]."""

    def train_loss(
        self,
        params: Parameters,
        batch: Batch,
        model_state: ModelState,
        rng: Array,
        dropout_rate: Any,
        label_smoothing: Any,
    ) -> tuple[dict[str, Array], ModelState]:
        """Returns `loss_fn` of `model_fn`'s logits for a training batch, and the new model state.

        Ours: what our train step calls. A workload may compute 'summed' and 'n_valid_examples',
        which are all that is asked, without ever holding the logits.
        """
        logits, model_state = self.model_fn(
            params,
            batch,
            model_state,
            ForwardPassMode.TRAIN,
            rng,
            update_batch_norm=True,
            dropout_rate=dropout_rate,
        )
        losses = self.loss_fn(batch["targets"], logits, batch.get("weights"), label_smoothing)
        return losses, model_state

    @abc.abstractmethod
    def _build_input_queue(
        self,
        data_rng: Any,
        split: str,
        data_dir: str,
        global_batch_size: int,
        cache: bool | None = None,
        repeat_final_dataset: bool | None = None,
        num_batches: int | None = None,
        start_step: int = 0,
    ) -> Iterator[Batch]:
        """Returns batches of a split (train, eval_train, validation, test) on the devices.

        Training batches are a pure function of (data_rng, step); `start_step`, which AlgoPerf
        does not have, is the step of the first one, so that a resumed run sees what it would
        have seen.
        """

    @abc.abstractmethod
    def _eval_model_on_split(
        self,
        split: str,
        global_batch_size: int,
        params: Parameters,
        model_state: ModelState,
        rng: Array,
        data_dir: str,
        global_step: int = 0,
    ) -> dict[str, float]:
        """Returns the split's metrics by their bare names ('accuracy', 'loss'), and
        'num_examples', how many examples were evaluated."""

    def eval_model(
        self,
        global_batch_size: int,
        params: Parameters,
        model_state: ModelState,
        rng: Array,
        data_dir: str,
        imagenet_v2_data_dir: str | None = None,
        global_step: int = 0,
    ) -> dict[str, float]:
        """Returns all splits' metrics as `<split>/<metric>`, with num_examples as AlgoPerf logs."""
        results: dict[str, float] = {}
        splits = (
            ("train", "eval_train", self.num_eval_train_examples),
            ("validation", "validation", self.num_validation_examples),
            ("test", "test", self.num_test_examples),
        )
        for name, split, planned in splits:
            if not planned:  # finewebedu_lm has no test split
                results[f"{name}/num_examples"] = 0
                continue
            directory = imagenet_v2_data_dir if split == "test" else None
            metrics = self._eval_model_on_split(
                split,
                global_batch_size,
                params,
                model_state,
                rng,
                directory or data_dir,
                global_step,
            )
            results |= {f"{name}/{metric}": value for metric, value in metrics.items()}
        # AlgoPerf logs no number of training examples.
        results.pop("train/num_examples", None)
        return results
