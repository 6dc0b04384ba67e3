"""A Ray cluster, by Ray's own client of its Jobs API: what fails is said in words.

Importing this loads Ray (1 to 3 s), which `pip install 'attnperf[ray]'` brings: only
`sweeps.launchers.ray.launcher` does, and only where a cluster is asked. Tested with Ray 2.60.
"""

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import requests
from ray import exceptions
from ray.job_submission import JobDetails, JobSubmissionClient

from sweeps.launchers import remote
from sweeps.launchers.protocol import EngineError

# A dashboard under load takes seconds; a submission waits for the head's agent.
_TIMEOUT_S = 60.0
_MOST_NODES = 10_000
Answer = TypeVar("Answer")


class Unreachable(EngineError):  # noqa: N818  (nobody can tell what happened to the request)
    """No answer, or none that says anything about the request."""


class Unknown(EngineError):  # noqa: N818  (an answer)
    """The cluster does not know the job."""


def _understood(method: Callable[..., Answer]) -> Callable[..., Answer]:
    """Returns a method of Cluster that raises Unreachable where an answer is not the dashboard's,
    but a proxy's, say, or a page to sign in.
    """

    @functools.wraps(method)
    def call(self: "Cluster", *arguments: Any, **options: Any) -> Answer:
        try:
            return method(self, *arguments, **options)
        except (ValueError, KeyError, TypeError, requests.RequestException) as error:
            raise Unreachable(
                f"{self.where} does not answer as Ray does ({error!r}): check --config.ray.address"
            ) from error

    return call


class Cluster(JobSubmissionClient):
    """A cluster at `address` (http://host:8265); `token`: Ray's bearer token where not empty.

    Every method raises Unreachable where nobody can tell what happened to the request, and
    EngineError where it was refused.
    """

    @_understood
    def __init__(self, address: str, token: str) -> None:
        self.where = f"Ray's dashboard at {address}"
        # Ray would take the environment's address in place of the one that it is given.
        names = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
        saved = {name: os.environ.pop(name) for name in names if name in os.environ}
        try:
            super().__init__(
                address, headers={"Authorization": f"Bearer {token}"} if token else None
            )
        except RuntimeError as error:  # a Ray that is too old for its own client
            raise EngineError(f"Ray at {address}: {error}") from error
        finally:
            os.environ.update(saved)

    submit_job = _understood(JobSubmissionClient.submit_job)

    @_understood
    def jobs(self) -> dict[str, JobDetails]:
        """Returns every submitted job that the cluster remembers, by its id."""
        return {str(job.submission_id): job for job in self.list_jobs() if job.submission_id}

    @_understood
    def stop(self, name: str) -> None:
        """Asks a job to end; one that the cluster does not know is passed over."""
        with contextlib.suppress(Unknown):
            self.stop_job(name)

    @_understood
    def submit_again(self, job: JobDetails, asked: dict[str, Any]) -> None:
        """Queues an ended job under its own id; another driver may too.

        `asked`: see `sweeps.launchers.ray.job.asked`.
        """
        kept = {key: getattr(job, key) for key in ("entrypoint", "runtime_env", "metadata")}
        with contextlib.suppress(EngineError):
            with contextlib.suppress(Unknown):
                self.delete_job(str(job.submission_id))
            self.submit_job(submission_id=job.submission_id, **kept, **asked)

    @_understood
    def resources(self) -> list[dict[str, float]]:
        """Returns what each living node offers in all: {"CPU": 8.0, "GPU": 1.0, ...}."""
        found = self._get(f"/api/v0/nodes?limit={_MOST_NODES}")["data"]["result"]["result"]
        return [node["resources_total"] or {} for node in found if node["state"] == "ALIVE"]

    @_understood
    def hosts(self) -> dict[str, str]:
        """Returns {node id: host name} of the living nodes."""
        found = self._get("/nodes?view=summary")["data"]["summary"]
        nodes = {node["raylet"].get("nodeId", ""): node for node in found}
        return {
            name: str(node.get("hostname", ""))
            for name, node in nodes.items()
            if name and node["raylet"].get("state", "ALIVE") == "ALIVE"
        }

    def _get(self, path: str) -> Any:
        answer = self._do_request("GET", path)
        return answer.json() if answer.status_code == 200 else self._raise_error(answer)

    # Ray's own methods send their requests by the first of these, and refusals end in the second.

    def _do_request(self, method: str, endpoint: str, **options: Any) -> requests.Response:
        try:
            answer = super()._do_request(method, endpoint, timeout=_TIMEOUT_S, **options)
        except exceptions.AuthenticationError as error:
            raise Unreachable(
                f"{self.where} does not accept the token: set RAY_AUTH_TOKEN, or "
                "RAY_AUTH_TOKEN_PATH to the file with the cluster's token"
            ) from error
        except requests.RequestException as error:
            raise Unreachable(
                f"{self.where} does not answer ({error}): check --config.ray.address, and that the "
                "head runs with --dashboard-host reachable from here"
            ) from error
        if answer.status_code in (502, 503, 504):  # a gateway's
            raise Unreachable(self._said(answer))
        return answer

    def _raise_error(self, r: requests.Response) -> Any:
        raise (Unknown if r.status_code == 404 else EngineError)(self._said(r))

    def _said(self, answer: requests.Response) -> str:
        text = "\n".join(line for line in answer.text.splitlines() if line.strip(" ."))
        return f"HTTP {answer.status_code} from {self._address}: {remote.last_line(text)}"
