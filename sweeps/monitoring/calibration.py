"""A model of a step's time and memory, fitted to what compilers say of steps.

Language models. Each part has an amount in bytes or FLOP (`workloads/text/costs.py`). The model is
the sum of amounts times factors:

- memory_gb: parameters and moments count as they are. The other parts have the factors "memory" of
  the platform, times one of the kind of device.
- step_ms: FLOP at the peak and bytes at the bandwidth of the device, by the factors "time" of the
  platform, times one of its kind. None for GPUs, whose compiler estimates no times.

Other workloads. Their step is no sum of such parts: ViT's time grows as the examples of a device to
the power 1.4. "points" holds the compiler's figures by examples of a device; between two points a
power law holds. GPUs have the least time of a step in place of its time, by the quicker of standard
attention and LASER.

`make performance` writes `calibration.json` from the rows of docs/performance.md without a †. A
test holds the model to within TOLERANCE of every row.
"""

import dataclasses
import functools
import json
import math
import pathlib
from typing import Any

import numpy as np

from attention import precision
from sweeps.monitoring import jax_calls
from sweeps.study import checks
from sweeps.study.study import Study
from sweeps.training import accelerators
from workloads import catalog

FILE = pathlib.Path(__file__).with_name("calibration.json")
# The model's error at most, on every row of docs/performance.md.
TOLERANCE = 0.15
EXACT = ("parameters", "moments")
# Settings that the figures of "points" are of.
_OF_POINTS = {
    "compute_dtype": "float32",
    "matmul_precision": "default",
    "kernel": "xla",
    "microbatches": 1,
}
FLOPS = ("products", "score_products", "kernel_products")


@dataclasses.dataclass(frozen=True)
class Prediction:
    """memory_gb by part, 10⁹ bytes per device; step_ms, None where it is not known.

    least_ms: the least time of the step, where only that is known.
    """

    memory_gb: dict[str, float]
    step_ms: float | None
    least_ms: float | None = None

    @property
    def total_gb(self) -> float:
        """All parts."""
        return sum(self.memory_gb.values())


def verdict(needed_gb: float, available_gb: float) -> str:
    """Returns whether a prediction fits; within TOLERANCE of the limit the compiler decides."""
    if needed_gb * (1 + TOLERANCE) <= available_gb:
        return "fits"
    if needed_gb / (1 + TOLERANCE) > available_gb:
        return "DOES NOT FIT"
    return "CLOSE, `python -m sweeps compile` decides"


def predict(study: Study, where: accelerators.Topology) -> dict[str, Prediction]:
    """Returns the prediction for every variant's train step; none where no figures were fitted.

    Only of workloads at full size: what matters in a small step is not in the model. Raises
    ValueError where mesh or batch do not fit the topology.
    """
    settings = study.settings
    if catalog.get(study.workload).topology:
        factors = fitted()["platforms"][where.accelerator.platform]
        variants = costs(study, where.devices).items()
        return {name: by_factors(amounts, where.kind, factors) for name, amounts in variants}
    points = fitted()["points"].get(study.workload, {}).get(where.kind)
    if not points or any(settings[key] != value for key, value in _OF_POINTS.items()):
        return {}
    examples = [point["examples"] for point in points]
    wanted = settings["batch_size"] / where.devices
    if not examples[0] <= wanted <= examples[-1]:
        return {}
    between = {
        name: math.exp(
            np.interp(math.log(wanted), np.log(examples), np.log([point[name] for point in points]))
        )
        for name in points[0]
    }
    known = Prediction({"all": between["gb"]}, between.get("ms"), between.get("least_ms"))
    return dict.fromkeys(settings["variants"], known)


def costs(study: Study, devices: int) -> dict[str, dict[str, dict[str, float]]]:
    """Returns `workloads.text.costs.per_device` of every variant, from one process of its own.

    FLOP are those that a TPU makes of float32 under the study's matmul_precision.
    """
    settings = study.settings
    variants = settings["variants"]
    amounts: dict[str, dict[str, dict[str, float]]] = jax_calls.call(
        jax_calls.costs,
        workload=study.workload,
        variants={name: checks.variant_hyperparameters(name, settings) for name in variants},
        options=dataclasses.asdict(checks.options(settings)),
        batch_size=settings["batch_size"],
        microbatches=settings["microbatches"],
        devices=devices,
        kernel=settings["kernel"],
    )
    if settings["compute_dtype"] == "float32":
        passes = precision.tpu_passes(settings["matmul_precision"])
        for variant in amounts.values():
            variant["work"] |= {part: variant["work"][part] * passes for part in FLOPS}
    return amounts


def by_factors(
    amounts: dict[str, dict[str, float]], kind: str, factors: dict[str, Any]
) -> Prediction:
    """Returns the prediction from a step's costs and its platform's factors."""
    kinds = factors["kinds"].get(kind, {"memory": 1.0})
    memory = {
        part: size * factors["memory"][part] / 1e9 * (1 if part in EXACT else kinds["memory"])
        for part, size in amounts["memory"].items()
    }
    if "time" not in kinds:
        return Prediction(memory, None)
    ideal = ideal_ms(amounts["work"], accelerators.KINDS[kind])
    time = sum(ms * factors["time"][part] for part, ms in ideal.items())
    return Prediction(memory, time * kinds["time"])


def ideal_ms(work: dict[str, float], device: accelerators.Accelerator) -> dict[str, float]:
    """Returns how long each part would take at the device's peak or bandwidth, alone."""
    rates = {True: device.peak_tflops * 1e9, False: device.bandwidth_gb * 1e6}
    return {part: amount / rates[part in FLOPS] for part, amount in work.items()}


@functools.cache
def fitted() -> dict[str, Any]:
    """Returns the factors on file: {"platforms": ..., "points": ...}."""
    factors: dict[str, Any] = json.loads(FILE.read_bytes())
    return factors
