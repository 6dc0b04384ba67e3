"""Manifests of launcher kubernetes: as expected to the letter, with keys that Kubernetes has."""

import pathlib
import re

import jsonschema
import kubernetes_validate
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from kubeflow_trainer_api import models

from sweeps.launchers import remote
from sweeps.launchers.kubernetes import manifest
from sweeps.launchers.kubernetes.launcher import Kubernetes
from sweeps.records.submissions import Batch
from tests.sweeps import defaults

HERE = pathlib.Path(__file__).parent
GOLDEN = HERE / "golden"
STUDY = pathlib.Path("/mnt/laptop/experiments/Quick study")
BATCH = Batch(
    STUDY / "jobs" / "s-quick-study-0123abcd.json",
    ((), ()),
    {"PYTHONPATH": str(STUDY / "code" / "0a1b2c"), "PYTHONSAFEPATH": "1"},
    avoid=("node-7",),
)
CASES = {
    "jobset_gpu": {
        "queue": "sweeps",
        "gpus": 2,
        "gpu_type": "nvidia-l4",
        "volume_claim": "studies",
        "local_root": "/mnt/laptop",
        "mount_path": "/studies",
        "run_as": "1000:1000",
        "spot": True,
        "tolerations": "team=vision:NoSchedule",
        "priority_class": "low",
        "environment": "ATTNPERF_DATA=/studies/data NOTE='costs $(nothing)'",
    },
    "jobset_tpu_slice": {
        "tpu_type": "tpu-v5-lite-podslice",
        "tpu_topology": "4x4",
        "hosts": 4,
        "cpus": 24,
        "memory": "48Gi",
        "volume_claim": "studies",
    },
    "jobset_gpu_hosts": {"gpus": 8, "hosts": 2, "volume_claim": "studies"},
    "jobset_bucket": {"bucket": "my-studies", "service_account": "trainer", "run_as": "1000"},
}


def _settings(experiment_dir="/mnt/laptop/experiments", name="Quick study", **own):
    keys = {**defaults.of(Kubernetes), "image": "registry.example/attnperf:1", **own}
    return {"name": name, "experiment_dir": str(experiment_dir), "kubernetes": keys}


@pytest.mark.parametrize("case", CASES)
def test_manifests_are_the_golden_ones(case):
    settings = _settings(**CASES[case])
    Kubernetes.check(settings)
    made = manifest.jobset(BATCH, 1, settings)
    assert manifest.to_yaml(made) == (GOLDEN / f"{case}.yaml").read_text()


@pytest.mark.parametrize(
    ("gpu_type", "spot", "selector"),
    [
        ("", False, {}),
        ("nvidia-l4", True, {manifest.GPU_LABEL: "nvidia-l4", manifest.SPOT_LABEL: "true"}),
        # A label that attnperf sets too stays as the user gave it.
        (f"{manifest.SPOT_LABEL}=true", False, {manifest.SPOT_LABEL: "true"}),
    ],
)
def test_nodes_are_selected_by_the_labels_given(gpu_type, spot, selector):
    settings = _settings(gpus=4, gpu_type=gpu_type, spot=spot, volume_claim="studies")
    Kubernetes.check(settings)
    made = manifest.jobset(BATCH, 1, settings)
    pod = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod.get("nodeSelector", {}) == selector


# docs/kubernetes.md: the oldest Kubernetes that has what the manifests use.
OLDEST = "1.31"


@pytest.fixture(scope="module")
def jobset_schema():
    """The schema of a JobSet by Kubeflow's models of it, which take no field that it lacks."""
    schema = models.JobsetV1alpha2JobSet.model_json_schema(by_alias=True)
    for name, definition in schema["$defs"].items():
        definition["additionalProperties"] = False
        if name.endswith("ResourceQuantity"):  # generated as an object with one of two values
            definition.clear()
            definition["type"] = "string"
    schema["additionalProperties"] = False
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_jobs_are_those_of_kubernetes(case, version):
    job = manifest.job(yaml.safe_load((GOLDEN / f"{case}.yaml").read_text()))
    kubernetes_validate.validate(job, version, strict=True)


@given(
    study=st.text("aZ0-_. é", max_size=90), index=st.integers(0, 99_999), host=st.integers(0, 999)
)
@example(study="a" * 90, index=0, host=0)
def test_names_and_labels_are_valid_and_short(study, index, host):
    assert re.fullmatch(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", manifest.study_label(study))
    longest = Batch(STUDY / "jobs" / f"{'b' * 40}.json", ((),), {})
    # <jobset>-<replicated job>-<job index>-<pod index>-<five letters>
    pod_name = f"{remote.job_name(longest, index)}-{manifest.JOB}-0-{host}-abcde"
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])", pod_name)


