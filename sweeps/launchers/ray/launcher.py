"""The Ray launcher: one Ray job per job of a batch, on a cluster that is there.

Jobs API, not Ray tasks, which die with their driver, nor Ray Tune, which has its own idea of trials
and of where they write. A job's id is its batch's name and its index: Ray refuses an id that it
knows, so that nothing is submitted twice, and a submission is found by name.
"""

import contextlib
import importlib
import importlib.util
import json
import math
import os
import pathlib
import re
import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from sweeps.launchers import config_keys, remote
from sweeps.launchers.config_keys import Key, Range, Text
from sweeps.launchers.protocol import EngineError, State
from sweeps.launchers.ray import job as ray_job
from sweeps.records import submissions
from sweeps.records.submissions import Batch

if TYPE_CHECKING:
    from sweeps.launchers.ray.client import Cluster

# How long a count of the cluster's nodes is believed.
_COUNTED_S = 30.0
_REST_S = 5.0
_STATES = {"PENDING": State.QUEUED, "RUNNING": State.RUNNING}
_START_TIMEOUT = "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"
# What Ray's client of the Jobs API imports; plain `ray` has not all of it.
_NEEDED = ("ray", "requests", "pydantic", "aiohttp")
_START = (
    "start one (ray start --head; docs/ray.md) and give --config.ray.address=http://127.0.0.1:8265"
)


def address(given: str) -> str:
    """Returns the dashboard of the cluster, '' where none is named.

    `given` is config.ray.address; where empty, $RAY_API_SERVER_ADDRESS or $RAY_ADDRESS. Raises
    ValueError for what is no dashboard's address.
    """
    source = "ray.address"
    if not given:
        names = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
        source = next((name for name in names if name in os.environ), names[-1])
        given = os.environ.get(source, "")
    if given == "local":
        raise ValueError(f"{source} is 'local', but a study starts no Ray of its own: {_START}")
    if given and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", given):
        raise ValueError(
            f"{source} is {given!r}; give the dashboard's address, such as http://HOST:8265"
        )
    return given


def token() -> str:
    """Returns the cluster's token, found as Ray finds it; '' where there is none.

    $RAY_AUTH_TOKEN, the file $RAY_AUTH_TOKEN_PATH, ~/.ray/auth_token. Raises EngineError where the
    named file cannot be read.
    """
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return ""
    if given := os.environ.get("RAY_AUTH_TOKEN"):
        return given.strip()
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = pathlib.Path(named or os.path.expanduser("~/.ray/auth_token"))
    if not named and not path.is_file():
        return ""
    try:
        return path.read_text("utf-8-sig").strip()
    except OSError as error:
        raise EngineError(f"Ray's token {path} cannot be read: {error.strerror}") from error


