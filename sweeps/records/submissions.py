"""Jobs on disk: what was handed to an engine, in `<study>/jobs`.

    <batch>.json            launcher, tasks (lists of trials), sharing, attempts, environment; first
    <batch>.handles.json    the engine's handle per job, once they are known
    <batch>.<i>.log         what a job printed, where its engine keeps that here
    <batch>.<i>.started.json  {"host", "pid", "started_at"}: the job was started
    <batch>.<i>.claims      a line per trial that the job has claimed; '.' once it has tried all
    <batch>.<i>.refused.json  {"host", "reason"}: a node that could not run the job
    withdrawn.json          "<batch> <handle>" of jobs that a person has had submitted again

A batch without handles is one whose submission was interrupted: the engine is asked for it by name.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sweeps.records import layout, lease

JOBS, CANCELLED, WITHDRAWN = "jobs", "cancelled.json", "withdrawn.json"
CLAIMS_END = "."
_NAME = re.compile(r"s-[a-z0-9-]+")
_TYPES = {
    "tasks": list,
    "environment": dict,
    "avoid": list,
    "launcher": str,
    "platform": str,
    "place": dict,
    "created_at": float,
    "sharing": int,
    "settings": dict,
    "attempts": dict | None,
}


@dataclasses.dataclass(frozen=True)
class Batch:
    """Jobs submitted together, with indices 0 … size − 1, as recorded in `file`.

    jobs: of each job, its trials' paths relative to the study. sharing: so many jobs, with
    neighbouring indices, have the same trials, of which each claims the next free one. environment:
    variables that a job's process needs. avoid: hosts that could not run jobs of this study.
    platform: 'cpu', 'gpu' or 'tpu', what its jobs must compute on; '' for whatever there is. place:
    the launcher's keys that say which engine it is, as `Launcher.place`. created_at: Unix time,
    seconds. settings: keys of the study, with their values, that are not those of its study.json.
    attempts: by path, the number of the last attempt at submission; trials without one, and jobs of
    engines, are left out.
    """

    file: pathlib.Path
    jobs: tuple[tuple[str, ...], ...]
    environment: dict[str, str]
    avoid: tuple[str, ...] = ()
    launcher: str = ""
    platform: str = ""
    place: dict[str, str] = dataclasses.field(default_factory=dict)
    created_at: float = 0.0
    sharing: int = 1
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    attempts: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """Unique among batches of all studies, the same when a submission is repeated.

        Lower-case letters, digits and '-', at most 40 characters, begins with a letter.
        """
        return self.file.stem

    @property
    def size(self) -> int:
        """How many jobs."""
        return len(self.jobs)

    @property
    def paths(self) -> frozenset[str]:
        """The trials of all jobs."""
        return frozenset().union(*self.jobs)

    def command(self, index: int | str, python: str = "") -> list[str]:
        """Returns the command of a job; `index` may be a shell variable such as '$TASK'."""
        command = [python or sys.executable, "-m", "sweeps", "job"]
        return [*command, str(self.file), f"--index={index}"]

    def log(self, index: int | str) -> pathlib.Path:
        """Returns where a job's output belongs."""
        return self.file.with_name(f"{self.name}.{index}.log")

    @property
    def handles(self) -> list[str] | None:
        """The engine's handles, [] where nothing was submitted, None if that is not known."""
        try:
            return _names(self.file, layout.read_json(_beside(self.file, "handles")))
        except (*layout.ABSENT, ValueError):  # the latter: emptied by a crash of the host
            return None

    def record(self, handles: list[str]) -> None:
        """Writes down the handles."""
        layout.write_json(_beside(self.file, "handles"), handles)

    def has_started(self, index: int) -> bool:
        """Whether job `index` is known to have started: it says so, or something was printed."""
        return _beside(self.file, f"{index}.started").exists() or self.log(index).exists()

    def note_claim(self, index: int, line: str) -> None:
        """Writes down, on a node, the trial that job `index` has claimed, or CLAIMS_END."""
        with self._claims(index).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def claims(self, index: int, offset: int = 0) -> tuple[list[str], int]:
        """Returns the lines that job `index` has added behind `offset` bytes, and where they end.

        Lines: the paths of the trials that it has claimed, CLAIMS_END.
        """
        try:
            with self._claims(index).open("rb") as file:
                file.seek(offset)
                added = file.read()
        except FileNotFoundError:
            return [], offset
        whole = added[: added.rfind(b"\n") + 1]
        return whole.decode(errors="replace").splitlines(), offset + len(whole)

    def _claims(self, index: int) -> pathlib.Path:
        return self.file.with_name(f"{self.name}.{index}.claims")

    def refusal(self, index: int) -> dict[str, Any] | None:
        """Returns {"host", "reason"} where a node could not run job `index`, None without that
        record or of a damaged one."""
        file = _beside(self.file, f"{index}.refused")
        return layout.read_record(file, host=str, reason=str) or None

    def refuse(self, index: int, reason: str) -> None:
        """Writes down, on a node, that it cannot run job `index`."""
        # In a pod the host's name is the pod's; Slurm's nodes may have names of their own.
        known = (os.environ.get(name) for name in ("ATTNPERF_NODE", "SLURMD_NODENAME"))
        host = next(filter(None, known), socket.gethostname())
        layout.write_json(_beside(self.file, f"{index}.refused"), {"host": host, "reason": reason})


def note_start(file: pathlib.Path, index: int) -> None:
    """Writes down, on a node, that job `index` of the batch in a file was started.

    Not every engine leaves a log here: without one, a job that ends before it claims a trial would
    look like one that never ran. A node that cannot write has no trial either, and says so then.
    """
    with contextlib.suppress(OSError):
        if file.is_file():
            record = {"host": socket.gethostname(), "pid": os.getpid(), "started_at": time.time()}
            layout.write_json(_beside(file, f"{index}.started"), record)


