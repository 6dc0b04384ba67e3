"""A trial: a frozen record of one training run; its id is the hash of what it computes."""

import dataclasses
import functools
import hashlib
import json
import pathlib
from typing import Any

from sweeps import layout
from workloads.options import Options

# What is looked at while a trial trains; its result is the same.
LOOKED_AT = ("diagnose_every", "diagnose_examples")
# Where things lie that a worker needs beside the data; the same content may lie elsewhere later.
PLACES = ("algoperf_dir", "tokenizer_vocab_path")
# What may change until a trial is finished; records of earlier versions lack some of these.
CHANGEABLE = (*LOOKED_AT, *PLACES)
# Where the trial stands in a study, not what it computes; the id leaves these out.
_NOT_COMPUTED = ("study", "stage", "point", *CHANGEABLE)


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run: workload × variant × hyperparameters × seed × budget.

    steps, eval_every, log_every, checkpoint_every count updates; step_hint is the schedule's
    horizon; targets are the workload's {"metric", "validation", "test"}; compute_dtype to mesh are
    the options of `workloads.options`. Diagnostics (`sweeps.diagnostics`) are recorded every
    `diagnose_every` updates, 0 for never, on `diagnose_examples` examples. The last two are
    directories and files that AlgoPerf's own workloads need, '' for others.
    """

    study: str
    stage: str
    workload: str
    variant: str
    variant_hyperparameters: dict[str, Any]
    hyperparameters: dict[str, float]
    point: int
    seed: int
    steps: int
    step_hint: int
    batch_size: int
    eval_every: int
    log_every: int
    checkpoint_every: int
    optimizer: str
    kernel: str
    compute_dtype: str
    param_dtype: str
    scan_layers: bool
    remat: bool
    mesh: tuple[int, int, int]
    targets: dict[str, Any]
    diagnose_every: int = 0
    diagnose_examples: int = 8
    algoperf_dir: str = ""
    tokenizer_vocab_path: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mesh", tuple(self.mesh))  # JSON has lists

    @property
    def options(self) -> dict[str, Any]:
        """How the model is computed: the fields of `workloads.options.Options`."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(Options)}

    @property
    def places(self) -> dict[str, str]:
        """Where things lie beside the data: what `workloads.registry.make` takes as `places`."""
        return {name: getattr(self, name) for name in PLACES}

    @functools.cached_property
    def id(self) -> str:
        """16 hex digits: equal for runs that compute the same, wherever they stand in a study."""
        content = {k: v for k, v in self._fields().items() if k not in _NOT_COMPUTED}
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def path(self) -> str:
        """Directory relative to the study's."""
        return layout.trial_path(self.stage, self.variant, self.workload, self.point, self.seed)

    @property
    def program(self) -> tuple[Any, ...]:
        """What determines the compiled train step: trials with equal programs share it."""
        tau = tuple(sorted(self.variant_hyperparameters.items()))
        return (
            self.workload,
            self.variant,
            tau,
            self.kernel,
            tuple(self.options.values()),
            self.optimizer,
            self.batch_size,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the record as written to trial.json."""
        return {"id": self.id, **self._fields()}

    def _fields(self) -> dict[str, Any]:
        # dataclasses.asdict copies every value: most of a driver's time with 100,000 trials.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


def read(directory: pathlib.Path) -> Trial:
    """Returns the trial recorded in a trial's directory.

    Raises ValueError where trial.json is damaged or its id is not that of its content.
    """
    path = directory / layout.TRIAL
    record = layout.read_json(path)
    fields = {field.name for field in dataclasses.fields(Trial)}
    needed = fields - set(CHANGEABLE)
    if not isinstance(record, dict) or not needed <= set(record):
        missing = sorted(needed - set(record)) if isinstance(record, dict) else sorted(needed)
        raise ValueError(f"{path} is not a trial record: it lacks {', '.join(missing)}")
    trial = Trial(**{name: record[name] for name in fields & set(record)})
    if record.get("id") != trial.id:
        raise ValueError(
            f"{path}: id {record.get('id')} does not belong to its content ({trial.id}); was the "
            "file edited? A changed trial is another trial: remove the directory and run again"
        )
    return trial
