"""A stand-in for `kubectl` on a machine without a cluster.

`stand_in_kubectl.py ARGUMENTS` understands the launcher's arguments, keeps its objects as files in
$STAND_IN, and runs each job's command as a real process, with the variables of its manifest and no
others, restarted as the manifest's own policy says. It shows that manifests, exit codes, signals
and states fit together; it is no proof about a real cluster. There is no container: the test makes
mount_path a link to the volume.

For tests: NAME.evicted makes a pod's end a disruption, NAME.pid is its process, `kubectl admit`
does what Kueue does, and the file `down` makes the engine unreachable.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys

import yaml

ROOT = pathlib.Path(os.environ["STAND_IN"])
# What an image has by itself.
_IMAGE = {"PATH": os.environ["PATH"], "HOME": os.environ["STAND_IN"], "LANG": "C.UTF-8"}


def read(name, suffix, default=None):
    try:
        return json.loads((ROOT / f"{name}.{suffix}").read_text())
    except FileNotFoundError:
        return default


def write(name, suffix, record):
    draft = ROOT / f".{name}.{suffix}.{os.getpid()}"
    draft.write_text(json.dumps(record))
    draft.rename(ROOT / f"{name}.{suffix}")


def names():
    return sorted(path.name.removesuffix(".object") for path in ROOT.glob("*.object"))


def start(name):
    """Starts the controller of a JobSet: a process of its own, as a cluster's would be."""
    command = [sys.executable, __file__, "control", name]
    with (ROOT / f"{name}.controller.log").open("a") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    write(name, "controller", process.pid)


def run_once(name, command, environment):
    """Runs a job's command to its end; returns its exit code, as a shell has it."""
    with (ROOT / f"{name}.log").open("a") as log:
        process = subprocess.Popen(
            command, env={**_IMAGE, **environment}, stdout=log, stderr=log, start_new_session=True
        )
    write(name, "pid", process.pid)
    if read(name, "deleted"):  # while there was no process to signal yet
        os.killpg(process.pid, signal.SIGTERM)
    code = process.wait()
    (ROOT / f"{name}.pid").unlink()
    return 128 - code if code < 0 else code


def create(rest, namespace):
    if "--dry-run=server" in rest:
        return
    for file in rest[1::2]:
        jobset = yaml.safe_load(pathlib.Path(file).read_text())
        name = jobset["metadata"]["name"]
        assert jobset["metadata"]["namespace"] == namespace
        assert name not in names()
        queued = "kueue.x-k8s.io/queue-name" in jobset["metadata"]["labels"]
        jobset["spec"]["suspend"] = queued
        write(name, "object", jobset)
        if not queued:
            start(name)


def admit(rest, namespace):
    for name in names():
        jobset = read(name, "object")
        if jobset["spec"]["suspend"]:
            jobset["spec"]["suspend"] = False
            write(name, "object", jobset)
            start(name)


def get(rest, namespace):
    assert [rest[0], *rest[3:]] == ["jobsets.jobset.x-k8s.io", "--output", "json"]
    key, value = rest[2].split("=")
    found = []
    for name in names():
        jobset = read(name, "object")
        if jobset["metadata"]["labels"].get(key) != value:
            continue
        jobset["status"] = read(name, "status", {})
        if read(name, "deleted"):
            jobset["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        found.append(jobset)
    print(json.dumps({"apiVersion": "v1", "kind": "List", "items": found}))


def delete(rest, namespace):
    flags = [part for part in rest if part.startswith("--")]
    assert flags == ["--ignore-not-found", "--wait=false", "--cascade=foreground"]
    for name in {*rest[len(flags) + 1 :]} & {*names()}:
        write(name, "deleted", True)
        if (pid := read(name, "pid")) is None:  # nothing runs
            (ROOT / f"{name}.object").unlink()
        else:
            os.kill(pid, signal.SIGTERM)  # a pod's end reaches its first process


def control(name):
    """What the controllers of JobSet and Job do with one pod: start, judge its end, start again."""
    jobset = read(name, "object")
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    container = job["template"]["spec"]["containers"][0]
    fields = {"spec.nodeName": "stand-in-node"}
    environment = {
        variable["name"]: variable.get("value")
        or fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        for variable in container["env"]
    }
    failures = 0
    while True:
        write(name, "status", {"replicatedJobsStatus": [{"name": "w", "ready": 1}]})
        indexed = {**environment, "JOB_COMPLETION_INDEX": "0"}
        code = run_once(name, container["command"], indexed)
        (ROOT / f"{name}.codes").open("a").write(f"{code}\n")
        if read(name, "deleted"):
            (ROOT / f"{name}.object").unlink()
            return
        action = verdict(job, container["name"], code, bool(read(name, "evicted")))
        (ROOT / f"{name}.evicted").unlink(missing_ok=True)
        failures += action == "Count"
        if action == "Complete":
            return write(name, "status", {"terminalState": "Completed"})
        if action == "FailJob" or failures > job["backoffLimit"]:
            return write(name, "status", {"terminalState": "Failed"})


def verdict(job, container, code, disrupted):
    """Returns what the first matching rule of the podFailurePolicy says."""
    if code == 0:
        return "Complete"
    for rule in job["podFailurePolicy"]["rules"]:
        on = rule.get("onExitCodes")
        if on and on["containerName"] == container and code in on["values"]:
            return rule["action"]
        if disrupted and rule.get("onPodConditions", [{}])[0].get("type") == "DisruptionTarget":
            return rule["action"]
    return "Count"


def main(verb, *rest):
    if verb == "control":
        return control(*rest)
    if (ROOT / "down").exists():
        sys.exit("The connection to the server 127.0.0.1:6443 was refused")
    rest = [part for part in rest if not part.startswith("--request-timeout")]
    at = rest.index("--namespace")
    verbs = {"create": create, "get": get, "delete": delete, "admit": admit}
    return verbs[verb](rest[:at] + rest[at + 2 :], rest[at + 1])


if __name__ == "__main__":
    main(*sys.argv[1:])
