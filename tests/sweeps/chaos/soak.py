"""A soak: a study under at least a hundred signals, compared with the same study undisturbed.

    python -m tests.sweeps.chaos.soak --kills 100 --trials 40

runs a study of short digits_vit trials in peace, then again while jobs are killed, killed while
they save, preempted and frozen past their leases, the driver is killed, and the host crashes
(everything at once); each time a new driver takes over. It passes where every trial ended as in the
undisturbed run, none was completed twice, and every loss, gradient norm and metric is the same bit
for bit. With --drivers=2 two drivers run the study at once, and either may be killed. Local
processes on CPUs; minutes, mostly spent on starting jobs again.
"""

import argparse
import collections
import contextlib
import functools
import os
import pathlib
import shutil
import sys
import tempfile
import time

from attention.common.arguments import whole
from sweeps.launchers import device_locks
from tests.sweeps import conftest
from tests.sweeps.chaos import equality, storm


def soak(options: argparse.Namespace, directory: pathlib.Path) -> list[str]:
    """Runs both studies below a directory, prints a summary, and returns what is wrong."""
    # Not the user's own cache: JAX does not write entries atomically, and writers are killed here.
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(directory / "xla"))
    variables = {"JAX_COMPILATION_CACHE_DIR": cache, "ATTNPERF_LEASE_S": "4"}
    variables[device_locks.NAMESPACE] = f"soak-{os.getpid()}"
    settings = {
        "points": options.trials,
        "steps": options.steps,
        "eval_every": -(-options.steps // 2),
        "batch_size": 8,
        # Kills that follow each other before the first checkpoint are no poison here.
        "max_attempts": options.kills + 1,
    }
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "drivers.log"
    with contextlib.ExitStack() as stack:
        output, studies = stack.enter_context(log.open("ab")), []
        for place in ("calm", "storm"):
            folder = directory / place
            folder.mkdir()
            drivers = conftest.Drivers(
                folder, options.data_dir, conftest.environment(**variables), output
            )
            studies.append(stack.enter_context(contextlib.closing(drivers)))
        calm, rough = studies
        began = time.monotonic()
        calm.finish(calm.run(**settings), timeout=None)
        seconds = time.monotonic() - began
        print(f"undisturbed: {options.trials} trials in {seconds:.0f} s", flush=True)
        weather = storm.Storm(rough.study, functools.partial(rough.run, **settings), options)
        code = weather.run()
    hits = sum(weather.hits.values())
    print(f"storm: {hits} signals, seed {options.seed}, {weather.started} drivers")
    for what, count in weather.hits.most_common():
        print(f"    {count:4d}  {what}")
    trials = rough.study.glob("grid/*/*/trial_*")
    ends = collections.Counter(end for trial in trials for end in equality.outcomes(trial))
    print(f"    {ends.total()} attempts: {dict(ends.most_common())}")
    problems = equality.problems(rough.study, calm.study)
    if code:
        problems.append(f"a driver that was left in peace ended with code {code}; see {log}")
    if hits < options.kills:
        problems.append(f"only {hits} of {options.kills} signals: give more trials or steps")
    return problems


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 where nothing was lost; 1 where something was, named."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.sweeps.chaos.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--kills", type=whole(0, 100_000), default=100, help="signals in all (100)")
    parser.add_argument("--trials", type=whole(2, 10_000), default=40, help="(40)")
    parser.add_argument("--steps", type=whole(2, 10**6), default=6, help="of a trial (6)")
    parser.add_argument(
        "--drivers", type=whole(1, 16), default=2, help="that run the study at once (2)"
    )
    parser.add_argument("--seed", type=whole(0), default=0, help="of whom and when (0)")
    parser.add_argument("--data_dir", default="", help="the digits; made there if absent")
    parser.add_argument(
        "--directory", type=pathlib.Path, help="kept; otherwise a temporary one, kept on failure"
    )
    options = parser.parse_args(arguments)
    directory = options.directory or pathlib.Path(tempfile.mkdtemp(prefix="attnperf-soak-"))
    if (directory / "storm").exists():
        parser.error(f"{directory} holds an earlier soak; give another --directory")
    problems = soak(options, directory.resolve())
    if problems:
        print("\n".join([*problems, f"everything is kept in {directory}"]))
        return 1
    print("0 trials lost, 0 completed twice; all losses, gradient norms and metrics equal")
    if options.directory is None:
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
