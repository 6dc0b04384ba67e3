"""The keys of `--config.skypilot`, and what they must be; no cloud is asked."""

from typing import Any

from sweeps.launchers import config_keys, remote
from sweeps.launchers.config_keys import Key, OneOf, Range, Text, text

KEYS = {
    "infra": text(
        "empty: the cheapest",
        "cloud[/region[/zone]], such as gcp/us-central1, or k8s",
        r"[A-Za-z0-9*][^\s]*",
    ),
    "accelerators": text(
        "of a machine; empty: trials compute on its CPUs",
        "NAME or NAME:COUNT, such as A100:2",
        r"[A-Za-z][\w-]*(:[1-9]\d{0,3})?",
    ),
    "cpus": text("of a machine", "such as 8 or 8+", r"[1-9]\d*\+?", 20),
    "memory": text("of a machine", "gigabytes, such as 32 or 32+", r"[1-9]\d*\+?", 20),
    "disk_gb": Key(256, "of a machine", Range(1, 1_000_000)),
    "spot": Key(True, "machines that may be taken away, at a lower price"),
    "image": Key("", "such as docker:registry/attnperf:1", Text()),
    "bucket": text(
        "with hierarchical namespace: holds the study, or volume, or setup",
        "gs://NAME: mounts of other stores do not rename directories atomically, and a claim "
        "on a trial is such a rename",
        r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/\S*)?",
    ),
    "volume": text(
        "of SkyPilot's, that holds the study",
        "a volume's name, as `sky volumes ls` prints it",
        r"[a-z0-9]([-a-z0-9]*[a-z0-9])?",
    ),
    **remote.volume_keys("storage", "machines"),
    "setup": Key(
        "",
        "shell commands before the job, on every new machine; may mount a share at mount_path",
        Text(),
    ),
    "recovery": Key(
        "EAGER_NEXT_REGION",
        "where a preempted job goes on; FAILOVER: the same region first",
        OneOf(("EAGER_NEXT_REGION", "FAILOVER")),
    ),
    "retries": remote.RETRIES,
    "trials_per_job": remote.TRIALS_PER_JOB,
    "workers": remote.workers("per machine that run trials"),
    "max_jobs": remote.max_jobs(20),
    "python": Key("python", "the command of Python on the machines", Text()),
    "environment": remote.ENVIRONMENT,
    "poll_seconds": remote.poll_seconds(60, "SkyPilot"),
}
# What fits on one host, and the devices that JAX sees there (v4 and v5p: two cores are one device).
_TPUS = {
    "tpu-v2-8": 8,
    "tpu-v3-8": 8,
    "tpu-v4-8": 4,
    "tpu-v5p-8": 4,
    **{f"tpu-{kind}-{n}": n for kind in ("v5e", "v5litepod", "v6e") for n in (1, 4, 8)},
}


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError for what no cloud could run; no cloud is asked."""
    own = settings["skypilot"]
    config_keys.check(KEYS, own, "skypilot.")
    if own["bucket"] and own["volume"]:
        raise ValueError("give one of skypilot.bucket and skypilot.volume")
    if not (own["bucket"] or own["volume"] or own["setup"]):
        raise ValueError(
            "the machines must see the study: give skypilot.bucket, skypilot.volume, or a "
            "skypilot.setup that mounts a share at skypilot.mount_path"
        )
    if not own["python"]:
        raise ValueError("skypilot.python is empty; give the command of Python on the machines")
    remote.check_workers("skypilot", own, _count(own))  # none: each process has CPUs of its own
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
