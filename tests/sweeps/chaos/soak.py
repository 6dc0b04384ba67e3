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
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from attention.common import messages
from attention.common.arguments import whole
from sweeps.launchers import device_locks
from tests.sweeps import defaults
from tests.sweeps.chaos import equality, storm

_NAME = "soak"
_HERE = pathlib.Path(__file__).resolve().parents[3]


class Soak:
    """The two runs and what came out; everything lies below `directory`."""

    def __init__(self, options: argparse.Namespace, directory: pathlib.Path) -> None:
        self._options, self._directory = options, directory
        self._log = directory / "drivers.log"
        self.environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join(
                part for part in (str(_HERE), os.environ.get("PYTHONPATH")) if part
            ),
            "ATTNPERF_LEASE_S": "4",
            device_locks.NAMESPACE: f"soak-{os.getpid()}",
        }
        # Not the user's own: JAX does not write entries atomically, and writers are killed here.
        self.environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(directory / "xla"))

    def study(self, place: str) -> pathlib.Path:
        """Returns the directory of the study in 'calm' or 'storm'."""
        return self._directory / place / _NAME

    def start(self, place: str) -> subprocess.Popen[bytes]:
        """Starts a driver of the study in 'calm' or 'storm'."""
        options = self._options
        settings = {
            "name": _NAME,
            "experiment_dir": self._directory / place,
            "data_dir": options.data_dir,
            **defaults.SMALL,
            "protocol": "grid",
            "variants": "standard",
            "points": options.trials,
            "steps": options.steps,
            "eval_every": -(-options.steps // 2),
            "batch_size": 8,
            "log_every": 1,
            "local.workers": 2,
            # Kills that follow each other before the first checkpoint are no poison here.
            "max_attempts": options.kills + 1,
        }
        overrides = [f"--config.{key}={value}" for key, value in settings.items()]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "sweeps", "run", "--config=digits_vit_quick", *overrides],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,  # Ctrl-C is this process's to handle
            )

    def run(self) -> list[str]:
        """Runs both, prints a summary, and returns what is wrong."""
        options = self._options
        calm_s = self._calm()
        print(f"undisturbed: {options.trials} trials in {calm_s:.0f} s", flush=True)
        began = time.monotonic()
        weather = storm.Storm(
            self.study("storm"),
            lambda: self.start("storm"),
            options.kills,
            options.trials,
            options.seed,
            options.drivers,
        )
        code = weather.run()
        hits = sum(weather.hits.values())
        print(f"storm: {hits} signals in {time.monotonic() - began:.0f} s, seed {options.seed}")
        for what, count in weather.hits.most_common():
            print(f"    {count:4d}  {what}")
        print(f"    {weather.drivers} drivers, {options.drivers} at once")
        print(f"    {_attempts(self.study('storm'))}")
        found = equality.problems(self.study("storm"), self.study("calm"))
        if code:
            found.append(f"a driver that was left in peace ended with code {code}; see {self._log}")
        if hits < options.kills:
            found.append(f"only {hits} of {options.kills} signals: give more trials or steps")
        return found

    def _calm(self) -> float:
        """Runs the study in peace; returns its seconds. Raises ValueError where that fails."""
        began = time.monotonic()
        process = self.start("calm")
        try:
            code = process.wait()
        finally:
            process.terminate()
            process.wait()
        if code:
            raise ValueError(f"the undisturbed study ended with code {code}; see {self._log}")
        return time.monotonic() - began


def _attempts(study: pathlib.Path) -> str:
    """Returns how the trials' attempts ended, in words."""
    trials = study.glob("grid/*/*/trial_*")
    outcomes = collections.Counter(end for trial in trials for end in equality.outcomes(trial))
    listing = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    return f"{sum(outcomes.values())} attempts: {listing}"


def _options(arguments: list[str] | None) -> argparse.Namespace:
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
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 where nothing was lost; 1 where something was, named; 2 for bad input."""
    options = _options(arguments)
    directory = options.directory or pathlib.Path(tempfile.mkdtemp(prefix="attnperf-soak-"))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if (directory / "storm").exists():
            raise ValueError(f"{directory} holds an earlier soak; give another --directory")
        found = Soak(options, directory.resolve()).run()
    except (ValueError, OSError) as error:
        print(f"python -m tests.sweeps.chaos.soak: {messages.message(error)}", file=sys.stderr)
        return 2
    if found:
        print("\n".join([*found, f"everything is kept in {directory}"]))
        return 1
    print("0 trials lost, 0 completed twice; all losses, gradient norms and metrics equal")
    if options.directory is None:
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
