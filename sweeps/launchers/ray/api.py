"""Ray's Jobs API over HTTP, with the standard library.

Ray's own client (`ray.job_submission.JobSubmissionClient`) speaks the same five requests, but
importing it takes 1.2 s, more than a driver may take to start, and needs the cluster's Ray on the
driver's host. Requests as in Ray 2.60, `python/ray/dashboard/modules/job/job_head.py`.
"""

import contextlib
import http.client
import json
import os
import pathlib
import re
import urllib.error
import urllib.request
from typing import Any, NamedTuple

from sweeps.launchers.protocol import EngineError

# A dashboard under load takes seconds; a submission waits for the head's agent.
_TIMEOUT_S = 60.0
_MOST_NODES = 10_000


class Answer(NamedTuple):
    """What the dashboard answered: HTTP status, and the JSON or text that came with it."""

    status: int
    body: Any


class Unreachable(EngineError):  # noqa: N818  (nobody can tell what happened to the request)
    """No answer, or none that says anything about the request."""


class JobsApi:
    """A cluster's Jobs API at `address` (http://host:8265).

    `token` is sent as Ray's bearer token where not empty; `proxies` says whether $http_proxy is
    heeded.
    """

    def __init__(self, address: str, token: str, proxies: bool = True) -> None:
        self.address = address.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        handlers = [] if proxies else [urllib.request.ProxyHandler({})]
        self._opener = urllib.request.build_opener(*handlers)

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Returns every submitted job that the cluster remembers, by its id."""
        found = self._get("/api/jobs/")
        return {str(job["submission_id"]): job for job in found if job.get("submission_id")}

    def job(self, name: str) -> dict[str, Any] | None:
        """Returns a job, None where the cluster answers that it does not know it."""
        answer = self._ask("GET", f"/api/jobs/{name}")
        if answer.status == 404:
            return None
        return dict(self._checked(answer))

    def submit(self, request: dict[str, Any]) -> None:
        """Submits a job. Raises EngineError where it is refused, as a duplicate is."""
        answer = self._ask("POST", "/api/jobs/", request)
        if answer.status != 200:
            raise self._refusal(answer)

    def stop(self, name: str) -> None:
        """Asks a job to end; one that the cluster does not know is passed over."""
        answer = self._ask("POST", f"/api/jobs/{name}/stop")
        if answer.status not in (200, 404):
            raise self._refusal(answer)

    def forget(self, name: str) -> None:
        """Deletes what the cluster remembers of an ended job, so that its id is free again."""
        answer = self._ask("DELETE", f"/api/jobs/{name}")
        if answer.status not in (200, 404):
            raise self._refusal(answer)

    def submit_again(self, job: dict[str, Any], asked: dict[str, Any]) -> None:
        """Queues an ended job, as `jobs` returned it, under its own id; another driver may too.

        `asked`: see `ray_job.asked`.
        """
        kept = {key: job[key] for key in ("submission_id", "entrypoint", "runtime_env", "metadata")}
        with contextlib.suppress(EngineError):
            self.forget(job["submission_id"])
            self.submit({**kept, **asked})

    def resources(self) -> list[dict[str, float]]:
        """Returns what each living node offers in all: {"CPU": 8.0, "GPU": 1.0, ...}."""
        found = self._get(f"/api/v0/nodes?limit={_MOST_NODES}")["data"]["result"]["result"]
        return [node["resources_total"] or {} for node in found if node["state"] == "ALIVE"]

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
        return self._checked(self._ask("GET", path))

    def _checked(self, answer: Answer) -> Any:
        if answer.status != 200 or isinstance(answer.body, str):
            raise self._refusal(answer)
        return answer.body

    def _ask(self, method: str, path: str, request: dict[str, Any] | None = None) -> Answer:
        data = None if request is None else json.dumps(request).encode()
        asked = urllib.request.Request(self.address + path, data, self._headers, method=method)
        try:
            with self._opener.open(asked, timeout=_TIMEOUT_S) as answer:
                return Answer(answer.status, _parsed(answer.read()))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, _parsed(error.read()))
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(
                f"Ray's dashboard at {self.address} does not answer ({error}): check "
                "--config.ray.address, and that the head runs with --dashboard-host reachable from "
                "here"
            ) from error

    def _refusal(self, answer: Answer) -> EngineError:
        """Returns the error of an answer that is none; gateways and tokens are no refusals."""
        if answer.status in (401, 403):
            return Unreachable(
                f"Ray at {self.address} does not accept the token (HTTP {answer.status}): set "
                "RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to the file with the cluster's token"
            )
        lines = [line for line in str(answer.body).strip().splitlines() if line.strip(" .")]
        text = f"HTTP {answer.status} from {self.address}: {lines[-1] if lines else 'no text'}"
        return Unreachable(text) if answer.status in (502, 503, 504) else EngineError(text)


def _parsed(content: bytes) -> Any:
    text = content.decode(errors="replace")
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def address(given: str) -> str | None:
    """Returns the dashboard of an existing cluster, None for a head of the study's own.

    `given` is config.ray.address; where empty, $RAY_API_SERVER_ADDRESS or $RAY_ADDRESS. Raises
    ValueError for what is no dashboard's address.
    """
    source = "ray.address"
    if not given:
        source = "RAY_API_SERVER_ADDRESS" if "RAY_API_SERVER_ADDRESS" in os.environ else ""
        source = source or "RAY_ADDRESS"
        given = os.environ.get(source, "")
    if given in ("", "local"):
        return None
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", given):
        raise ValueError(
            f"{source} is {given!r}; give the dashboard's address, such as http://HOST:8265, or "
            "local for a head on this host"
        )
    return str(given)


def token() -> str:
    """Returns the token of an existing cluster, found as Ray finds it; '' where there is none.

    $RAY_AUTH_TOKEN, the file $RAY_AUTH_TOKEN_PATH, ~/.ray/auth_token. Raises EngineError where the
    named file cannot be read.
    """
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return ""
    if given := os.environ.get("RAY_AUTH_TOKEN"):
        return given.strip()
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = pathlib.Path(named) if named else pathlib.Path.home() / ".ray" / "auth_token"
    return read_token(path) if named or path.is_file() else ""


def read_token(path: pathlib.Path) -> str:
    """Returns the token in a file. Raises EngineError where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError as error:
        raise EngineError(f"Ray's token {path} cannot be read: {error.strerror}") from error
