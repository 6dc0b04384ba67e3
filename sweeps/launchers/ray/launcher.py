"""The Ray launcher: one Ray job per job of a batch, on a cluster that is there.

Jobs API, not Ray tasks, which die with their driver, nor Ray Tune, which has its own idea of trials
and of where they write. A job's id is its batch's name and its index: Ray refuses an id that it
knows, so that nothing is submitted twice, and a submission is found by name.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import pathlib
import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from sweeps.launchers import remote
from sweeps.launchers.config_keys import Key, Range, Text
from sweeps.launchers.protocol import Devices, EngineError, Launcher, State
from sweeps.launchers.ray import job as ray_job
from sweeps.records import submissions
from sweeps.records.submissions import Batch

if TYPE_CHECKING:
    from sweeps.launchers.ray.client import Cluster

_REST_S = 5.0
_STATES = {"PENDING": State.QUEUED, "RUNNING": State.RUNNING}
_START_TIMEOUT = "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"
# What Ray's client of the Jobs API imports; plain `ray` has not all of it.
_NEEDED = ("ray", "requests", "pydantic", "aiohttp")
_START = (
    "start one (ray start --head; docs/ray.md) and give --config.ray.address=http://127.0.0.1:8265"
)


def address(text: str) -> str:
    """Returns the dashboard of the cluster, '' where none is named.

    `text` is config.ray.address; where empty, $RAY_API_SERVER_ADDRESS or $RAY_ADDRESS. Raises
    ValueError for what is no dashboard's address.
    """
    source = "ray.address"
    if not text:
        names = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
        source = next((name for name in names if name in os.environ), names[-1])
        text = os.environ.get(source, "")
    if text and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", text):
        raise ValueError(
            f"{source} is {text!r}; give the dashboard's address, such as http://HOST:8265. A "
            f"study starts no Ray of its own: {_START}"
        )
    return text


class Ray(Launcher):
    """A study's jobs on a cluster; a handle is a job's submission id."""

    NAME = "ray"
    KEYS: ClassVar = {
        "address": Key("", "the dashboard's, http://HOST:8265; empty: $RAY_ADDRESS", Text()),
        "cpus": Key(1, "of one job, as Ray counts them", Range(0, 65_536)),
        "gpus": Key(0, "of one job", Range(0, 1024)),
        "tpus": Key(0, "of one job: chips of one host", Range(0, 1024)),
        "memory": Key("", "of one job, e.g. 16G; Ray counts it, and enforces nothing", Text()),
        "resources": Key("", "more of Ray's, e.g. accelerator_type:H100=0.001,big_disk=1", Text()),
        "trials_per_job": remote.TRIALS_PER_JOB,
        "workers": Key(1, "processes of one job that share its devices", remote.PROCESSES),
        "max_jobs": Key(
            0,
            "queued or running at a time; 0: as many as the cluster's nodes hold",
            Range(0, 1_000_000),
        ),
        "environment": Key("", "NAME=VALUE NAME='VALUE WITH SPACES'", Text()),
        "setup": Key("", "shell commands before a job, e.g. module load cuda", Text()),
        "python": Key("", "on the nodes; empty: the driver's", Text()),
        "poll_seconds": Key(5, "between questions to Ray", remote.SECONDS),
    }

    def __init__(self, settings: dict[str, Any], study_directory: pathlib.Path) -> None:
        super().__init__(settings, study_directory)
        self.place = {"address": address(self._keys["address"])}
        if not self.place["address"]:
            raise ValueError(f"no Ray cluster is named: {_START}")
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise ValueError(
                f"launcher ray needs Ray's client, and this Python lacks {', '.join(missing)}: "
                "pip install 'attnperf[ray]'"
            )
        self._connected: Cluster | None = None
        # When a job was first seen to have been given up by Ray, of those to be queued again.
        self._given_up: dict[str, float] = {}

    @classmethod
    def check(cls, settings: dict[str, Any]) -> None:
        """Raises ValueError for what could not run."""
        super().check(settings)
        keys = settings["ray"]
        ray_job.request(keys)
        devices = cls.hardware(settings)
        if not keys["cpus"] and devices.kind == "cpu":
            raise ValueError("ray.cpus is 0; give 1 or more, or Ray would run all jobs on its head")
        devices.check("ray")
        remote.variables(keys["environment"])
        address(keys["address"])

    @classmethod
    def hardware(cls, settings: dict[str, Any]) -> Devices:
        """Returns the devices of a job, which lives on one node."""
        keys = settings["ray"]
        if keys["gpus"]:
            return Devices("gpu", keys["gpus"], workers=keys["workers"])
        return Devices("tpu" if keys["tpus"] else "cpu", keys["tpus"], workers=keys["workers"])

    @classmethod
    def preview(cls, settings: dict[str, Any], batch: Batch) -> str:
        """Returns the submission of a batch's first job as JSON."""
        return json.dumps(ray_job.body(batch, 0, settings["ray"], {}), indent=2)

    @contextlib.contextmanager
    def _cluster(self) -> Iterator["Cluster"]:
        """Yields Ray's client. Raises EngineError if the cluster refuses, or does not answer as
        Ray does."""
        client = importlib.import_module("sweeps.launchers.ray.client")
        try:
            if self._connected is None:
                self._connected = client.Cluster(self.place["address"])
            yield self._connected
        except client.ERRORS as error:
            text = "\n".join(line for line in str(error).splitlines() if line.strip(" ."))
            raise EngineError(
                f"Ray's dashboard at {self.place['address']} refuses or does not answer as Ray "
                f"does ({type(error).__name__}: {remote.last_line(text)}): check "
                "--config.ray.address, and with a token RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or "
                "RAY_AUTH_TOKEN_PATH"
            ) from error

    def capacity(self) -> int:
        """Returns max_jobs, or how many jobs the cluster's nodes hold; at least 1."""
        if self._keys["max_jobs"]:
            return super().capacity()
        request = ray_job.request(self._keys)
        try:
            with self._cluster() as cluster:
                count = sum(ray_job.holds(node, request) for node in cluster.resources())
        except EngineError:
            return 1
        # A job that no node holds waits for one: clusters grow by what waits.
        return max(1, count)

    def submit(self, batch: Batch) -> list[str]:
        """Submits a batch, or what an interrupted submission left of it."""
        handles = remote.job_names(batch)
        selector = self._elsewhere(batch.avoid)
        for index, handle in enumerate(handles):
            body = ray_job.body(batch, index, self._keys, selector)
            try:
                with self._cluster() as cluster:
                    cluster.submit_job(submission_id=handle, **body)
            except EngineError:
                # From the list: a proxy in Ray's place would say 404 of any job.
                if handle in self._jobs():  # raises where nobody answers
                    continue  # this submission repeats one that was cut short
                if index == 0:
                    raise
                break  # those that Ray does not know are soon found to be gone
        return handles

    def _jobs(self) -> dict[str, Any]:
        with self._cluster() as cluster:
            return cluster.jobs()

    def _elsewhere(self, avoid: Sequence[str]) -> dict[str, str]:
        """Returns the label selector that keeps jobs off hosts; {} for none.

        Raises EngineError if no host is left.
        """
        if not avoid:
            return {}
        with self._cluster() as cluster:
            hosts = cluster.hosts()
        refused = sorted(node for node, host in hosts.items() if host in avoid)
        if refused and len(refused) == len(hosts):
            raise EngineError(
                f"no node of the Ray cluster can run this study's jobs: {', '.join(avoid)}. Their "
                "logs, in the study's jobs folder, say why"
            )
        return {"ray.io/node-id": f"!in({','.join(refused)})"} if refused else {}

    def find(self, batch: Batch) -> list[str] | None:
        """Returns the handles where Ray knows a job of the batch; what is missing is GONE."""
        handles = remote.job_names(batch)
        # Jobs are submitted in order.
        return handles if handles[0] in self._jobs() else None

    def status(self, handles: Sequence[str]) -> dict[str, State]:
        """Returns the state of every handle; queues those again that only waited."""
        known = self._jobs()
        return {handle: self._state(handle, known.get(handle)) for handle in handles}

    def _state(self, handle: str, job: Any) -> State:
        if job is None:
            return State.GONE
        if job.error_type != _START_TIMEOUT or submissions.is_cancelled(self._directory):
            return _STATES.get(job.status, State.GONE)
        # Ray gave it up as nothing was free for 900 s: it only waited.
        now = time.monotonic()
        # Queued at once, it would meet what is left of itself, and Ray would not look after it.
        if now - self._given_up.setdefault(handle, now) > _REST_S:
            del self._given_up[handle]
            self._submit_again(handle)
        return State.QUEUED

    def queued(self, handles: Sequence[str]) -> dict[str, str]:
        """Returns Ray's message on every handle that is queued, or was given up and waits for the
        next `status`. Raises EngineError if the cluster cannot be asked."""
        known = self._jobs()
        return {
            handle: str(known[handle].message)
            for handle in handles
            if handle in known
            and (known[handle].status == "PENDING" or known[handle].error_type == _START_TIMEOUT)
        }

    def _submit_again(self, handle: str) -> None:
        """Queues an ended job under its own id; another driver may do so, too."""
        name, _, index = handle.rpartition("-")
        batch = submissions.read(self._directory / submissions.JOBS / f"{name}.json")
        body = ray_job.body(batch, int(index), self._keys, self._elsewhere(batch.avoid))
        with contextlib.suppress(EngineError), self._cluster() as cluster:
            cluster.delete_job(handle)
            cluster.submit_job(submission_id=handle, **body)

    def cancel(self, handles: Sequence[str]) -> None:
        """Asks jobs to save and end; one in Ray's queue ends when its turn comes."""
        with self._cluster() as cluster:
            known = cluster.jobs()
            for handle in handles:
                if handle in known and known[handle].status in _STATES:
                    cluster.stop_job(handle)
