"""What diagnostics cost here: `python -m tests.sweeps.diagnostics_benchmark WORKLOAD --every=100`.

Times a recording (`sweeps.training.diagnostics`: computing it, fetching it and making its rows)
against a train step of the workload's own batch size, in one process and one run, taking turns,
because a machine's speed drifts; medians over rounds. The share is the time that recordings add to
the steps between them. Batches are random, of the shapes of training.
"""

import argparse
import statistics
import sys
import time
from typing import Any

from sweeps.study import config as configs
from sweeps.study import study
from sweeps.study.trial import Trial
from workloads import bench
from workloads.arguments import whole
from workloads.base import machine

ROUNDS = 7


def main() -> int:
    """Prints the figures. Returns 0."""
    import jax

    options = _options()
    trial = _trial(options)
    timed = Bench(trial, options.examples)
    print(
        f"{options.workload}, {options.variant}, batch {trial.batch_size}, probe "
        f"{options.examples}, {timed.layers} layers, {jax.devices()[0].device_kind}, "
        f"{machine.cpu_count()} CPU core(s)"
    )
    pairs = [
        (bench.seconds(timed.step, options.steps), bench.seconds(timed.recording, 1))
        for _ in range(options.rounds)
    ]
    step_s, recording_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    share = recording_s / (options.every * step_s)
    print(f"train step        {1e3 * step_s:10.1f} ms")
    print(f"recording         {1e3 * recording_s:10.1f} ms   {recording_s / step_s:.2f} steps")
    print(f"every {options.every:5} steps {100 * share:10.2f} % more time")
    print(f"compilation       {timed.compile_s:10.1f} s")
    return 0


class Bench:
    """A workload's train step and its recorder, compiled."""

    def __init__(self, trial: Trial, examples: int) -> None:
        import jax.numpy as jnp

        from sweeps.training import diagnostics, train_step

        step = train_step.of_trial(trial)
        workload: Any = step.workload
        self._state = step.first_state(0)
        batch = workload.example_batch(trial.batch_size)
        key = train_step.seed_key(0, train_step.DROPOUT)
        self._arguments = (batch, train_step.scalars_of(trial), key)
        self._update = step.compile(self._state, *self._arguments)
        self._probe = diagnostics.of(step)
        self._observed = (self._probe.first(batch, examples), jnp.float32(0.1))
        started = time.perf_counter()
        self._measure = self._probe.compile(self._state, *self._observed)
        self.compile_s = time.perf_counter() - started
        self.step()
        self.layers = len(self.recording())

    def step(self) -> Any:
        """Makes an update."""
        self._state, metrics = self._update(self._state, *self._arguments)
        return self._state, metrics

    def recording(self) -> list[dict[str, Any]]:
        """Returns the rows of a recording."""
        measured = self._measure(self._state.params, self._state.model_state, *self._observed)
        return self._probe.layers(measured)


def _trial(options: argparse.Namespace) -> Trial:
    """Returns a trial of the paper's space: which point it trains with does not change the time."""
    config = configs.base()
    config.name = "benchmark"
    config.workload = options.workload
    config.variants = (options.variant,)
    config.baseline = config.tuning_variant = options.variant
    config.protocol = "grid"
    config.batch_size = options.batch_size
    return study.resolve(config).trials("grid")[0]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sweeps.diagnostics_benchmark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workload", metavar="WORKLOAD")
    parser.add_argument("--variant", default="laser")
    parser.add_argument("--every", type=whole(), default=100, help="steps between recordings")
    parser.add_argument("--examples", type=whole(1, 1_048_576), default=8, help="of the probe")
    parser.add_argument(
        "--batch_size", type=whole(0, 1_048_576), default=0, help="0: the workload's own"
    )
    parser.add_argument("--steps", type=whole(), default=10, help="train steps of a round")
    parser.add_argument("--rounds", type=whole(), default=ROUNDS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
