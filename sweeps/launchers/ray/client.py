"""A Ray cluster, by Ray's own client of its Jobs API.

Importing this loads Ray (1 to 3 s), which `pip install 'attnperf[ray]'` brings: only
`sweeps.launchers.ray.launcher` does, and only where a cluster is asked. Tested with Ray 2.60.
"""

import os
from typing import Any

import requests
from ray import exceptions
from ray.job_submission import JobDetails, JobSubmissionClient

# A dashboard under load takes seconds; a submission waits for the head's agent.
_TIMEOUT_S = 60.0
_MOST_NODES = 10_000
_ADDRESSES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
# What Ray's client raises where the cluster refuses, does not answer, or something answers in its
# place, such as a proxy's page to sign in.
ERRORS = (
    exceptions.AuthenticationError,
    requests.RequestException,
    ConnectionError,
    RuntimeError,
    ValueError,
    KeyError,
    TypeError,
)


class Cluster(JobSubmissionClient):
    """A cluster at `address` (http://host:8265), with Ray's token. Its methods raise ERRORS."""

    def __init__(self, address: str) -> None:
        # Ray would take the environment's address in place of the one that it is given.
        saved = {name: os.environ.pop(name) for name in _ADDRESSES if name in os.environ}
        try:
            super().__init__(address)
        finally:
            os.environ.update(saved)

    def jobs(self) -> dict[str, JobDetails]:
        """Returns every submitted job that the cluster remembers, by its id."""
        return {str(job.submission_id): job for job in self.list_jobs() if job.submission_id}

    def resources(self) -> list[dict[str, float]]:
        """Returns what each living node offers in all: {"CPU": 8.0, "GPU": 1.0, ...}."""
        nodes = self._get(f"/api/v0/nodes?limit={_MOST_NODES}")["data"]["result"]["result"]
        return [node["resources_total"] or {} for node in nodes if node["state"] == "ALIVE"]

    def hosts(self) -> dict[str, str]:
        """Returns {node id: host name} of the living nodes."""
        # By the other list: it has host names, and this one resources under their own names.
        summary = self._get("/nodes?view=summary")["data"]["summary"]
        nodes = {node["raylet"].get("nodeId", ""): node for node in summary}
        return {
            name: str(node.get("hostname", ""))
            for name, node in nodes.items()
            if name and node["raylet"].get("state", "ALIVE") == "ALIVE"
        }

    def _get(self, path: str) -> Any:
        answer = self._do_request("GET", path)
        return answer.json() if answer.status_code == 200 else self._raise_error(answer)

    def _do_request(self, method: str, endpoint: str, **options: Any) -> requests.Response:
        # Every method of Ray's sends its requests by this one, without a time limit.
        return super()._do_request(method, endpoint, timeout=_TIMEOUT_S, **options)
