"""A trial: a frozen record of one training run; its id is the hash of what it computes."""

import dataclasses
import functools
import hashlib
import json
import pathlib
from typing import Any, Protocol

from sweeps.records import layout
from workloads import init2winit_specs
from workloads.base.options import Options

# What is looked at, or kept, while a trial trains; its result is the same.
LOOKED_AT = (
    "diagnose_every", "diagnose_examples", "checkpoint_minutes", "tensorboard", "profile",
    "keep_checkpoints", "downstream",
)  # fmt: skip
# Where things lie that a worker needs beside the data; the same content may lie elsewhere later.
EXTRA_PATHS = ("algoperf_dir", "tokenizer_vocab_path", "init2winit_dir")
PATHS = (*EXTRA_PATHS, "start_from")
# What is computed a part at a time, in how many parts.
IN_PARTS = ("loss_chunk_tokens", "microbatches")
# What ids of schema 1 had in them, too.
_HASHED_ONCE = ("mesh", "remat", "checkpoint_every")
# What ids leave out, and may change until a trial is finished. Results differ between meshes, with
# remat, and by the number of parts, by rounding alone.
CHANGEABLE = (*LOOKED_AT, *PATHS, *IN_PARTS, *_HASHED_ONCE)
# Which rule an id was made by. Records of schema 1 name none.
SCHEMA = 2
# Where the trial stands in a study and how it is recorded, not what it computes.
_PLACE = ("study", "stage", "point", "schema", "hashed_mesh")
_LEFT_OUT = {
    1: (*_PLACE, *(name for name in CHANGEABLE if name not in _HASHED_ONCE)),
    2: (*_PLACE, *CHANGEABLE),
}


