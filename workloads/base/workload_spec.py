"""The row of a workload in the catalog. Standard library only."""

import dataclasses
from typing import Any

from attention import table
from workloads.base import errors

# The lack of models whose tokens attend to both sides.
BOTH_WAYS = ("causal", "attends to both sides")
# The lacks of models that rotate and normalise their queries and keys themselves.
OWN_QUERIES = (
    ("rope", "rotates its queries and keys itself"),
    ("qk_norm", "normalises its queries and keys itself"),
    ("qk_rms_norm", "normalises its queries and keys itself"),
)
KEEPS_SOFTMAX = ("inside", "weighs the values by a function of its own")


@dataclasses.dataclass(frozen=True)
class ModelSupport:
    """The settings of a study that a model can take; `workloads.catalog.check` compares.

    lacks: (name, reason) of each need, mixer or modifier that it cannot serve; needs are those of
    `attention.entries.MODEL_NEEDS`. A model with KEEPS_SOFTMAX runs variants around its own
    function (`Variant.through_host`), and no other kernel.
    options: the fields of `workloads.base.options.Options` that may differ from their defaults.
    Without `mesh` every device holds all parameters.
    divided: (name, size, mesh axis) of the dimensions that the devices of an axis share.
    layers: number of layers of a language model.
    whole_batch: why microbatches would change the results; '' if they do not.
    decoder: whether the model predicts the next token of a text, as downstream suites need.
    observable: whether diagnostics can look into its attention.
    ignores: hyperparameters without effect; a study warns of them.
    """

    lacks: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ("compute_dtype",)
    divided: tuple[tuple[str, int, str], ...] = ()
    layers: int = 0
    whole_batch: str = ""
    decoder: bool = False
    observable: bool = True
    ignores: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class WorkloadSpec:
    """One row of the catalog of workloads.

    factory: 'module:function', called with (row, variant, options, **extra_paths). model: settings
    of the model, in the factory's form. metric, mode: metric of selection by validation, 'max' or
    'min'. Targets are in the metric's unit, None if none is published. target_source: their origin.
    parameters: number of the standard variant's. head_size: D.
    data: 'module' or 'module:object' with `check(data_dir, full=False)` and `prepare(data_dir,
    source=None)`. A class is called with the workload's name. data_name: folder that workloads on
    the same data share. embedded: `prepare` needs no download. stands_in_for: the full-size
    workload with the same model class, loader and metric.
    extra_paths: keys of a study with further paths that the workload needs.
    train_examples: size of the training split, 0 if the prepared data decide.
    unit, units: name and number of throughput units per example, such as 1024 tokens.
    flops: a training step's model FLOP per example, forward and backward, with standard attention
    and without rematerialisation. attention_flops: the part of QKᵀ and A·V, one half each. Both are
    None if there is no formula.
    """

    name: str
    factory: str
    data: str
    description: str
    metric: str
    mode: str
    batch_size: int
    step_hint: int
    validation_target: float | None
    test_target: float | None
    parameters: int
    head_size: int
    model: Any = dataclasses.field(default=None, hash=False)
    data_name: str = ""
    target_source: str = "AlgoPerf"
    embedded: bool = False
    stands_in_for: str = ""
    support: ModelSupport = ModelSupport()
    extra_paths: tuple[str, ...] = ()
    train_examples: int = 0
    unit: str = "examples"
    units: int = 1
    flops: float | None = None
    attention_flops: float | None = None
    # Places of an example at which each weight is used: tokens, patches, frames.
    positions: int = 0
    # Wall time of one update of batch_size examples, and where the figure is from: what
    # `sweeps plan` reckons with.
    step_seconds: float | None = None
    step_source: str = ""
    # The devices that the step time is for.
    devices: int = 1
    # The accelerators that the workload is planned for (attention/common/accelerators.py).
    topology: str = ""

    def step_flops(
        self, variant: str, batch_size: int, parameters: int | None = None
    ) -> float | None:
        """Returns a training step's model FLOP with a variant, None if there is no formula.

        Each parameter beyond those of the standard variant adds 6 FLOP a position; `parameters` is
        the number of all. QKᵀ counts once a map, A·V in proportion to the width of the values: both
        maps of differential attention weigh values of twice the size.
        """
        if self.flops is None or self.attention_flops is None:
            return None
        entry = table.MIXERS[table.mixer(variant)]
        products = entry.maps * (1 + entry.value_width) - 2
        extra = 0 if parameters is None else parameters - self.parameters
        of_example = self.flops + products * self.attention_flops / 2 + 6 * extra * self.positions
        return float(batch_size * of_example)

    def step_time(self, batch_size: int) -> tuple[float | None, str]:
        """Returns the wall time of an update of so many examples, and where the figure is from.

        It is taken to be in proportion to them.
        """
        if self.step_seconds is None or batch_size == self.batch_size:
            return self.step_seconds, self.step_source
        source = f"{self.step_source}, for batches of {self.batch_size}; scaled to {batch_size}"
        return self.step_seconds * batch_size / self.batch_size, source

    def repair(self, data_dir: str) -> str:
        """Returns the commands that make the workload's data, and say what is wrong with it."""
        source = "" if self.embedded else "WHERE_IT_WAS_DOWNLOADED"
        return errors.repair_commands(self.name, data_dir, source)
