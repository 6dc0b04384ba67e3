"""The Ray launcher: one Ray job per job of a batch, on a cluster that exists or a head of its own.

Jobs API, not Ray tasks, which die with their driver, nor Ray Tune, which has its own idea of trials
and of where they write. A job's id is its batch's name and its index: Ray refuses an id that it
knows, so that nothing is submitted twice, and a submission is found by name.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from sweeps.launchers import config_keys, remote
from sweeps.launchers.config_keys import Key, Range, Text
from sweeps.launchers.protocol import Batch, EngineError, State
from sweeps.launchers.ray import api, head
from sweeps.launchers.ray import job as ray_job
from sweeps.records import submissions

KEYS = {
    "address": Key(
        "",
        "http://host:8265; empty: $RAY_ADDRESS; local or neither: a head on this host",
        Text(),
    ),
    "cpus": Key(1, "of one job, as Ray counts them", Range(0, 65_536)),
    "gpus": Key(0, "of one job", Range(0, 1024)),
    "tpus": Key(0, "of one job: chips of one host", Range(0, 1024)),
    "memory": Key("", "of one job, e.g. 16G; Ray counts it, and enforces nothing", Text()),
    "resources": Key("", "more of Ray's, e.g. accelerator_type:H100=0.001,big_disk=1", Text()),
    "trials_per_job": Key(1, "trials that one job runs", Range(1, 1_000_000)),
    "workers": Key(1, "processes of one job that share its devices", Range(1, 1024)),
    "max_jobs": Key(
        0,
        "queued or running at a time; 0: as many as the cluster's nodes hold",
        Range(0, 1_000_000),
    ),
    "environment": Key("", "NAME=VALUE NAME='VALUE WITH SPACES'", Text()),
    "setup": Key("", "shell commands before a job, e.g. module load cuda", Text()),
    "python": Key("", "on the nodes; empty: the driver's", Text()),
    "poll_seconds": Key(5, "between questions to Ray", Range(1, 3600)),
    "idle_seconds": Key(300, "after which a head of this study's own stops", Range(1, 31_536_000)),
}
DEFAULTS = config_keys.defaults(KEYS)
# How long a count of the cluster's nodes is believed.
_COUNTED_S = 30.0
_REST_S = 5.0
_STATES = {"PENDING": State.QUEUED, "RUNNING": State.RUNNING}
_START_TIMEOUT = "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"
# What ray[default] brings for its dashboard, and with it the Jobs API; plain `ray` has neither.
_NEEDED = ("ray", "aiohttp_cors", "opencensus", "prometheus_client")


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError for what could not run."""
    own = settings["ray"]
    config_keys.check(KEYS, own, "ray.")
    ray_job.request(own)
    if not own["cpus"] and not ray_job.accelerators(own):
        raise ValueError("ray.cpus is 0; give 1 or more, or Ray would run all jobs on its head")
    accelerators = own["gpus"] or own["tpus"]
    if accelerators and own["workers"] > accelerators:
        raise ValueError(
            f"ray.workers is {own['workers']}, but a job has {accelerators} accelerator(s): give "
            "at most one worker each"
        )
    if "PYTHONPATH" in remote.variables(own["environment"]):
        raise ValueError("ray.environment: PYTHONPATH is the code's; install what it is to find")
    api.address(own["address"])


def check_installed() -> None:
    """Raises ValueError where this Python cannot start a Ray head with a Jobs API."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(
            f"no Ray cluster is named, and this Python lacks {', '.join(missing)} to start one: "
            "pip install 'ray[default]', or give --config.ray.address=http://HOST:8265"
        )


def platform(settings: dict[str, Any]) -> str:
    """Returns 'gpu', 'tpu' or 'cpu'."""
    return ray_job.accelerators(settings["ray"]) or "cpu"


def devices(settings: dict[str, Any]) -> int:
    """Returns how many devices one trial sees: its worker's share of the job's."""
    own = settings["ray"]
    return int(max(1, (own["gpus"] or own["tpus"]) // own["workers"]))


def preview(settings: dict[str, Any], batch: Batch) -> str:
    """Returns what would be submitted for a batch's first job; the engine is not needed."""
    return json.dumps(ray_job.body(batch, 0, settings["ray"], {}), indent=2)


def requeue() -> bool:
    """Returns False: Ray runs no job twice, the driver submits it again."""
    return False


def launcher(settings: dict[str, Any], study_directory: pathlib.Path) -> "Ray":
    """Returns the launcher of a study. Raises ValueError where no Ray can be had."""
    if api.address(settings["ray"]["address"]) is None:
        check_installed()
    return Ray(settings, study_directory)