@pytest.mark.parametrize(
    ("keys", "local", "on_node"),
    [
        ({}, "/mnt/laptop/experiments/q/x", "/mnt/laptop/experiments/q/x"),
        ({"mount_path": "/studies"}, "/mnt/laptop/experiments/q/x", "/studies/q/x"),
        (
            {"local_root": "/mnt/laptop", "mount_path": "/studies"},
            "/mnt/laptop/experiments/q",
            "/studies/experiments/q",
        ),
        ({"local_root": "/mnt/laptop"}, "/mnt/laptop", "/mnt/laptop"),
    ],
)
def test_paths_are_mapped(keys, local, on_node):
    mounted = manifest.volume(_settings(volume_claim="studies", **keys))
    assert mounted.path(local) == on_node
    assert mounted.value("PATH", f"/usr/lib:{local}") == f"/usr/lib:{on_node}"
    with pytest.raises(ValueError, match="/mnt/laptopx is not below"):
        mounted.path("/mnt/laptopx")


def test_code_outside_of_the_volume_is_refused():
    batch = Batch(STUDY / "jobs" / "s.json", ((),), {"PYTHONPATH": "/home/me/attnperf"})
    with pytest.raises(ValueError, match="/home/me/attnperf is not below"):
        manifest.jobset(batch, 0, _settings(volume_claim="studies"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"image": ""}, "needs --config.kubernetes.image"),
        ({"gpus": 1, "tpu_type": "tpu-v6e-slice", "tpu_topology": "2x2"}, "one of kubernetes.gpus"),
        ({"tpu_type": "tpu-v6e-slice"}, "tpu_topology go together"),
        ({"tpu_type": "tpu-v6e-slice", "tpu_topology": "4x"}, "kubernetes.tpu_topology is '4x'"),
        (
            {"tpu_type": "tpu-v6e-slice", "tpu_topology": "2x2", "hosts": 3},
            "topology 2x2 over 3 hosts is no slice",
        ),
        ({"gpu_type": "nvidia-l4"}, "gpu_type needs kubernetes.gpus"),
        ({"hosts": 2, "gpus": 2, "workers": 2}, "one process on each"),
        ({"gpus": 3, "workers": 2}, "give a number of workers that divides it"),
        ({"volume_claim": ""}, "one of kubernetes.volume_claim and kubernetes.bucket"),
        ({"bucket": "b-1"}, "one of kubernetes.volume_claim and kubernetes.bucket"),
        ({"volume_claim": "", "bucket": "gs://b"}, "kubernetes.bucket is 'gs://b'"),
        ({"mount_path": "studies"}, "kubernetes.mount_path is 'studies'"),
        ({"local_root": "/elsewhere"}, "is not below /elsewhere"),
        ({"run_as": "me"}, "kubernetes.run_as is 'me'"),
        ({"run_as": "99999999999"}, "kubernetes.run_as is '99999999999'"),
        ({"mount_path": "/"}, "kubernetes.mount_path is '/'"),
        ({"local_root": "//"}, "kubernetes.local_root is '//'"),
        ({"tolerations": "gpu"}, "'gpu' is no taint"),
        ({"tolerations": "a b:NoSchedule"}, "'a b:NoSchedule' is no taint"),
        ({"tolerations": "a=b c:NoExecute"}, "'a=b c:NoExecute' is no taint"),
        ({"environment": "A"}, "'A' is no variable"),
        ({"environment": "PYTHONPATH=/x"}, "PYTHONPATH is the code's"),
        ({"cpus": 0}, "kubernetes.cpus is 0"),
        ({"retries": -1}, "kubernetes.retries is -1"),
        ({"python": ""}, "needs --config.kubernetes.python"),
    ],
)
def test_what_no_cluster_could_run_is_refused_before_anything_starts(keys, message):
    Kubernetes.check(_settings(volume_claim="studies"))
    with pytest.raises(ValueError, match=re.escape(message)):
        Kubernetes.check(_settings(**{"volume_claim": "studies", **keys}))


@pytest.mark.parametrize(
    ("keys", "platform", "devices"),
    [
        ({}, "cpu", 1),
        ({"workers": 4}, "cpu", 1),
        ({"hosts": 2}, "cpu", 2),
        ({"gpus": 8}, "gpu", 8),
        ({"gpus": 8, "workers": 4}, "gpu", 2),
        ({"gpus": 8, "hosts": 2}, "gpu", 16),
        ({"tpu_type": "tpu-v6e-slice", "tpu_topology": "4x4", "hosts": 4}, "tpu", 16),
        ({"tpu_type": "tpu-v6e-slice", "tpu_topology": "2x4", "workers": 8}, "tpu", 1),
    ],
)
def test_platform_and_devices_of_a_trial(keys, platform, devices):
    settings = _settings(volume_claim="studies", **keys)
    Kubernetes.check(settings)
    assert Kubernetes.hardware(settings).kind == platform
    assert Kubernetes.hardware(settings).of_a_trial() == devices


@pytest.mark.parametrize("case", CASES)
def test_jobsets_are_those_of_kubeflow_s_models(jobset_schema, case):
    jobset_schema.validate(yaml.safe_load((GOLDEN / f"{case}.yaml").read_text()))
