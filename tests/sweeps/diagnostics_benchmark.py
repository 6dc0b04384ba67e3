"""What diagnostics cost here: `python -m tests.sweeps.diagnostics_benchmark WORKLOAD --every=100`.

Times a recording (`sweeps.training.diagnostics`: computing it, fetching it and making its rows)
against a train step of the workload's own batch size, in one process and one run, taking turns,
because a machine's speed drifts; medians over rounds. The share is what recordings add to the time
of the steps between them. Compilation is paid once per program, not per trial. Batches are random,
of the shapes of training.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from sweeps.study import config as configs
from sweeps.study import study
from sweeps.study.trial import Trial
from workloads import bench
from workloads.arguments import whole
from workloads.base import machine

ROUNDS = 7


def main() -> int:
    """Prints the figures. Returns 0, or 2 for something that does not exist."""
    options = _options()
    try:
        for line in lines(options):
            print(line, flush=True)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def lines(options: argparse.Namespace) -> Iterator[str]:
    """Yields the report's lines. Raises ValueError for what is not known."""
    import jax

    trial = _trial(options)
    timed = Bench(trial, options.examples)
    yield (
        f"{options.workload}, {options.variant}, batch {trial.batch_size}, probe "
        f"{options.examples}, {timed.layers} layers, {jax.devices()[0].device_kind}, "
        f"{machine.cpu_count()} CPU core(s)"
    )
    pairs = [(timed.step_s(options.steps), timed.recording_s()) for _ in range(options.rounds)]
    step_s, recording_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    yield f"train step        {1e3 * step_s:10.1f} ms"
    yield f"recording         {1e3 * recording_s:10.1f} ms   {recording_s / step_s:.2f} steps"
    share = recording_s / (options.every * step_s)
    yield f"every {options.every:5} steps {100 * share:10.2f} % more time"
    yield f"compilation       {timed.compile_s:10.1f} s    train step {timed.step_compile_s:.1f} s"


class Bench:
    """A workload's train step and its recorder."""

    def __init__(self, trial: Trial, examples: int) -> None:
        import jax.numpy as jnp

        from sweeps.training import diagnostics, train_step

        self._step_function = train_step.of_trial(trial)
        made: Any = self._step_function.workload
        self._state = self._step_function.first_state(0)
        key = train_step.seed_key(0, train_step.DROPOUT)
        batch = made.example_batch(trial.batch_size)
        self._arguments = (batch, train_step.scalars_of(trial), key)
        began = time.perf_counter()
        self._update = self._step_function.compile(self._state, *self._arguments)
        self.step_compile_s = time.perf_counter() - began
        self._probe = diagnostics.of(self._step_function)
        few = self._probe.first(batch, examples)
        self._looked_at = (few, jnp.float32(0.1))
        began = time.perf_counter()
        self._measure = self._probe.compile(self._state, *self._looked_at)
        self.compile_s = time.perf_counter() - began
        self.step_s(1)
        self.recording_s()

    @property
    def layers(self) -> int:
        """How many attention layers a recording has."""
        return len(self._record())

    def step_s(self, steps: int) -> float:
        """Returns the seconds of a train step, a mean over `steps`."""
        return bench.seconds(self._step, steps)

    def recording_s(self) -> float:
        """Returns the seconds of a recording."""
        return bench.seconds(self._record, 1)

    def _step(self) -> Any:
        self._state, metrics = self._update(self._state, *self._arguments)
        return self._state, metrics

    def _record(self) -> list[dict[str, Any]]:
        measured = self._measure(self._state.params, self._state.model_state, *self._looked_at)
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