class Ray:
    """A study's jobs on a cluster, or on a head that is started at the first submission."""

    def __init__(self, settings: dict[str, Any], study_directory: pathlib.Path) -> None:
        self._own, self._directory = settings["ray"], study_directory
        self._address = api.address(self._own["address"])
        self._cluster: api.JobsApi | None = None
        self._counted: tuple[float, int] | None = None
        self._head_used = False
        self._given_up: dict[str, float] = {}

    def _api(self) -> api.JobsApi | None:
        """Returns the cluster, None where it would be a head of the study's own that is gone."""
        if self._address is not None:
            if self._cluster is None:
                self._cluster = api.JobsApi(self._address, api.token())
            return self._cluster
        record = head.find(self._directory)
        self._head_used = self._head_used or record is not None
        return None if record is None else head.api(record)

    def capacity(self) -> int:
        """Returns max_jobs, or how many jobs the cluster's nodes hold; at least 1."""
        if self._own["max_jobs"]:
            return int(self._own["max_jobs"])
        if self._counted is None or time.monotonic() - self._counted[0] > _COUNTED_S:
            self._counted = time.monotonic(), self._count()
        return self._counted[1]

    def _count(self) -> int:
        try:
            cluster = self._api()
            if cluster is None:
                nodes = [{"CPU": float(len(os.sched_getaffinity(0)))}]
            else:
                nodes = cluster.resources()
        except EngineError:
            return self._counted[1] if self._counted else 1
        # A job that no node holds waits for one: clusters grow by what waits.
        return max(1, sum(ray_job.holds(node, ray_job.request(self._own)) for node in nodes))

    def submit(self, batch: Batch) -> list[str]:
        """Submits a batch, or what an interrupted submission left of it."""
        if self._address is not None:
            cluster = self._api()
            assert cluster is not None
            return self._submit(cluster, batch)
        with head.locked(self._directory):
            record = head.find(self._directory)
            if record is None:
                record = head.start(self._directory, self._own["idle_seconds"])
            self._head_used, self._counted = True, None
            self._check_fits(cluster := head.api(record))
            return self._submit(cluster, batch)

    def _check_fits(self, cluster: api.JobsApi) -> None:
        asked, nodes = ray_job.request(self._own), cluster.resources()
        if not any(ray_job.holds(node, asked) for node in nodes):
            has = {name: sum(node.get(name, 0.0) for node in nodes) for name in asked}
            raise EngineError(f"a job asks for {asked}, but Ray on this host has {has}")

    def _submit(self, cluster: api.JobsApi, batch: Batch) -> list[str]:
        handles = _handles(batch)
        selector = self._elsewhere(cluster, batch.avoid)
        for index, handle in enumerate(handles):
            try:
                job = ray_job.body(batch, index, self._own, selector)
                self._submit_one(cluster, {"submission_id": handle, **job}, batch.log(index))
            except EngineError:
                if index == 0:
                    raise
                break  # those that Ray does not know are soon found to be gone
        return handles

    def _submit_one(self, cluster: api.JobsApi, job: dict[str, Any], log: pathlib.Path) -> None:
        try:
            cluster.submit(job)
        except api.Unreachable:
            raise
        except EngineError:
            known = cluster.job(job["submission_id"])
            if known is None or str(log) not in known["entrypoint"]:
                raise  # else the job is there: this submission repeats one that was cut short

    def _elsewhere(self, cluster: api.JobsApi, avoid: Sequence[str]) -> dict[str, str]:
        """Returns the label selector that keeps jobs off hosts; {} for none.

        Raises EngineError where no host is left.
        """
        if not avoid:
            return {}
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
        cluster = self._api()
        if cluster is None or cluster.job(f"{batch.name}-0") is None:
            return None  # jobs are submitted in order
        return _handles(batch)

    def status(self, handles: Sequence[str]) -> dict[str, State]:
        """Returns the state of every handle."""
        if not handles:
            return {}
        try:
            cluster = self._api()
            known = {} if cluster is None else cluster.jobs()
            return {handle: self._state(cluster, known.get(handle)) for handle in handles}
        except EngineError:
            return dict.fromkeys(handles, State.UNKNOWN)

    def _state(self, cluster: api.JobsApi | None, job: dict[str, Any] | None) -> State:
        if job is None or cluster is None:
            return State.GONE
        if job.get("error_type") == _START_TIMEOUT and not submissions.is_cancelled(
            self._directory
        ):
            return self._queue_again(cluster, job)
        return _STATES.get(job["status"], State.GONE)

    def _queue_again(self, cluster: api.JobsApi, job: dict[str, Any]) -> State:
        """Queues a job that Ray gave up as nothing was free for 900 s: it only waited."""
        name, now = job["submission_id"], time.monotonic()
        # Queued at once, it would meet what is left of itself, and Ray would not look after it.
        if now - self._given_up.setdefault(name, now) > _REST_S:
            del self._given_up[name]
            selector = self._elsewhere(cluster, json.loads(job["metadata"][ray_job.AVOID]))
            cluster.submit_again(job, ray_job.asked(self._own, selector))
        return State.QUEUED

    def cancel(self, handles: Sequence[str]) -> None:
        """Asks jobs to save and end; one in Ray's queue ends when its turn comes."""
        cluster = self._api()
        known = cluster.jobs() if cluster is not None and handles else {}
        for handle in handles:
            if cluster is not None and known.get(handle, {}).get("status") in head.ACTIVE:
                cluster.stop(handle)

    def close(self) -> None:
        """Stops a head of the study's own where it has nothing to do."""
        if self._address is None and self._head_used:
            with contextlib.suppress(EngineError):  # then its watcher stops it
                head.stop_if_idle(self._directory)


def _handles(batch: Batch) -> list[str]:
    return [f"{batch.name}-{index}" for index in range(batch.size)]
