"""The interface of a launcher, and what all of them share: states, exit codes, variables.

A launcher runs jobs on an engine: this host, Slurm, Ray, Kubernetes. A job is one process of
`python -m sweeps job`, or several, which train one or several trials. Engines execute at least once
and their states lie: a job that saved itself during a preemption's grace is "TIMEOUT" to Slurm. So
an engine is never asked whether a trial is done: the trial's files say that.
"""

import abc
import enum
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from sweeps.launchers import config_keys
from sweeps.launchers.config_keys import Key
from sweeps.records.submissions import Batch

# Exit codes of a job: every trial finished; saved after an order to stop, or cut short: run it
# again (EX_TEMPFAIL of sysexits.h); this node cannot run it (no data, no device): try another.
FINISHED, AGAIN, WRONG_NODE = 0, 75, 76
# Variables by which an engine tells a process which one it is, of several that train a trial.
COORDINATOR = "ATTNPERF_COORDINATOR"
PROCESS_COUNT, PROCESS_ID = "ATTNPERF_NUM_PROCESSES", "ATTNPERF_PROCESS_ID"


class State(enum.StrEnum):
    """Where a job is, as far as its engine knows. UNKNOWN never causes a resubmission."""

    QUEUED = "queued"
    RUNNING = "running"
    GONE = "gone"
    UNKNOWN = "unknown"


class EngineError(Exception):
    """The engine refuses or cannot be reached; the message says what to do."""


class Devices(NamedTuple):
    """The devices of a job.

    kind: 'cpu', 'gpu' or 'tpu'. per_node: accelerators of a node. nodes: those of a trial. workers:
    processes of a node, which share its accelerators in equal parts; of several nodes, 1.
    """

    kind: str
    per_node: int
    nodes: int = 1
    workers: int = 1

    def check(self, launcher: str) -> None:
        """Raises ValueError if the processes of a job could not share its devices."""
        if self.nodes > 1 and self.workers > 1:
            raise ValueError(
                f"{launcher}.workers is {self.workers}, but a trial on {self.nodes} nodes has one "
                f"process on each: leave {launcher}.workers at its default"
            )
        if self.kind != "cpu" and self.per_node % self.workers:
            raise ValueError(
                f"{launcher}.workers is {self.workers}, but a job has {self.per_node} "
                "accelerator(s): give a number of workers that divides it"
            )

    def of_a_trial(self) -> int:
        """Returns how many devices a trial sees, on all its nodes; a CPU node counts 1."""
        return self.nodes * max(1, self.per_node // self.workers)


class Launcher(abc.ABC):
    """An engine for one study; adding one is a class and a line in `sweeps.launchers.table`.

    settings: the whole resolved config as plain data. Importing the class loads the standard
    library alone; other libraries are imported where they are used. Every method of an instance may
    be called by several drivers of one study at once.

    is_this_host: whether jobs run on the driver's host and end with it. place: those of its keys
    that say which engine it is, as they were resolved. Batches record them: `launcher` with these
    keys asks the engine that a batch went to. say: tells the user why jobs wait.
    """

    is_this_host = False
    # Of its keys in the config, --config.<name>.<key>.
    NAME: ClassVar[str]
    KEYS: ClassVar[Mapping[str, Key]]

    def __init__(self, settings: dict[str, Any], study_directory: pathlib.Path) -> None:
        """Raises ValueError if this host cannot use the engine."""
        self._settings, self._directory = settings, study_directory
        self._keys: dict[str, Any] = settings[self.NAME]
        self.place: dict[str, str] = {}
        self.say: Callable[[str], None] = lambda text: None

    @classmethod
    def check(cls, settings: dict[str, Any]) -> None:
        """Raises ValueError for settings that could not run. The engine is not needed."""
        config_keys.check(cls.KEYS, settings[cls.NAME], f"{cls.NAME}.")

    @classmethod
    @abc.abstractmethod
    def hardware(cls, settings: dict[str, Any]) -> Devices:
        """Returns the devices of a job. The engine is not needed."""

    @classmethod
    def preview(cls, settings: dict[str, Any], batch: Batch) -> str:
        """Returns what would be submitted for a batch's first job, '' where jobs are processes of
        this host. The engine is not needed."""
        del settings, batch
        return ""

    @staticmethod
    def requeue() -> bool:
        """Asks the engine to run the present job again; returns whether it will.

        Called inside a job that was told to stop and has saved. Where the engine runs no job twice,
        the driver submits it again.
        """
        return False

    def verify(self) -> None:  # noqa: B027  (most engines judge a job when it is submitted)
        """Asks the engine whether it would take the study's jobs; submits nothing.

        Raises ValueError if it would not; EngineError where it cannot be asked.
        """

    def capacity(self) -> int:
        """Returns how many jobs of this study may be submitted and not yet gone at a time."""
        return int(self._keys["max_jobs"])

    @abc.abstractmethod
    def submit(self, batch: Batch) -> list[str]:
        """Submits a batch; returns a handle per job, in order.

        Raises EngineError if the engine refuses, or gives no answer: what it may have taken all
        the same is asked for by `find`.
        """

    @abc.abstractmethod
    def find(self, batch: Batch) -> list[str] | None:
        """Returns the handles of a batch whose submission may have been interrupted.

        Submits nothing: a job that the engine never got is GONE. None if the engine knows none
        of them. Raises EngineError if it cannot be asked.
        """

    @abc.abstractmethod
    def status(self, handles: Sequence[str]) -> dict[str, State]:
        """Returns the state of every handle. Raises EngineError if the engine cannot be
        reached."""

    def queued(self, handles: Sequence[str]) -> dict[str, str]:
        """Returns the engine's reason for each of the handles that waits in its queue.

        Empty where jobs are processes of this host. Raises EngineError if the engine cannot be
        reached.
        """
        del handles
        return {}

    @abc.abstractmethod
    def cancel(self, handles: Sequence[str]) -> None:
        """Asks jobs to save and end; those that are gone are passed over.

        Raises EngineError if the engine cannot be reached.
        """

    def close(self) -> None:  # noqa: B027  (most have no connections)
        """Lets go of connections. Jobs go on; those of this host save and end."""
