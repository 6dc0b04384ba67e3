"""`python -m workloads bench NAME`: loader throughput, and train-step times as ratios of one run.

The machine's speed drifts, so variants take turns: a round times each of them. A ratio is the
geometric mean over rounds, its 95 % interval Student's t of the logs, paired by round. It says
what more rounds of this process would give, not what another machine would. A step is forward,
backward and gradients at a fixed batch, devices synchronised; the optimizer's update is left out,
being the same for all.
"""

import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from attention import registry as variants
from attention import table as variants_table
from attention.common import devices, files
from workloads import catalog, registry
from workloads.base import spec

ROUNDS, STEPS = 10, 5
_LOADER_BATCHES = 200


def lines(
    name: str,
    data_dir: str,
    names: list[str],
    batch_size: int = 0,
    kernel: str = "xla",
    compute_dtype: str = "float32",
    out: pathlib.Path | None = None,
) -> Iterator[str]:
    """Yields report lines. Full-size workloads are timed without data, on random examples. The
    directory `out` gets the times of all rounds as a results file, a round as its seed.

    Raises ValueError for an unknown workload, variant or kernel, and where they do not fit.
    """
    entry = catalog.get(name)
    for variant in names:
        variants_table.check(variant, {}, kernel)
        catalog.check_variant(name, variants_table.canonical(variant), kernel)
    devices.default_platform()
    batch_size = batch_size or (entry.batch_size if entry.stands_in_for else 8)
    if entry.stands_in_for:
        yield _loader(name, data_dir, batch_size)
    names = list(dict.fromkeys(map(variants_table.canonical, names)))
    steps = {variant: _step(name, variant, batch_size, kernel, compute_dtype) for variant in names}
    times: dict[str, list[float]] = {variant: [] for variant in names}
    for _ in range(ROUNDS):
        for variant, step in steps.items():
            times[variant].append(seconds(step, STEPS))
    base = names[0]
    for variant in names:
        logs = np.log(np.divide(times[variant], times[base]))
        half = special.stdtrit(ROUNDS - 1, 0.975) * logs.std(ddof=1) / ROUNDS**0.5
        ratio, low, high = np.exp([logs.mean(), logs.mean() - half, logs.mean() + half])
        yield (
            f"{name}, batch {batch_size}: {variant} {1e3 * np.median(times[variant]):.1f} ms a "
            f"step; {variant} / {base} {ratio:.3f} [{low:.3f}, {high:.3f}] ({ROUNDS} rounds)"
        )
    if out:
        point = {"batch_size": batch_size, "kernel": kernel, "compute_dtype": compute_dtype}
        rows = [
            {"workload": name, "variant": variant, "seed": number, "metric": "step_seconds"}
            | {"value": value, "lower_is_better": True, "point": point}
            for variant in names
            for number, value in enumerate(times[variant])
        ]
        out.mkdir(parents=True, exist_ok=True)
        files.write(out / "results.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def _loader(name: str, data_dir: str, batch_size: int) -> str:
    """Returns how fast training batches come, finished and on the device."""
    queue = registry.make(name)._build_input_queue(0, "train", data_dir, batch_size)
    seconds(lambda: next(queue), 5)
    took = seconds(lambda: next(queue), _LOADER_BATCHES)
    return (
        f"{name}, loader: {batch_size / took:,.0f} examples/s, "
        f"{1e3 * took:.2f} ms a batch of {batch_size}"
    )


def _step(
    name: str, variant: str, batch_size: int, kernel: str, compute_dtype: str
) -> Callable[[], Any]:
    """Returns a compiled step of a variant."""
    hyperparameters = variants_table.hyperparameters(variant, tau=0.9)
    made = variants.get(variant, kernel=kernel, **hyperparameters)
    workload: Any = registry.make(name, made, compute_dtype)
    params, state = workload.init_model_fn(jax.random.key(0))
    batch = workload.example_batch(batch_size)

    def loss(params: Any, batch: Any, key: Any) -> jax.Array:
        logits, _ = workload.model_fn(
            params,
            batch,
            state,
            spec.ForwardPassMode.TRAIN,
            key,
            update_batch_norm=True,
            dropout_rate=jnp.float32(0.1),
        )
        return workload.loss_fn(batch["targets"], logits, batch.get("weights"), 0.1)["summed"]

    step = jax.jit(jax.value_and_grad(loss))
    jax.block_until_ready(step(params, batch, jax.random.key(2)))
    return lambda: step(params, batch, jax.random.key(2))


def seconds(step: Callable[[], Any], steps: int) -> float:
    """Returns the mean wall time of `steps` calls; the devices have finished the last result."""
    started = time.perf_counter()
    for _ in range(steps):
        result = step()
    jax.block_until_ready(result)
    return (time.perf_counter() - started) / steps