def process(study_directory: pathlib.Path, job: str) -> int | None:
    """Returns the process number of a job that has noted its start, by `<batch>-<index>`."""
    batch, _, index = job.rpartition("-")
    file = study_directory / JOBS / f"{batch}.json"
    pid = layout.read_record(_beside(file, f"{index}.started"), pid=int).get("pid", 0)
    return pid if pid > 0 else None  # others are groups of processes


def _beside(file: pathlib.Path, suffix: str) -> pathlib.Path:
    return file.with_name(f"{file.stem}.{suffix}.json")


def _names(file: pathlib.Path, content: Any) -> list[str]:
    """Returns a list of names from the content of a file. Raises ValueError, naming the file, if
    it is none."""
    if not (isinstance(content, list) and all(isinstance(name, str) for name in content)):
        raise ValueError(f"{file} is damaged: {content!r:.80} is not a list of names")
    return content


def new(
    study_directory: pathlib.Path,
    launcher: str,
    jobs: list[tuple[str, ...]],
    environment: dict[str, str],
    avoid: tuple[str, ...] = (),
    platform: str = "",
    place: Mapping[str, str] | None = None,
    sharing: int = 1,
    settings: Mapping[str, Any] | None = None,
) -> Batch:
    """Writes down a batch before it is submitted, and returns it.

    jobs: lists of trials, each of which `sharing` jobs have.
    """
    folder = study_directory.resolve() / JOBS
    folder.mkdir(exist_ok=True)
    # A name of letters, digits and '-': Kubernetes allows no more.
    slug = re.sub(r"[^a-z0-9]+", "-", study_directory.name.lower()).strip("-")[:24].strip("-")
    name = f"s-{slug}-{uuid.uuid4().hex[:8]}" if slug else f"s-{uuid.uuid4().hex[:8]}"
    file = folder / f"{name}.json"
    paths = set().union(*jobs) if launcher == "local" else ()
    latest = {path: lease.latest(study_directory / path) for path in paths}
    record = {
        "launcher": launcher,
        "created_at": time.time(),
        "environment": environment,
        "avoid": list(avoid),
        "platform": platform,
        "tasks": jobs,
        "place": dict(place or {}),
        "sharing": sharing,
        "settings": dict(settings or {}),
        "attempts": {path: number for path, number in latest.items() if number},
    }
    layout.write_json(file, record)
    return read(file)


def read(file: pathlib.Path) -> Batch:
    """Returns the batch recorded in a file.

    Raises ValueError if it is no such record, OSError if it cannot be read.
    """
    record = layout.record(file, **_TYPES)
    sharing = record["sharing"]
    return Batch(
        file=file,
        jobs=tuple(tuple(_names(file, paths)) for paths in record["tasks"] for _ in range(sharing)),
        environment=record["environment"],
        avoid=tuple(_names(file, record["avoid"])),
        launcher=record["launcher"],
        platform=record["platform"],
        place=record["place"],
        created_at=record["created_at"],
        sharing=sharing,
        settings=record["settings"],
        attempts=record.get("attempts") or {},
    )


def files(study_directory: pathlib.Path) -> list[pathlib.Path]:
    """Returns the records of a study's batches, by name."""
    folder = study_directory / JOBS
    # By their whole name: synchronised folders hold copies called 's-x-0123abcd (conflict).json'.
    return [file for file in sorted(folder.glob("s-*.json")) if _NAME.fullmatch(file.stem)]


def batches(study_directory: pathlib.Path, say: Callable[[str], None] = print) -> Iterator[Batch]:
    """Yields every batch of a study; `say` is told of a damaged record, which is passed over.

    Raises OSError if a record cannot be read.
    """
    for file in files(study_directory.resolve()):
        try:
            yield read(file)
        except ValueError as error:
            say(f"{error}; it is passed over: jobs of it, if there are any, are not looked after")


def cancellation(study_directory: pathlib.Path) -> dict[str, Any] | None:
    """Returns the mark of a study that a person has cancelled, of which no two are the same; None
    without one, or of a damaged one."""
    return layout.read_record(study_directory / CANCELLED) or None


def withdrawn(study_directory: pathlib.Path, say: Callable[[str], None] = print) -> set[str]:
    """Returns "<batch> <handle>" of every job that was withdrawn from its queue; `say` is told of a
    damaged record, which is passed over.

    Some engines keep it there, so it counts as gone. One that starts all the same claims trials as
    any other job does.
    """
    file = study_directory / JOBS / WITHDRAWN
    try:
        return set(_names(file, layout.read_json(file)))
    except layout.ABSENT:
        return set()
    except ValueError as error:
        say(f"{error}; it is passed over: withdrawn jobs that their engine keeps count as queued")
        return set()


def withdraw(study_directory: pathlib.Path, jobs: Mapping[str, Batch]) -> None:
    """Writes down that jobs, by their handles, were withdrawn."""
    added = {f"{batch.name} {handle}" for handle, batch in jobs.items()}
    path = study_directory / JOBS / WITHDRAWN
    layout.write_json(path, sorted(withdrawn(study_directory, say=lambda text: None) | added))


def is_cancelled(study_directory: pathlib.Path) -> bool:
    """Whether a person has cancelled the study since it was last run.

    False if the file server does not say: it is asked again in a moment.
    """
    return os.path.exists(study_directory / CANCELLED)  # Path.exists raises ESTALE and EIO
