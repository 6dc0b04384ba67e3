"""A trial: a frozen record of one training run; its id is the hash of what it computes."""

import dataclasses
import functools
import pathlib
from collections.abc import Iterable
from typing import Any, Protocol

from sweeps.launchers.config_keys import Role
from sweeps.records import layout
from sweeps.study import keys
from workloads.base.options import Options

# The version of the rule that makes ids. Records of schema 1 name none.
SCHEMA = 2
# Fields that ids leave out: the place in a study, the schema, and what is compared separately.
_PLACE = ("study", "stage", "point", "schema", "data_digest")
# Defaults that ids leave out: fields that were added after schema 2.
_OMITTED = {
    "matmul_precision": "default",
    "start": "",
    "workload_digest": "",
    "kv_heads": 0,
    "positions": "sinusoids",
    "global_every": 0,
    "document_mask": False,
}


class WorkItem(Protocol):
    """What a job computes: a trial, or an evaluation of a trained model."""

    @property
    def path(self) -> str:
        """Of its directory, relative to the study's."""

    @property
    def program(self) -> tuple[Any, ...]:
        """Items with equal programs share what is compiled."""

    @property
    def steps(self) -> int:
        """Updates of a trial, tasks of an evaluation."""


def jobs_of(items: Iterable[WorkItem], size: int) -> list[list[WorkItem]]:
    """Returns the items of each job: at most `size` of one program, which is compiled once."""
    by_program: dict[Any, list[WorkItem]] = {}
    for item in items:
        by_program.setdefault(item.program, []).append(item)
    return [
        together[start : start + size]
        for together in by_program.values()
        for start in range(0, len(together), size)
    ]


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run: workload × variant × hyperparameters × seed × budget.

    A field with the name of a study's key holds that key's value (`sweeps.study.keys`).

    targets: the workload's {"metric", "validation", "test"}. mesh: devices on the axes (data, fsdp,
    tensor). start: the content of another study's checkpoint whose parameters the trial starts
    from, '' for random ones; start_from: that checkpoint's folder (`sweeps.study.start`).
    data_digest: SHA-256 of the data, as their preparation wrote it; '' where it is unknown.
    workload_digest: of a workload of a user's module, `catalog.row_digest`; '' for ours.
    schema: of the id.
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
    mesh: tuple[int, ...]
    targets: dict[str, Any]
    loss_chunk_tokens: int = 0
    kv_heads: int = 0
    positions: str = "sinusoids"
    global_every: int = 0
    document_mask: bool = False
    microbatches: int = 1
    diagnostics: int = 0
    diagnostics_examples: int = 8
    checkpoint_minutes: int = 0
    tensorboard: bool = False
    profile: str = ""
    keep_checkpoints: int = 1
    downstream: str = ""
    matmul_precision: str = "default"
    start: str = ""
    start_from: str = ""
    data_digest: str = ""
    workload_digest: str = ""
    algoperf_dir: str = ""
    tokenizer_vocab_path: str = ""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        object.__setattr__(self, "mesh", tuple(self.mesh))  # JSON has lists

    @property
    def options(self) -> dict[str, Any]:
        """How the model is computed: the fields of `workloads.base.options.Options`."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(Options)}

    @property
    def extra_paths(self) -> dict[str, str]:
        """Where things lie beside the data: what `workloads.registry.make` takes by this name."""
        return {name: getattr(self, name) for name in EXTRA_PATHS}

    def evaluates_at(self, step: int) -> bool:
        """Whether there is an evaluation after `step` updates."""
        return step % self.eval_every == 0 or step == self.steps

    @property
    def evaluations(self) -> int:
        """How many evaluations there are."""
        return -(-self.steps // self.eval_every)

    @functools.cached_property
    def id(self) -> str:
        """16 hex digits: equal for runs that compute the same, wherever they stand in a study."""
        content = {
            name: value
            for name, value in self._fields().items()
            if name not in _NOT_IN_IDS and _OMITTED.get(name) != value
        }
        return layout.digest(content)[:16]

    @property
    def path(self) -> str:
        """Directory relative to the study's."""
        return layout.trial_path(self.stage, self.variant, self.workload, self.point, self.seed)

    @property
    def program(self) -> tuple[Any, ...]:
        """What determines the compiled train step: trials with equal programs share it."""
        tau, options = sorted(self.variant_hyperparameters.items()), self.options.values()
        model = (self.workload, self.variant, tuple(tau), self.kernel, tuple(options))
        return (
            *model,
            self.optimizer,
            self.batch_size,
            self.microbatches,
            self.matmul_precision,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the record as written to trial.json."""
        return {"id": self.id, **self._fields()}

    def _fields(self) -> dict[str, Any]:
        # dataclasses.asdict copies every value: most of a driver's time with 100,000 trials.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


_ROLES = keys.roles()
# Fields that are keys of a study.
SETTINGS = tuple(field.name for field in dataclasses.fields(Trial) if field.name in _ROLES)
# Where things lie that a job needs beside the data.
EXTRA_PATHS = tuple(name for name in SETTINGS if _ROLES[name] is Role.PATH)
# Fields that may change until a trial is finished: results differ by rounding alone.
CHANGEABLE = (*(name for name in SETTINGS if _ROLES[name].may_change), "start_from")
_NOT_IN_IDS = frozenset((*_PLACE, *CHANGEABLE))


def read(directory: pathlib.Path) -> Trial:
    """Returns the trial recorded in a trial's directory; raises as `from_record` does."""
    path = directory / layout.TRIAL
    return from_record(layout.read_json(path), path)


def from_record(record: Any, path: pathlib.Path) -> Trial:
    """Returns the trial that `record`, the content of the trial.json `path`, describes.

    Raises ValueError if it is damaged, of another schema, or its id not that of its content.
    """
    schema = record.get("schema", 1) if isinstance(record, dict) else SCHEMA
    if schema != SCHEMA:
        raise ValueError(
            f"{path}: its id is of schema {schema!r}, and this version makes those of schema "
            f"{SCHEMA}. {keys.OTHER_VERSION}"
        )
    try:
        names = [field.name for field in dataclasses.fields(Trial) if field.name in record]
        trial = Trial(**{name: record[name] for name in names})
    except TypeError as error:
        raise ValueError(f"{path} is not a trial record: {error}") from error
    if record.get("id") != trial.id:
        raise ValueError(
            f"{path}: id {record.get('id')} does not belong to its content ({trial.id}); was the "
            "file edited? A changed trial is another trial: remove the directory and run again"
        )
    return trial
