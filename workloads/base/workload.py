"""What every workload of ours shares: sizes and targets, initial values, batches, evaluations."""

import abc
import copy
import dataclasses
import math
import operator
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Self

import jax
import numpy as np
from flax import linen as nn

from attention import backends
from workloads.base import loader, sharding, sources, spec
from workloads.base.options import Options
from workloads.base.workload_spec import WorkloadSpec


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Numbers of examples per split, and the batch size of evaluations."""

    num_train: int
    num_eval_train: int
    num_validation: int
    num_test: int
    eval_batch_size: int


class _Cache:
    """Records by split and directory; batches of evaluations by split, directory and size."""

    def __init__(self) -> None:
        self.sources: dict[tuple[str, str], sources.Source] = {}
        self.batches: dict[tuple[str, str, int], list[spec.Batch]] = {}


# Workloads that differ only in the variant share one cache, freed with the last of them: eight
# copies of Fashion-MNIST are 1.3 GB.
_CACHES: weakref.WeakValueDictionary[tuple[WorkloadSpec, Options], _Cache] = (
    weakref.WeakValueDictionary()
)


class BaseWorkload(spec.Workload):
    """A workload of the catalog with its variant; subclasses bring model, data and loss.

    `_open` gives the records of a split. `workloads.base.loader` makes batches of them on the host
    with `train_transform` or `eval_transform`. On the devices `_finish` makes a batch what the
    model takes.

    parameter_rules: (regular expression on a parameter's path, axis names from the last dimension
    backwards), see `workloads.base.sharding`; without rules every device holds all parameters.
    eval_example_bytes: bytes of a finished example on the devices. Evaluation splits of up to
    most_kept_bytes stay there between evaluations. When each evaluation finished them anew, 4 of 7
    trials on two CPU devices of a busy host ended with SIGABRT.
    item_metric: the metric of which `_evaluated` gives each item's value.
    id_limits: how many ids or classes the model has, by the entry of a transformed example that
    holds them. Batches with another id are refused (`workloads.base.loader`).
    """

    train_transform: loader.Transform
    eval_transform: loader.Transform
    eval_example_bytes: int
    most_kept_bytes = 2**28
    item_metric = "accuracy"
    id_limits: Mapping[str, int] = types.MappingProxyType({})

    def __init__(
        self,
        row: WorkloadSpec,
        model: nn.Module,
        variant: Any,
        options: Options,
        sizes: Sizes,
        *,
        cache: bool = False,
    ) -> None:
        """`model` has a field `variant`. cache: keep the records in memory once they are read."""
        self.name = row.name
        self.variant = variant
        self.options = options
        self.devices = sharding.Devices(options.mesh)
        self._row, self._sizes, self._model, self._cache = row, sizes, model, cache
        self._cached = _CACHES.setdefault((row, options), _Cache()) if cache else _Cache()
        self._finished = jax.jit(self._finish)
        self._eval_step = jax.jit(self._evaluated)
        self._init: Any = None

    def __str__(self) -> str:
        return self.name

    # meta_data_0.json lists the properties of a workload, as AlgoPerf's logger does.
    target_metric_name: Any = property(operator.attrgetter("_row.metric"))
    step_hint: Any = property(operator.attrgetter("_row.step_hint"))
    num_train_examples: Any = property(operator.attrgetter("_sizes.num_train"))
    num_eval_train_examples: Any = property(operator.attrgetter("_sizes.num_eval_train"))
    num_validation_examples: Any = property(operator.attrgetter("_sizes.num_validation"))
    num_test_examples: Any = property(operator.attrgetter("_sizes.num_test"))

    @property
    def validation_target_value(self) -> float:  # type: ignore[override]
        """NaN, which no metric reaches, if no target was published."""
        target = self._row.validation_target
        return math.nan if target is None else target

    @property
    def test_target_value(self) -> float:  # type: ignore[override]
        target = self._row.test_target
        return math.nan if target is None else target

    def has_reached_validation_target(self, eval_result: dict[str, float]) -> bool:
        return self._reaches(eval_result, "validation", self.validation_target_value)

    def has_reached_test_target(self, eval_result: dict[str, float]) -> bool:
        # finewebedu_lm has no test split.
        has_test = self.num_test_examples > 0
        return has_test and self._reaches(eval_result, "test", self.test_target_value)

    def _reaches(self, eval_result: dict[str, float], split: str, target: float) -> bool:
        value = eval_result[f"{split}/{self.target_metric_name}"]
        return value > target if self._row.mode == "max" else value < target

    @property
    def eval_batch_size(self) -> int:
        """Rounded up to what divides over the devices: evaluations fill up with weight 0."""
        return self.devices.rounded_up(self._sizes.eval_batch_size)

    def init_model_fn(self, rng: jax.Array) -> tuple[spec.Parameters, spec.ModelState]:
        """Returns parameters, placed by `parameter_rules`, and the replicated model state or None.

        The key is split as AlgoPerf does, so that equal keys give AlgoPerf's initial values.
        """
        params_rng, _ = jax.random.split(rng)
        if self._init is None:
            placed_model = copy.copy(self)
            placed_model._model = self._placed_model()
            placed: Any = self.devices.replicated()
            if self.parameter_rules:
                shapes = jax.eval_shape(placed_model._initial_variables, params_rng)
                placed = sharding.shardings(shapes, self.parameter_rules, self.devices.mesh)
            self._init = jax.jit(placed_model._initial_variables, out_shardings=placed)
        model_state = dict(self._init(params_rng))
        params = model_state.pop("params")
        self._param_shapes = jax.tree.map(lambda leaf: spec.ShapeTuple(leaf.shape), params)
        return params, model_state or None

    @abc.abstractmethod
    def _initial_variables(self, key: jax.Array) -> dict[str, Any]:
        """Returns the model's variables, 'params' among them."""

    def model_fn(
        self,
        params: spec.Parameters,
        augmented_and_preprocessed_input_batch: spec.Batch,
        model_state: spec.ModelState,
        mode: spec.ForwardPassMode,
        rng: jax.Array,
        update_batch_norm: bool,
        use_running_average_bn: bool | None = None,
        dropout_rate: Any = 0.0,
    ) -> tuple[jax.Array, spec.ModelState]:
        """Logits float32 of a model without state, and None; `dropout_rate` may be traced."""
        logits = self._called_model().apply(
            {"params": params},
            augmented_and_preprocessed_input_batch["inputs"],
            **self._model_settings(augmented_and_preprocessed_input_batch),
            train=mode == spec.ForwardPassMode.TRAIN,
            dropout_rate=dropout_rate,
            rngs={"dropout": rng},
        )
        return logits, None

    def _called_model(self) -> nn.Module:
        """Returns the model as `model_fn` applies it."""
        return self._placed_model()

    def _placed_model(self) -> nn.Module:
        """Returns the model; a kernel of one platform has the devices, which may not be here."""
        if self.variant is None or not backends.KERNELS[self.variant.kernel].platforms:
            return self._model
        return self._model.clone(
            variant=dataclasses.replace(self.variant, sharding=self.devices.heads())
        )

    def _model_settings(self, batch: spec.Batch) -> dict[str, Any]:
        """Returns what the model takes of a batch beside its inputs."""
        return {}

    def _eval_logits(
        self, params: spec.Parameters, model_state: spec.ModelState, batch: spec.Batch
    ) -> Any:
        """Returns the logits of an evaluation, which draws nothing."""
        evaluation, key = spec.ForwardPassMode.EVAL, jax.random.key(0)
        return self.model_fn(params, batch, model_state, evaluation, key, False)[0]

    @abc.abstractmethod
    def example_batch(self, batch_size: int) -> spec.Batch:
        """Returns a random batch of the shapes and dtypes that training uses: for `bench`."""

    def observable(self) -> Self:
        """cuDNN's kernel, whose bias has shapes and a gradient of its own, gives way to XLA's form
        of the same call; those for TPUs, which take no bias, to our core."""
        workload = copy.copy(self)
        kernel = self.variant and backends.KERNELS[self.variant.kernel].observed_by
        if kernel:
            workload.variant = dataclasses.replace(self.variant, kernel=kernel)
            workload._model = self._model.clone(variant=workload.variant)
        return workload

    @abc.abstractmethod
    def _open(self, split: str, data_dir: str) -> sources.Source:
        """Returns the records of train, validation or test. Raises DataError where they are not."""

    def _eval_train(self, source: sources.Source) -> sources.Source:
        """Returns the training examples that are evaluated, the same in every run."""
        return sources.fixed_subset(source, self.num_eval_train_examples)

    def _cached_record(self, record: dict[str, Any]) -> dict[str, Any]:
        """Returns a record as it is kept in memory."""
        return record

    def _source(self, split: str, data_dir: str) -> sources.Source:
        """Returns the split's records, opened once and, where small, read once."""
        if (split, data_dir) not in self._cached.sources:
            source = self._open("train" if split == "eval_train" else split, data_dir)
            if split == "eval_train":
                source = self._eval_train(source)
            if self._cache:
                source = sources.CachedSource(source, self._cached_record)
            self._cached.sources[split, data_dir] = source
        return self._cached.sources[split, data_dir]

    def _num_evaluated(self, split: str, source: sources.Source) -> int:
        """Returns how many of a split's records evaluations take."""
        return len(source)

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
    ) -> Iterator[spec.Batch]:
        """Batches as the class of the workload says, divided over the devices."""
        if split == "train":
            return self._train_batches(data_rng, data_dir, global_batch_size, start_step)
        return self._eval_batches(split, data_dir, global_batch_size)

    def _train_batches(
        self, data_rng: Any, data_dir: str, batch_size: int, start_step: int
    ) -> Iterator[spec.Batch]:
        seed, key = sharding.seed_and_key(data_rng)
        source = self._source("train", data_dir)
        if batch_size > len(source):
            raise ValueError(
                f"a batch of {batch_size:,} examples, and {source} has {len(source):,} to train "
                "on; choose a smaller batch_size"
            )
        stream = loader.train_batches(
            source,
            seed=seed,
            batch_size=batch_size,
            transform=self.train_transform,
            start_step=start_step,
            rows=self.devices.rows(batch_size),
            num_workers=self.loader_workers,
            id_limits=self.id_limits,
        )
        with stream:
            for step, batch in enumerate(stream, start_step):
                yield self._finished(self.devices.shard(batch), key, step)

    def _eval_batches(self, split: str, data_dir: str, batch_size: int) -> Iterator[spec.Batch]:
        """Yields a split's batches; those of a small split stay on the devices."""
        key = (split, data_dir, batch_size)
        if key in self._cached.batches:
            yield from self._cached.batches[key]
            return
        source = self._source(split, data_dir)
        num_examples = self._num_evaluated(split, source)
        is_small = num_examples * self.eval_example_bytes <= self.most_kept_bytes
        kept: list[spec.Batch] = []
        stream = loader.eval_batches(
            source,
            batch_size=batch_size,
            transform=self.eval_transform,
            num_examples=num_examples,
            rows=self.devices.rows(batch_size),
            num_workers=self.loader_workers,
            id_limits=self.id_limits,
        )
        with stream:
            for number, stored in enumerate(stream):
                batch = self._finished(self.devices.shard(stored), None, number * batch_size)
                if is_small:
                    kept.append(batch)
                yield batch
        if is_small:
            self._cached.batches[key] = kept

    @abc.abstractmethod
    def _finish(self, batch: spec.Batch, key: jax.Array | None, step: Any) -> Any:
        """Returns the loader's batch as `model_fn` and `loss_fn` take it; compiled.

        key: of the seed's data; None in evaluations. step: of training; in evaluations the number
        of the batch's first record.
        """

    @abc.abstractmethod
    def _evaluated(
        self, params: spec.Parameters, model_state: spec.ModelState, batch: spec.Batch
    ) -> tuple[dict[str, jax.Array], Any]:
        """Returns sums over a finished batch, and a tree of predictions for the host: 'values' and
        'weights' [B] of the items, as in `spec.Answers`, unless `_items` makes them of others."""

    def _items(self, predictions: list[Any], data_dir: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns values and weights of a split's items; those that fill up a batch may follow."""
        values, weights = (
            np.concatenate([batch[name] for batch in predictions]) for name in ("values", "weights")
        )
        return values, weights

    @abc.abstractmethod
    def _metrics(
        self, sums: dict[str, float], values: np.ndarray, weights: np.ndarray
    ) -> dict[str, float]:
        """Returns metrics from a split's sums and its items."""

    def _eval_model_on_split(
        self,
        split: str,
        global_batch_size: int,
        params: spec.Parameters,
        model_state: spec.ModelState,
        rng: jax.Array,
        data_dir: str,
        global_step: int = 0,
    ) -> dict[str, float]:
        """Sums per batch come from the devices in float32 and are added in float64."""
        sums, predictions = [], []
        for batch in self._eval_batches(split, data_dir, global_batch_size):
            batch_sums, predicted = self._eval_step(params, model_state, batch)
            sums.append(batch_sums)
            predictions.append(self.devices.on_host(predicted))
        totals = {name: float(sum(float(part[name]) for part in sums)) for name in sums[0]}
        num_examples = self._num_evaluated(split, self._source(split, data_dir))
        items = self._items(predictions, data_dir)
        values, weights = (array[:num_examples] for array in items)
        if split == ("test" if self.num_test_examples else "validation"):
            self.answers = spec.Answers(split, self.item_metric, values, weights)
        return {**self._metrics(totals, values, weights), "num_examples": num_examples}


def unchanged(record: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """Returns the record as it is, the transform that draws nothing."""
    return record
