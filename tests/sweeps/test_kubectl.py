"""Launcher kubernetes through the real kubectl, against an API server that keeps objects only.

The server is a stand-in: it has discovery, JobSets and Kubernetes' errors, and runs nothing.
"""

import http.server
import json
import pathlib
import re
import shutil
import threading
import urllib.parse

import pytest

from sweeps.launchers.kubernetes.launcher import Kubernetes
from sweeps.launchers.protocol import EngineError, State
from sweeps.records.submissions import Batch
from sweeps.scheduling import preflight
from tests.sweeps import defaults

pytestmark = pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl")

HERE = pathlib.Path(__file__).parent
REASONS = {
    403: "Forbidden",
    404: "NotFound",
    409: "AlreadyExists",
    422: "Invalid",
    503: "ServiceUnavailable",
}
GROUP = "jobset.x-k8s.io"


# What a server says of JobSets and Jobs, by path; its OpenAPI says that it checks fields itself.
DISCOVERY = json.loads((HERE / "golden" / "kubernetes_discovery.json").read_text())


class ApiServer(http.server.ThreadingHTTPServer):
    """`objects` by (namespace, name); `tried` the bodies of dry runs, `deleted` those of deletions.

    It answers a method for a name with the status code that `refusals` has for (method, name).
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects, self.deleted, self.tried, self.refusals = {}, {}, [], {}


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as an API server does."""

    def log_message(self, *arguments):
        pass

    def _answer(self, body, code=200):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _refuses(self, name, code):
        """Refuses the request by `refusals`, else by `code` if it is not 0; returns whether."""
        code = self.server.refusals.get((self.command, name), code)
        if code:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
            message = f'jobsets.{GROUP} "{name}" {REASONS[code]}'
            self._answer({**status, "reason": REASONS[code], "message": message}, code)
        return bool(code)

    def _body(self):
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _place(self):
        """Returns the namespace and the name, None where it is a list, of JobSets or Jobs."""
        path = urllib.parse.urlsplit(self.path).path
        place = re.search(r"/namespaces/([^/]+)/jobs(?:ets)?(?:/([^/]+))?$", path)
        return place and place.groups()

    def do_GET(self):
        url, place = urllib.parse.urlsplit(self.path), self._place()
        if place is None:
            answer = DISCOVERY.get(url.path)
            self._answer(answer or {}, 200 if answer else 404)
        else:
            key, value = urllib.parse.parse_qs(url.query)["labelSelector"][0].split("=")
            items = [
                item
                for (namespace, _), item in self.server.objects.items()
                if namespace == place[0] and item["metadata"]["labels"].get(key) == value
            ]
            self._answer({"kind": "JobSetList", "apiVersion": f"{GROUP}/v1alpha2", "items": items})

    def do_POST(self):
        body = self._body()
        place = self._place()[0], body["metadata"]["name"]
        assert "fieldValidation=Strict" in self.path
        if self._refuses(place[1], 409 if place in self.server.objects else 0):
            return
        if "dryRun=All" in self.path:
            self.server.tried.append(body)
        else:
            self.server.objects[place] = body
        self._answer(body, 201)

    def do_DELETE(self):
        place, body = self._place(), self._body()
        if not self._refuses(place[1], 0 if place in self.server.objects else 404):
            del self.server.objects[place]
            self.server.deleted[place] = body
            self._answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server that kubectl's configuration names as context 'stand-in'."""
    with ApiServer() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,))
        thread.start()
        url = f"http://127.0.0.1:{made.server_port}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "contexts": [{"name": "stand-in", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
        }
        (tmp_path / "config").write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        monkeypatch.setenv("HOME", str(tmp_path))  # kubectl's cache
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def launcher(tmp_path):
    """A launcher for context 'stand-in', namespace 'sweeps'."""
    keys = {"image": "i", "volume_claim": "v", "context": "stand-in", "namespace": "sweeps"}
    keys = {**defaults.of(Kubernetes), **keys}
    settings = {"name": "quick", "experiment_dir": str(tmp_path), "kubernetes": keys}
    Kubernetes.check(settings)
    return Kubernetes(settings, tmp_path / "quick")


@pytest.fixture
def batch(tmp_path):
    """A batch of two jobs."""
    (tmp_path / "quick" / "jobs").mkdir(parents=True)
    file = tmp_path / "quick" / "jobs" / "s-quick-00000000.json"
    return Batch(file, ((), ()), {})


def test_jobsets_are_created_once_listed_and_deleted(server, launcher, batch):
    assert launcher.find(batch) is None
    first, second = handles = launcher.submit(batch)
    assert [("sweeps", handle) for handle in handles] == list(server.objects)
    assert launcher.submit(batch) == handles == launcher.find(batch)
    server.objects["sweeps", first]["status"] = {"replicatedJobsStatus": [{"ready": 1}]}
    expected = {first: State.RUNNING, second: State.QUEUED, "other": State.GONE}
    assert launcher.status(expected) == expected
    launcher.cancel([*handles, "other"])
    assert server.objects == {}
    policies = {body["propagationPolicy"] for body in server.deleted.values()}
    assert policies == {"Foreground"}


def test_a_batch_of_which_a_part_is_refused_is_taken_back_or_found(server, launcher, batch):
    first, second = "s-quick-00000000-0", "s-quick-00000000-1"
    server.refusals = {("POST", second): 422, ("DELETE", first): 403}
    with pytest.raises(EngineError, match=r"kubectl create failed: .*s-quick-00000000-1"):
        launcher.submit(batch)
    states = launcher.status(launcher.find(batch))
    assert states == {first: State.QUEUED, second: State.GONE}
    del server.refusals["DELETE", first]
    with pytest.raises(EngineError, match="kubectl create failed"):
        launcher.submit(batch)
    assert server.objects == {}


def test_the_server_judges_a_jobset_and_its_job_before_a_study_begins(server, launcher):
    launcher.verify()
    jobset, job = server.tried
    assert (jobset["kind"], job["kind"]) == ("JobSet", "Job")
    [replicated] = jobset["spec"]["replicatedJobs"]
    assert job["spec"] == replicated["template"]["spec"]
    assert server.objects == {}


@pytest.mark.parametrize(
    ("code", "error"),
    [(422, ValueError), (404, ValueError), (403, EngineError), (503, EngineError)],
)
def test_only_a_judgement_of_the_manifest_is_a_refusal(server, launcher, code, error):
    server.refusals = {("POST", "sample-0"): code}
    with pytest.raises(error, match="kubectl create --dry-run=server: .*sample-0"):
        launcher.verify()


def test_without_a_cluster_a_study_begins_with_a_warning(make_study, monkeypatch, capsys):
    keys = {"context": "stand-in", "image": "i", "volume_claim": "v"}
    study = make_study(launcher="kubernetes", **{f"kubernetes.{k}": v for k, v in keys.items()})
    monkeypatch.setenv("PATH", "")
    preflight.check_engine(study)
    assert "warning: kubernetes cannot be asked" in capsys.readouterr().err
