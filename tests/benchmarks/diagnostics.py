"""What diagnostics cost here: `python -m tests.benchmarks.diagnostics WORKLOAD`.

Times a recording (`sweeps.training.diagnostics`: computing it, fetching it and making its rows)
against a LASER train step of the workload's own batch size, in one process and one run, taking
turns, because a machine's speed drifts; medians over rounds. The share is the time that recordings
add to the steps between them. Batches are random, of the shapes of training.
"""

import argparse
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp

from attention.common import machine
from sweeps.study import config as configs
from sweeps.study import study
from sweeps.training import diagnostics, train_step
from workloads import bench

ROUNDS = 7
STEPS = 10
EVERY = 100
EXAMPLES = 8


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.diagnostics")
    parser.add_argument("workload", metavar="WORKLOAD")
    name = parser.parse_args().workload
    changes = {"workload": name, "batch_size": 0, "protocol": "grid"}
    changes |= dict.fromkeys(("variants", "baseline", "tuning_variant"), "laser")
    overrides = [f"--config.{key}={value}" for key, value in changes.items()]
    trial = study.resolve(configs.parse("digits_vit_quick", overrides)).trials("grid")[0]
    step = train_step.of_trial(trial)
    workload: Any = step.workload
    state = step.first_state(0)
    batch = workload.example_batch(trial.batch_size)
    key = train_step.seed_key(0, train_step.DROPOUT)
    arguments = (batch, train_step.scalars_of(trial), key)
    update = step.compile(state, *arguments)
    probe = diagnostics.of(step)
    inputs = (probe.first(batch, EXAMPLES), jnp.float32(0.1))

    def train() -> Any:
        nonlocal state
        state, metrics = update(state, *arguments)
        return state, metrics

    def record() -> list[dict[str, Any]]:
        return probe.layers(probe.measure(state.params, state.model_state, *inputs))

    train()
    started = time.perf_counter()
    record()
    compile_s = time.perf_counter() - started
    print(
        f"{name}, batch {trial.batch_size}, {len(record())} layers, "
        f"{jax.devices()[0].device_kind}, {machine.cpu_count()} CPU core(s)"
    )
    pairs = [(bench.seconds(train, STEPS), bench.seconds(record, 1)) for _ in range(ROUNDS)]
    step_s, recording_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"train step        {1e3 * step_s:10.1f} ms")
    print(f"recording         {1e3 * recording_s:10.1f} ms   {recording_s / step_s:.2f} steps")
    print(f"every {EVERY} steps   {100 * recording_s / (EVERY * step_s):10.2f} % more time")
    print(f"compilation       {compile_s:10.1f} s")


if __name__ == "__main__":
    main()