class Task(Protocol):
    """What jobs are given: a trial, or the evaluation of a trained one.

    path: of its directory, relative to the study's. program: tasks with equal programs share what
    is compiled. steps: how many of `unit` it takes.
    """

    @property
    def path(self) -> str: ...
    @property
    def program(self) -> tuple[Any, ...]: ...
    @property
    def steps(self) -> int: ...
    @property
    def unit(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run: workload × variant × hyperparameters × seed × budget.

    steps, eval_every, log_every, checkpoint_every count updates; step_hint is the schedule's
    horizon; targets are the workload's {"metric", "validation", "test"}; compute_dtype to mesh and
    loss_chunk_tokens are the options of `workloads.base.options`; a batch is computed in so many
    microbatches. Diagnostics (`sweeps.training.diagnostics`) are recorded every `diagnose_every`
    updates, 0 for never, on `diagnose_examples` examples.
    checkpoint_minutes: between checkpoints beside those of checkpoint_every, 0 for none.
    tensorboard: whether event files are written (`sweeps.records.event_files`); profile: which
    updates are traced, 'first:last' (`sweeps.training.trace`), '' for none. keep_checkpoints: how
    many, of those that an evaluation goes with, outlive the training; downstream: the suite that
    the trained model is evaluated by, '' for none.
    matmul_precision: of `attention.precision`; in ids where it is not 'default', which ids of
    before it meant.
    start: the content of another study's checkpoint whose parameters the trial starts from, '' for
    random ones, of which ids know nothing; start_from: that checkpoint's folder
    (`sweeps.study.start`).
    algoperf_dir and tokenizer_vocab_path are what AlgoPerf's own workloads need, init2winit_dir and
    init2winit_config (in ids where it is given) what init2winit's do, '' for others.
    `schema` is that of the id; `hashed_mesh` is the mesh in an id of schema 1, which stays when the
    mesh changes.
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
    loss_chunk_tokens: int = 0
    microbatches: int = 1
    diagnose_every: int = 0
    diagnose_examples: int = 8
    checkpoint_minutes: int = 0
    tensorboard: bool = False
    profile: str = ""
    keep_checkpoints: int = 1
    downstream: str = ""
    matmul_precision: str = "default"
    start: str = ""
    start_from: str = ""
    algoperf_dir: str = ""
    tokenizer_vocab_path: str = ""
    init2winit_dir: str = ""
    init2winit_config: str = ""
    schema: int = SCHEMA
    hashed_mesh: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "mesh", tuple(self.mesh))  # JSON has lists
        if self.schema == 1:
            object.__setattr__(self, "hashed_mesh", tuple(self.hashed_mesh or self.mesh))

    @property
    def unit(self) -> str:
        """What `steps` counts."""
        return "step"

    @property
    def first_logged(self) -> int:
        """The update, from 0, whose loss is the first that is logged: init2winit has none of it."""
        return self.log_every - 1 if init2winit_specs.is_init2winit(self.workload) else 0

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
        content = {k: v for k, v in self._fields().items() if k not in _LEFT_OUT[self.schema]}
        if self.schema == 1:
            content["mesh"] = self.hashed_mesh
        if self.matmul_precision == "default":
            del content["matmul_precision"]
        for name in ("start", "init2winit_config"):
            if not content[name]:
                del content[name]
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def with_changes(self, other: "Trial") -> "Trial":
        """Returns the trial with what may change as `other` has it; its id stays.

        Trials of schema 1 keep the remat and the checkpoint_every that are in their ids.
        """
        names = [name for name in CHANGEABLE if name == "mesh" or name in _LEFT_OUT[self.schema]]
        return dataclasses.replace(self, **{name: getattr(other, name) for name in names})

    def computes_the_same(self, other: "Trial") -> bool:
        """Whether two trials are one by today's rule, whatever schema their ids are of."""
        mine, its = (
            dataclasses.replace(one, schema=SCHEMA, hashed_mesh=None) for one in (self, other)
        )
        return mine.id == its.id

    @property
    def path(self) -> str:
        """Directory relative to the study's."""
        return layout.trial_path(self.stage, self.variant, self.workload, self.point, self.seed)

    @property
    def program(self) -> tuple[Any, ...]:
        """What determines the compiled train step: trials with equal programs share it."""
        tau, options = sorted(self.variant_hyperparameters.items()), self.options.values()
        model = (self.workload, self.variant, tuple(tau), self.kernel, tuple(options))
        rest = (self.optimizer, self.batch_size, self.microbatches, self.matmul_precision)
        return (*model, *rest)

    def to_json(self) -> dict[str, Any]:
        """Returns the record as written to trial.json."""
        fields = self._fields()
        if self.hashed_mesh is None:
            del fields["hashed_mesh"]
        return {"id": self.id, **fields}

    def _fields(self) -> dict[str, Any]:
        # dataclasses.asdict copies every value: most of a driver's time with 100,000 trials.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


def read(directory: pathlib.Path) -> Trial:
    """Returns the trial recorded in a trial's directory; raises as `from_record` does."""
    path = directory / layout.TRIAL
    return from_record(layout.read_json(path), path)


def from_record(record: Any, path: pathlib.Path) -> Trial:
    """Returns the trial that `record`, the content of the trial.json `path`, describes.

    Raises ValueError where it is damaged, of a later version, or its id not that of its content.
    """
    fields = dataclasses.fields(Trial)
    needed = {field.name for field in fields if field.default is dataclasses.MISSING}
    missing = needed - set(record if isinstance(record, dict) else ())
    if missing:
        raise ValueError(f"{path} is not a trial record: it lacks {', '.join(sorted(missing))}")
    record = {"schema": 1, **record}
    if record["schema"] not in tuple(_LEFT_OUT):
        raise ValueError(
            f"{path}: its id is of schema {record['schema']!r}, and this version knows "
            f"{', '.join(map(str, _LEFT_OUT))}; continue the study with the version that wrote it"
        )
    names = [field.name for field in fields if field.name in record]
    try:
        trial = Trial(**{name: record[name] for name in names})
    except TypeError as error:
        raise ValueError(f"{path} is not a trial record: {error}") from error
    if record.get("id") != trial.id:
        raise ValueError(
            f"{path}: id {record.get('id')} does not belong to its content ({trial.id}); was the "
            "file edited? A changed trial is another trial: remove the directory and run again"
        )
    return trial
