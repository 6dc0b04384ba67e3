"""`python -m workloads bench NAME`: loader throughput, and train-step times as ratios of one run.

The machine's speed drifts, so variants take turns: a round times each of them, and the ratio is
the median over rounds. A step is forward, backward and gradients at a fixed batch, devices
synchronised; the optimizer's update is left out, being the same for all.
"""

import statistics
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from attention import registry as variants
from attention import table as variants_table
from workloads import batch_stream, image_queue, image_workload, registry, spec, table


def lines(
    name: str,
    data_dir: str,
    names: list[str],
    *,
    batch_size: int = 0,
    steps: int = 5,
    rounds: int = 5,
) -> Iterator[str]:
    """Yields report lines. Full-size workloads are timed without data (random images).

    Raises ValueError for an unknown workload or variant.
    """
    entry = table.entry(name)
    batch_size = batch_size or (entry.batch_size if entry.embedded else 8)
    if entry.embedded:
        yield _loader(name, data_dir, batch_size)
    timers = {variant: _timer(name, variant, batch_size) for variant in names}
    times: dict[str, list[float]] = {variant: [] for variant in names}
    for _ in range(rounds):
        for variant, timer in timers.items():
            times[variant].append(timer(steps))
    base = names[0]
    for variant in names:
        median = statistics.median(times[variant])
        ratios = sorted(a / b for a, b in zip(times[variant], times[base], strict=True))
        yield (
            f"{name}, batch {batch_size}: {variant} {1e3 * median:.1f} ms a step; "
            f"{variant} / {base} {statistics.median(ratios):.3f} "
            f"({ratios[0]:.3f} to {ratios[-1]:.3f} over {rounds} rounds)"
        )


def _loader(name: str, data_dir: str, batch_size: int) -> str:
    workload = registry.make(name)
    assert isinstance(workload, image_workload.ImageWorkload)
    source, transform = workload._source("train", data_dir), workload._data.train_transform
    with image_queue.train_batches(
        source, seed=0, batch_size=batch_size, transform=transform
    ) as stream:
        measured = batch_stream.measure_throughput(stream, 200)
    return (
        f"{name}, loader: {measured['images_per_s']:,.0f} images/s, "
        f"{measured['wall_ms_per_batch']:.2f} ms a batch of {batch_size}"
    )


def _timer(name: str, variant: str, batch_size: int) -> Any:
    """Returns a function that gives the mean wall time, in seconds, of n compiled steps."""
    made = variants.get(variant, **variants_table.hyperparameters(variant, tau=0.9))
    workload = registry.make(name, made)
    assert isinstance(workload, image_workload.ImageWorkload)
    size = workload._data.image_size
    params, state = workload.init_model_fn(jax.random.key(0))
    inputs = jax.random.normal(jax.random.key(1), (batch_size, size, size, 3))
    batch = {"inputs": inputs, "targets": jnp.zeros(batch_size, jnp.int32)}

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
        return workload.loss_fn(batch["targets"], logits, None, 0.1)["summed"]

    step = jax.jit(jax.value_and_grad(loss))
    jax.block_until_ready(step(params, batch, jax.random.key(2)))

    def run(steps: int) -> float:
        started = time.perf_counter()
        for _ in range(steps):
            result = step(params, batch, jax.random.key(2))
        jax.block_until_ready(result)
        return (time.perf_counter() - started) / steps

    return run
