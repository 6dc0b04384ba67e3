"""What a compiler would say of a step's time and memory, without it: a model fitted to its figures.

A part's amount (bytes or FLOP, `workloads/text/costs.py`) times a factor, summed:

- memory_gb: parameters and moments as they are, the others by the factors "memory" of the platform,
  times that of the kind of device.
- step_ms: FLOP at the peak and bytes at the bandwidth of the device, by the factors "time" of the
  platform, times that of its kind. None for GPUs, whose compiler gives no times.

Of other workloads, whose step is not a sum of such parts (ViT's time grows as the examples of a
device to the power 1.4), the figures themselves, by examples of a device, and between two of them a
power law: "points".

`calibration.json` holds the factors, written by `make performance` from those rows of
docs/performance.md that are marked; a test holds the model to within TOLERANCE of every row.
"""

import dataclasses
import functools
import json
import math
import pathlib
from typing import Any

import numpy as np

from attention import precision
from sweeps.monitoring import hardware, jax_calls
from sweeps.study import checks
from sweeps.study.study import Study
from workloads import catalog

FILE = pathlib.Path(__file__).with_name("calibration.json")
# The model's error at most, on every row of docs/performance.md.
TOLERANCE = 0.15
EXACT = ("parameters", "moments")
FLOPS = ("products", "score_products", "kernel_products")


@dataclasses.dataclass(frozen=True)
class Prediction:
    """memory_gb by part, 10⁹ bytes per device; step_ms, None where it is not known."""

    memory_gb: dict[str, float]
    step_ms: float | None

    @property
    def total_gb(self) -> float:
        """All parts."""
        return sum(self.memory_gb.values())


def verdict(needed_gb: float, available_gb: float) -> str:
    """Returns whether a prediction fits, as far as it can tell: a compiler may still decide."""
    if needed_gb * (1 + TOLERANCE) <= available_gb:
        return "fits"
    if needed_gb / (1 + TOLERANCE) > available_gb:
        return "DOES NOT FIT"
    return "CLOSE, `python -m sweeps compile` decides"


def predict(study: Study, variant: str, where: hardware.Topology) -> Prediction | None:
    """Returns the prediction for a variant's train step; None where no figures were fitted.

    Only of workloads at full size: what matters in a small step is not in the model.

    Raises ValueError where mesh or batch do not fit the topology.
    """
    if catalog.get(study.workload).topology:
        return by_factors(costs(study, variant, where.devices), where.kind)
    settings = study.settings
    points = fitted()["points"].get(study.workload, {}).get(where.kind)
    if not points or settings["compute_dtype"] != "float32" or settings["microbatches"] > 1:
        return None
    examples = [point["examples"] for point in points]
    wanted = settings["batch_size"] / where.devices
    if not examples[0] <= wanted <= examples[-1]:
        return None
    between = {
        name: math.exp(
            np.interp(math.log(wanted), np.log(examples), np.log([one[name] for one in points]))
        )
        for name in ("gb", "ms")
    }
    return Prediction({"all": between["gb"]}, between["ms"])


def costs(study: Study, variant: str, devices: int) -> dict[str, dict[str, float]]:
    """Returns `workloads.text.costs.per_device` of a study's step, from a process of its own.

    FLOP are those that a TPU makes of float32 under the study's matmul_precision.
    """
    settings = study.settings
    found: dict[str, dict[str, float]] = jax_calls.call(
        jax_calls.costs,
        workload=study.workload,
        variant=variant,
        variant_hyperparameters=checks.variant_hyperparameters(variant, settings),
        options=dataclasses.asdict(checks.options(settings)),
        batch_size=settings["batch_size"],
        microbatches=settings["microbatches"],
        devices=devices,
        kernel=settings["kernel"],
    )
    if settings["compute_dtype"] == "float32":
        for part in FLOPS:
            found["work"][part] *= precision.tpu_passes(settings["matmul_precision"])
    return found


def by_factors(found: dict[str, dict[str, float]], kind: str) -> Prediction | None:
    """Returns the prediction from a step's costs; None for a kind of device without factors."""
    device = hardware.KINDS[kind]
    factors = fitted()["platforms"].get(device.platform)
    if factors is None:
        return None
    kinds = factors["kinds"].get(kind, {"memory": 1.0})
    memory = {
        part: size * factors["memory"][part] / 1e9 * (1 if part in EXACT else kinds["memory"])
        for part, size in found["memory"].items()
    }
    if "time" not in kinds:
        return Prediction(memory, None)
    ideal = ideal_ms(found["work"], device)
    time = sum(ms * factors["time"][part] for part, ms in ideal.items())
    return Prediction(memory, time * kinds["time"])


def ideal_ms(work: dict[str, float], device: hardware.Hardware) -> dict[str, float]:
    """Returns how long each part would take at the device's peak or bandwidth, alone."""
    rates = {True: device.peak_tflops * 1e9, False: device.bandwidth_gb * 1e6}
    return {part: amount / rates[part in FLOPS] for part, amount in work.items()}


@functools.cache
def fitted() -> dict[str, Any]:
    """Returns the factors on file: {"platforms": ..., "points": ...}."""
    factors: dict[str, Any] = json.loads(FILE.read_text())
    return factors
