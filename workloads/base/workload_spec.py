"""What there is to know of a workload without loading JAX. Standard library only."""

import dataclasses
from typing import Any

from attention import table
from workloads.base import errors

# Of models whose tokens see those on both sides.
BOTH_WAYS = ("causal", "attends to both sides")
# Of models whose queries and keys are rotated and normalised before a variant meets them.
OWN_QUERIES = (
    ("rope", "rotates its queries and keys itself"),
    ("qk_norm", "normalises its queries and keys itself"),
    ("qk_rms_norm", "normalises its queries and keys itself"),
)
KEEPS_SOFTMAX = ("inside", "weighs the values by a function of its own")


@dataclasses.dataclass(frozen=True)
class ModelSupport:
    """What a model can take of a study: one row per model, checked by `workloads.catalog.check`.

    lacks: (what, why it): names of `attention.entries.MODEL_NEEDS`, mixers or modifiers that it
    cannot serve. A model with KEEPS_SOFTMAX runs variants around its own function
    (`Variant.through_host`), and no other kernel.
    options: the fields of `workloads.base.options.Options` that may differ from their defaults;
    without `mesh` in it, every device holds all parameters.
    divided: (name, size, mesh axis) of the dimensions that the devices of an axis share. layers: of
    a language model.
    whole_batch: why microbatches would change what is computed; '' where they do not.
    decoder: whether the model gives the next token of a text: what downstream suites ask.
    observable: whether diagnostics can look into its attention.
    ignores: hyperparameters that change nothing: a study whose points have them warns.
    """

    lacks: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ("compute_dtype",)
    divided: tuple[tuple[str, int, str], ...] = ()
    layers: int = 0
    whole_batch: str = ""
    decoder: bool = False
    observable: bool = True
    ignores: tuple[str, ...] = ()

    @property
    def keeps_softmax(self) -> bool:
        """Whether the model weighs the values by a function of its own."""
        return KEEPS_SOFTMAX in self.lacks


@dataclasses.dataclass(frozen=True)
class WorkloadSpec:
    """One row of the catalog of workloads.

    factory: 'module:function' called with (this, variant, options, **extra_paths). model: what the
    factory makes its model with, in its own form. metric/mode: what validation selects by. Targets
    are in the metric's unit; None where nobody has published one; target_source says whose they
    are.
    parameters: of the standard variant; head_size: D. data: the module, or 'module:object', with
    `check(data_dir)` and `prepare(data_dir)`, or a class, made by the workload's name; data_name:
    the folder that workloads on the same data share; embedded says that `prepare` needs no
    download. stands_in_for: the full-size workload whose model class, loader and metric a small one
    has.
    support: what the model can take of a study.
    extra_paths: keys of a study that say where else something lies which the workload needs.
    train_examples: in the training split, 0 where the data that was prepared decides.
    unit: what throughput counts, units of it an example: 1024 tokens, 1 image. flops: a training
    step's model FLOP per example, forward and backward, of standard attention and without what
    rematerialisation repeats; attention_flops: the part of QKᵀ and A·V in it, one half each. Both
    are None where no formula is kept.
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
    # Of an example, forward and backward; attention_flops: the part of QKᵀ and A·V.
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
    # The accelerators that the workload is planned for (sweeps/training/accelerators.py).
    topology: str = ""

    def step_flops(
        self, variant: str, batch_size: int, parameters: int | None = None
    ) -> float | None:
        """Returns a training step's model FLOP with a variant, None where no formula is kept.

        As `flops`, and 6 per position for each of the mechanism's own parameters, where the model
        has so many `parameters`. QKᵀ counts by the mechanism's maps, A·V also by the width of its
        values: both maps of a pair of differential attention weigh values of twice the size.
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
