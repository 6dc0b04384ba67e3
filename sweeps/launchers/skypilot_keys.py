"""The keys of `--config.skypilot`, and what they must be; no cloud is asked."""

from typing import Any

from sweeps.launchers import remote

DEFAULTS: dict[str, Any] = {
    "infra": "",  # cloud[/region[/zone]], such as gcp/us-central1, or k8s; empty: the cheapest
    "accelerators": "",  # such as A100:1
    "cpus": "",  # such as 8 or 8+
    "memory": "",  # GB, such as 32 or 32+
    "disk_gb": 256,
    "spot": True,
    "image": "",  # such as docker:registry/attnperf:1
    "bucket": "",  # gs://..., with hierarchical namespace: holds the study, or
    "volume": "",  # a volume of SkyPilot's, or a share that `setup` mounts at mount_path
    "local_root": "",  # where the storage is mounted here; empty: experiment_dir
    "mount_path": "",  # where the machines mount it; empty: local_root
    "setup": "",  # shell commands before the job, on every new machine
    "recovery": "EAGER_NEXT_REGION",  # or FAILOVER: the same region first
    "retries": 3,  # of a job that crashed; preemptions do not count
    "trials_per_job": 1,
    "workers": 1,  # processes per machine that run trials
    "max_jobs": 20,
    "python": "python",
    "environment": "",  # NAME=VALUE NAME=VALUE
    "poll_seconds": 60,
}
_PATTERNS = {
    "infra": (r"[A-Za-z0-9*][^\s]*", "cloud[/region[/zone]], such as gcp/us-central1, or k8s"),
    "accelerators": (r"[A-Za-z][\w-]*(:[1-9]\d*)?", "NAME or NAME:COUNT, such as A100:2"),
    "cpus": (r"[1-9]\d*\+?", "such as 8 or 8+"),
    "memory": (r"[1-9]\d*\+?", "gigabytes, such as 32 or 32+"),
    "bucket": (
        r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/\S*)?",
        "gs://NAME: mounts of other stores do not rename directories atomically, and a claim on "
        "a trial is such a rename",
    ),
    "volume": (r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", "a volume's name, as `sky volumes ls` prints it"),
    "recovery": (r"EAGER_NEXT_REGION|FAILOVER", "EAGER_NEXT_REGION or FAILOVER"),
}
# What fits on one host, and the devices that JAX sees there (v4 and v5p: two cores are one device).
_TPUS = {
    "tpu-v2-8": 8,
    "tpu-v3-8": 8,
    "tpu-v4-8": 4,
    "tpu-v5p-8": 4,
    **{f"tpu-{kind}-{n}": n for kind in ("v5e", "v5litepod", "v6e") for n in (1, 4, 8)},
}


def check_keys(settings: dict[str, Any]) -> None:
    """Raises ValueError for what no cloud could run; no cloud is asked."""
    own = settings["skypilot"]
    for key, (pattern, wanted) in _PATTERNS.items():
        remote.require("skypilot", own, key, pattern, wanted)
    remote.at_least("skypilot", own, disk_gb=1, retries=0, trials_per_job=1, workers=1)
    remote.at_least("skypilot", own, max_jobs=1, poll_seconds=1)
    if own["bucket"] and own["volume"]:
        raise ValueError("give one of skypilot.bucket and skypilot.volume")
    if not (own["bucket"] or own["volume"] or own["setup"]):
        raise ValueError(
            "the machines must see the study: give skypilot.bucket, skypilot.volume, or a "
            "skypilot.setup that mounts a share at skypilot.mount_path"
        )
    if not own["python"]:
        raise ValueError("skypilot.python is empty; give the command of Python on the machines")
    count = _count(own)
    if count and count % own["workers"]:
        raise ValueError(f"skypilot.workers={own['workers']} cannot share {count} devices")
    remote.check_paths("skypilot", settings, own)


def platform(settings: dict[str, Any]) -> str:
    """Returns 'gpu', 'tpu' or 'cpu'."""
    accelerators = settings["skypilot"]["accelerators"]
    if not accelerators:
        return "cpu"
    return "tpu" if accelerators.startswith("tpu-") else "gpu"


def devices(settings: dict[str, Any]) -> int:
    """Returns how many devices a trial sees."""
    own = settings["skypilot"]
    return (_count(own) or own["workers"]) // int(own["workers"])


def _count(own: dict[str, Any]) -> int:
    """Returns how many devices a machine has, 0 where it computes on its CPUs."""
    kind, _, count = own["accelerators"].partition(":")
    if not kind.startswith("tpu-"):
        return int(count or 1) if kind else 0
    if kind not in _TPUS or count not in ("", "1"):
        raise ValueError(
            f"skypilot.accelerators is {own['accelerators']!r}; TPUs of one host are "
            f"{', '.join(_TPUS)}. Larger slices: launcher kubernetes"
        )
    return _TPUS[kind]
