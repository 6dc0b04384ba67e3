"""What packing gains here: `python -m sweeps.benchmarks.pack WORKLOAD --pack=8`.

Times packs against as many unpacked trials in one process and one run, taking turns, because a
machine's speed drifts: a round times a stretch of training steps of each, and the ratio is the
median over rounds. Evaluations are made one member after another in a pack, so they cost the same
per trial; they are timed once and counted in trials per minute. Compilation is not: it is paid
once for a study.

On a CPU the process stays on one core, as a worker of the `local` launcher does, and its CPU time
is taken, which other processes hardly change; elsewhere, and with another --cores, wall time.
Memory is what XLA reserves for one step: arguments, outputs and temporaries.

On a CPU packs lose. Most of it is not arithmetic: glibc gives a step's buffers back to the system
above 32 MiB, and every step faults them in (digits_vit, pack 4: 8,700 faults per step and trial;
68 ms against 40 unpacked). With MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000
MALLOC_TOP_PAD_=268435456 MALLOC_ARENA_MAX=1 in the environment it is 48 ms.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from workloads.arguments import whole


def main() -> int:
    """Prints the table. Returns 0, or 2 for something that does not exist."""
    options = _options()
    if options.cores:
        # Before JAX loads: its thread pool is as large as what it finds then.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    try:
        for line in lines(options):
            print(line, flush=True)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def lines(options: argparse.Namespace) -> Iterator[str]:
    """Yields the report's lines. Raises ValueError for what is not known or has no data."""
    import jax

    from workloads import catalog

    entry = catalog.get(options.workload)
    bench = Bench(options.workload, options.variant, options.batch_size or entry.batch_size)
    sizes = _sizes(options.pack)
    yield (
        f"{options.workload}, {options.variant}, batch {bench.batch_size}, "
        f"{jax.devices()[0].device_kind}, {len(os.sched_getaffinity(0))} CPU core(s), "
        f"{'CPU time' if bench.clock is time.process_time else 'wall time'}"
    )
    timers = {size: bench.timer(size, options.same_seed) for size in sizes}
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(options.rounds):
        for size, timer in timers.items():
            times[size].append(timer(options.steps) / size)
    eval_s = bench.evaluation_s(options.data_dir or str(catalog.default_data_dir(options.workload)))
    steps = options.trial_steps or entry.step_hint
    yield f"a trial: {steps} steps and 10 evaluations of {eval_s:.2f} s"
    yield "pack  ms/step/trial  step gain (rounds)   trials/min   gain  step memory MiB"
    base = times[1]
    for size in sizes:
        ratios = sorted(one / other for one, other in zip(base, times[size], strict=True))
        step_s = statistics.median(times[size])
        minute, single = (60 / (steps * s + 10 * eval_s) for s in (step_s, statistics.median(base)))
        yield (
            f"{size:4}  {1e3 * step_s:13.2f}  {statistics.median(ratios):5.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})  {minute:11.2f}  {minute / single:5.2f}  "
            f"{bench.memory_mib[size]:15.1f}"
        )