class Ray(remote.Engine):
    """A study's jobs on a cluster; a handle is a job's submission id."""

    KEYS: ClassVar = {
        "address": Key("", "the dashboard's, http://HOST:8265; empty: $RAY_ADDRESS", Text()),
        "cpus": Key(1, "of one job, as Ray counts them", Range(0, 65_536)),
        "gpus": Key(0, "of one job", Range(0, 1024)),
        "tpus": Key(0, "of one job: chips of one host", Range(0, 1024)),
        "memory": Key("", "of one job, e.g. 16G; Ray counts it, and enforces nothing", Text()),
        "resources": Key("", "more of Ray's, e.g. accelerator_type:H100=0.001,big_disk=1", Text()),
        "trials_per_job": remote.TRIALS_PER_JOB,
        "workers": remote.workers("of one job that share its devices"),
        "max_jobs": Key(
            0,
            "queued or running at a time; 0: as many as the cluster's nodes hold",
            Range(0, 1_000_000),
        ),
        "environment": Key("", "NAME=VALUE NAME='VALUE WITH SPACES'", Text()),
        "setup": Key("", "shell commands before a job, e.g. module load cuda", Text()),
        "python": Key("", "on the nodes; empty: the driver's", Text()),
        "poll_seconds": remote.poll_seconds(5, "Ray"),
    }

    def __init__(self, settings: dict[str, Any], study_directory: pathlib.Path) -> None:
        super().__init__("ray", settings, study_directory)
        self.place = {"address": address(self._own["address"])}
        if not self.place["address"]:
            raise ValueError(f"no Ray cluster is named: {_START}")
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise ValueError(
                f"launcher ray needs Ray's client, and this Python lacks {', '.join(missing)}: "
                "pip install 'attnperf[ray]'"
            )
        self._connected: Cluster | None = None
        self._counted = -math.inf, 1
        self._given_up: dict[str, float] = {}

    @classmethod
    def check(cls, settings: dict[str, Any]) -> None:
        """Raises ValueError for what could not run."""
        own = settings["ray"]
        config_keys.check(cls.KEYS, own, "ray.")
        ray_job.request(own)
        if not own["cpus"] and not ray_job.accelerators(own):
            raise ValueError("ray.cpus is 0; give 1 or more, or Ray would run all jobs on its head")
        accelerators = own["gpus"] or own["tpus"]
        if accelerators and own["workers"] > accelerators:
            raise ValueError(
                f"ray.workers is {own['workers']}, but a job has {accelerators} accelerator(s): "
                "give at most one worker each"
            )
        if "PYTHONPATH" in remote.variables(own["environment"]):
            raise ValueError(
                "ray.environment: PYTHONPATH is the code's; install what it is to find"
            )
        address(own["address"])

    @classmethod
    def platform(cls, settings: dict[str, Any]) -> str:
        """Returns 'gpu', 'tpu' or 'cpu'."""
        return ray_job.accelerators(settings["ray"]) or "cpu"

    @classmethod
    def devices(cls, settings: dict[str, Any]) -> int:
        """Returns how many devices a trial sees: its worker's share of the job's."""
        own = settings["ray"]
        return int(max(1, (own["gpus"] or own["tpus"]) // own["workers"]))

    @classmethod
    def preview(cls, settings: dict[str, Any], batch: Batch) -> str:
        """Returns the submission of a batch's first job as JSON."""
        return json.dumps(ray_job.body(batch, 0, settings["ray"], {}), indent=2)

    def _cluster(self) -> "Cluster":
        """Returns the cluster. Raises EngineError where it does not answer."""
        if self._connected is None:
            client = importlib.import_module("sweeps.launchers.ray.client")
            self._connected = client.Cluster(self.place["address"], token())
        return self._connected

    def capacity(self) -> int:
        """Returns max_jobs, or how many jobs the cluster's nodes hold; at least 1."""
        if self._own["max_jobs"]:
            return super().capacity()
        now, (then, count) = time.monotonic(), self._counted
        if now - then > _COUNTED_S:
            with contextlib.suppress(EngineError):
                nodes, asked = self._cluster().resources(), ray_job.request(self._own)
                count = sum(ray_job.holds(node, asked) for node in nodes)
            # A job that no node holds waits for one: clusters grow by what waits.
            self._counted = now, max(1, count)
        return self._counted[1]

    def submit(self, batch: Batch) -> list[str]:
        """Submits a batch, or what an interrupted submission left of it."""
        handles, selector = remote.job_names(batch), self._elsewhere(batch.avoid)
        for index, handle in enumerate(handles):
            job = ray_job.body(batch, index, self._own, selector)
            try:
                self._submit_one(handle, job, batch.log(index))
            except EngineError:
                if index == 0:
                    raise
                break  # those that Ray does not know are soon found to be gone
        return handles

    def _submit_one(self, handle: str, job: dict[str, Any], log: pathlib.Path) -> None:
        cluster = self._cluster()
        try:
            cluster.submit_job(submission_id=handle, **job)
        except EngineError:
            # From the list: a proxy in Ray's place would say 404 of any job.
            known = cluster.jobs().get(handle)  # raises where nobody answers
            if known is None or shlex.quote(str(log)) not in known.entrypoint:
                raise  # else the job is there: this submission repeats one that was cut short

    def _elsewhere(self, avoid: Sequence[str]) -> dict[str, str]:
        """Returns the label selector that keeps jobs off hosts; {} for none.

        Raises EngineError where no host is left.
        """
        if not avoid:
            return {}
        hosts = self._cluster().hosts()
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
        return handles if handles[0] in self._cluster().jobs() else None

    def states(self, handles: Sequence[str]) -> dict[str, State]:
        """Returns the state of every handle; queues those again that only waited."""
        known = self._cluster().jobs()
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
            selector = self._elsewhere(json.loads(job.metadata[ray_job.AVOID]))
            self._cluster().submit_again(job, ray_job.asked(self._own, selector))
        return State.QUEUED

    def cancel(self, handles: Sequence[str]) -> None:
        """Asks jobs to save and end; one in Ray's queue ends when its turn comes."""
        known = self._cluster().jobs() if handles else {}
        for handle in handles:
            if handle in known and known[handle].status in _STATES:
                self._cluster().stop(handle)
