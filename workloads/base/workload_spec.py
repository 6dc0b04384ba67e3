"""One line of the table of workloads. Standard library only."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Entry:
    """What a driver must know of a workload without loading JAX.

    factory: 'module:function' called with (name, variant, options, **places). metric/mode: what
    validation selects by. Targets are in the metric's unit; None where nobody has published one;
    target_source says whose they are.
    parameters: of the standard variant; head_size: D. data: the module with `check(data_dir)` and
    `prepare(data_dir)`; data_name: the folder that workloads on the same data share; embedded says
    that `prepare` needs no download. stands_in_for: the full-size twin of an embedded workload.
    host_modifiers: modifiers that the model itself contains, so that no variant may add them.
    keeps_softmax: whether the model weighs the values by a function of its own, which variants can
    only wrap (`Variant.through_host`): no other kernel runs there, and not every mixer.
    places: keys of a study that say where else something lies which the workload needs.
    observable: whether diagnostics can look into its attention.
    serves: the fields of `workloads.base.options.Options` that may differ from their defaults;
    without `mesh` in it, every device holds all parameters.
    """

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
    data_name: str = ""
    target_source: str = "AlgoPerf"
    embedded: bool = False
    stands_in_for: str = ""
    host_modifiers: tuple[str, ...] = ()
    keeps_softmax: bool = False
    places: tuple[str, ...] = ()
    observable: bool = True
    serves: tuple[str, ...] = ("compute_dtype",)
    # Wall time of one update, and where the figure is from: what `sweeps plan` reckons with.
    step_seconds: float | None = None
    step_source: str = ""
    # The devices that the step time is for, and the memory of each: what a plan must fit into.
    devices: int = 1
    device_gb: float | None = None