class Bench:
    """A workload's train step, unpacked and packed, on a random batch."""

    def __init__(self, workload: str, variant: str, batch_size: int) -> None:
        import jax

        from attention import registry, table
        from sweeps.training import train_step
        from workloads import registry as workloads

        canonical = table.canonical(variant)
        given = table.hyperparameters(canonical, 0.9, True)
        made: Any = workloads.make(workload, registry.get(canonical, **given))
        self._step_function = train_step.TrainStep(made, "nadamw")
        self._workload = made
        self.batch_size = batch_size
        self._batch = made.example_batch(batch_size)
        self.memory_mib: dict[int, float] = {}
        # One core at work all the time is what a pinned worker has when nobody disturbs it.
        one_core = jax.default_backend() == "cpu" and len(os.sched_getaffinity(0)) == 1
        self.clock = time.process_time if one_core else time.perf_counter

    def timer(self, size: int, same_seed: bool) -> Callable[[int], float]:
        """Returns a function: seconds that so many steps of `size` trials take."""
        import jax

        update, state, arguments = self._unpacked() if size == 1 else self._packed(size, same_seed)
        self.memory_mib[size] = _mib(update)

        def seconds(steps: int) -> float:
            nonlocal state
            jax.block_until_ready(state)
            started = self.clock()
            for _ in range(steps):
                state, _ = update(state, *arguments)
            jax.block_until_ready(state)
            return self.clock() - started

        seconds(1)
        return seconds

    def _unpacked(self) -> tuple[Any, Any, Any]:
        from sweeps.training import train_step

        state = self._step_function.first_state(0)
        key = train_step.seed_key(0, train_step.DROPOUT)
        arguments = (self._batch, _scalars(), key)
        return self._step_function.compile(state, *arguments), state, arguments

    def _packed(self, size: int, same_seed: bool) -> tuple[Any, Any, Any]:
        from sweeps.training import packed_step

        packed = packed_step.of(self._step_function)
        seeds = [0] * size if same_seed else list(range(size))
        state = packed.pack([self._step_function.first_state(seed) for seed in seeds])
        batch = self._batch if same_seed else packed.stack([self._batch] * size)
        arguments = (batch, packed.stack([_scalars()] * size), packed.keys(seeds))
        return packed.compile(state, *arguments), state, arguments

    def evaluation_s(self, data_dir: str) -> float:
        """Returns the seconds of one evaluation, the first of which (reading, compiling) is not
        counted.

        Raises ValueError where the workload's data is not there.
        """
        from sweeps.training import train_step

        state = self._step_function.first_state(0)
        seconds = 0.0
        for _ in range(2):
            started = self.clock()
            self._workload.eval_model(
                self._workload.eval_batch_size,
                state.params,
                state.model_state,
                train_step.seed_key(0, train_step.INIT),
                data_dir,
            )
            seconds = self.clock() - started
        return seconds


def _scalars() -> dict[str, Any]:
    """Returns a point's traced hyperparameters: what they are does not change the time."""
    import jax.numpy as jnp

    from sweeps.study import hyperparameters

    point = {"learning_rate": 1e-3, "one_minus_beta1": 0.1, "beta2": 0.99, "weight_decay": 0.1}
    smooth = {"dropout_rate": 0.1, "label_smoothing": 0.1}
    complete = hyperparameters.complete({**point, **smooth, "warmup_factor": 0.05})
    complete |= {"grad_clip": float("inf"), "warmup_steps": 10.0, "step_hint": 1e6}
    del complete["warmup_factor"]
    return {name: jnp.asarray(value, jnp.float32) for name, value in complete.items()}


def _mib(executable: Any) -> float:
    """Returns what XLA reserves for an execution, MiB; donated arguments are counted once."""
    found = executable.memory_analysis()
    total = (
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        + found.temp_size_in_bytes
        - found.alias_size_in_bytes
    )
    return float(total) / 2**20


def _sizes(largest: int) -> list[int]:
    """Returns 1, 2, 4 … up to and with the largest."""
    powers = [2**exponent for exponent in range(1, largest.bit_length()) if 2**exponent < largest]
    return [1, *powers, largest]


def _options() -> argparse.Namespace:
    description = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m sweeps.benchmarks.pack",
        description=description[0],
        epilog=description[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workload", help="see `python -m workloads list`")
    parser.add_argument("--pack", type=whole(2, 1024), default=8, help="largest pack, 2 or more")
    parser.add_argument("--variant", default="laser")
    parser.add_argument(
        "--batch_size", type=whole(0, 1_048_576), default=0, help="0: the workload's"
    )
    parser.add_argument(
        "--trial_steps", type=whole(0), default=0, help="0: the workload's step hint"
    )
    parser.add_argument("--steps", type=whole(), default=10, help="in each round")
    parser.add_argument("--rounds", type=whole(), default=5)
    parser.add_argument(
        "--cores", type=whole(0, 65_536), default=1, help="CPU cores to stay on; 0: all"
    )
    parser.add_argument("--data_dir", default="", help="for evaluations; empty: the default")
    parser.add_argument(
        "--same_seed", action="store_true", help="members share seed and batch (a tuning stage)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
