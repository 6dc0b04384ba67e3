"""Jobs on disk: what was handed to an engine, in `<study>/jobs`.

    <batch>.json            launcher, tasks (trials of each job), environment; written first
    <batch>.handles.json    the engine's handle per job, once they are known
    <batch>.<i>.log         what a job printed
    <batch>.<i>.refused.json  {"host", "reason"}: a node that could not run the job

A batch without handles is one whose submission was interrupted: the engine is asked for it by name.
"""

import dataclasses
import os
import pathlib
import re
import socket
import time
import uuid
from collections.abc import Iterator
from typing import Any

from sweeps.launchers.protocol import Batch
from sweeps.records import layout

JOBS, CANCELLED = "jobs", "cancelled.json"
_HANDLES, _REFUSED = "handles", "refused"


@dataclasses.dataclass(frozen=True)
class Submission:
    """A batch as recorded. tasks: paths of trials relative to the study, per job.

    platform: 'cpu', 'gpu' or 'tpu', what its jobs must compute on; '' for whatever there is.
    """

    launcher: str
    tasks: tuple[tuple[str, ...], ...]
    batch: Batch
    platform: str

    @property
    def handles(self) -> list[str] | None:
        """The engine's handles, [] where nothing was submitted, None where that is not known."""
        found = layout.read_json_if_there(_beside(self.batch, _HANDLES))
        return None if found is None else [str(handle) for handle in found]

    def record(self, handles: list[str]) -> None:
        """Writes down the handles."""
        layout.write_json(_beside(self.batch, _HANDLES), handles)

    def refusal(self, index: int) -> dict[str, Any] | None:
        """Returns {"host", "reason"} where a node could not run job `index`."""
        return layout.read_json_if_there(_beside(self.batch, f"{index}.{_REFUSED}"))

    def refuse(self, index: int, reason: str) -> None:
        """Writes down, on a node, that it cannot run job `index`."""
        # In a pod the host's name is the pod's; Slurm's nodes may have names of their own.
        known = (os.environ.get(name) for name in ("ATTNPERF_NODE", "SLURMD_NODENAME"))
        host = next(filter(None, known), socket.gethostname())
        record = {"host": host, "reason": reason}
        layout.write_json(_beside(self.batch, f"{index}.{_REFUSED}"), record)

    def log_tail(self, index: int, lines: int = 8) -> list[str]:
        """Returns the last lines that job `index` printed."""
        try:
            text = self.batch.log(index).read_text(errors="replace")
        except OSError:
            return []
        return text.splitlines()[-lines:]


def _beside(batch: Batch, suffix: str) -> pathlib.Path:
    return batch.file.with_name(f"{batch.name}.{suffix}.json")


def new(
    study_directory: pathlib.Path,
    launcher: str,
    tasks: list[tuple[str, ...]],
    environment: dict[str, str],
    avoid: tuple[str, ...] = (),
    platform: str = "",
) -> Submission:
    """Writes down a batch before it is submitted, and returns it."""
    folder = study_directory.resolve() / JOBS
    folder.mkdir(exist_ok=True)
    # A name of letters, digits and '-': Kubernetes allows no more.
    slug = re.sub(r"[^a-z0-9]+", "-", study_directory.name.lower()).strip("-")[:24].strip("-")
    name = f"s-{slug}-{uuid.uuid4().hex[:8]}" if slug else f"s-{uuid.uuid4().hex[:8]}"
    file = folder / f"{name}.json"
    record = {
        "launcher": launcher,
        "created_at": time.time(),
        "environment": environment,
        "avoid": list(avoid),
        "platform": platform,
        "tasks": tasks,
    }
    layout.write_json(file, record)
    return read(file)


def read(file: pathlib.Path) -> Submission:
    """Returns the batch recorded in a file.

    Raises ValueError where it is no such record, OSError where it cannot be read.
    """
    record = layout.read_json(file)
    try:
        tasks = tuple(tuple(map(str, task)) for task in record["tasks"])
        batch = Batch(file.stem, file, len(tasks), record["environment"], tuple(record["avoid"]))
        return Submission(record["launcher"], tasks, batch, record["platform"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file} is no record of a batch of jobs ({error!r})") from error


def submissions(study_directory: pathlib.Path) -> Iterator[Submission]:
    """Yields every batch of a study."""
    folder = study_directory.resolve() / JOBS
    for file in sorted(folder.glob("s-*.json")):
        if "." not in file.stem:
            yield read(file)


def is_cancelled(study_directory: pathlib.Path) -> bool:
    """Whether a person has cancelled the study since it was last run.

    False where the file server does not say: it is asked again in a moment.
    """
    return os.path.exists(study_directory / CANCELLED)  # Path.exists raises ESTALE and EIO
