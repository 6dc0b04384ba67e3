"""Small real studies on digits, and real processes to run and kill them."""

import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest

from sweeps import config, study, study_directory
from workloads import digits

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """The embedded digits, prepared once for the session."""
    return str(digits.prepare(tmp_path_factory.mktemp("digits")))


@pytest.fixture
def make_study(tmp_path, data_dir):
    """Returns a function that makes a small study below tmp_path, `--config.key=value` changed."""

    def make(**changes):
        settings = {
            "experiment_dir": tmp_path,
            "data_dir": data_dir,
            "batch_size": 16,
            "steps": 12,
            "eval_every": 4,
            "log_every": 1,
            **changes,
        }
        overrides = [f"--config.{key}={value}" for key, value in settings.items()]
        return study.resolve(config.parse("digits_vit_quick", overrides))

    return make


@pytest.fixture
def make_trial(make_study):
    """Returns a function that writes one trial of a study to disk and returns its directory."""

    def make(stage="tune", index=0, **changes):
        resolved = make_study(**changes)
        study_directory.prepare(resolved)
        trials = resolved.trials(stage)
        study_directory.materialise(resolved, stage, trials)
        return resolved.directory / trials[index].path

    return make


def _environment(**extra):
    """Returns the environment of a subprocess: CPU only, this checkout first."""
    return {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(REPOSITORY), **extra}


@pytest.fixture(scope="session")
def environment():
    """Returns the function that makes a subprocess's environment."""
    return _environment


class WorkerProcess:
    """A real worker process, its events as they come."""

    def __init__(self, cache_dir, *arguments, **extra):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sweeps.worker", f"--cache_dir={cache_dir}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=_environment(**extra),
        )
        self.events = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def run(self, directory, data_dir):
        """Sends a trial."""
        order = {"trials": [str(directory)], "data_dir": data_dir}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def wait_for(self, event, count=1, timeout=120):
        """Returns the count-th event of that name; fails where the process ends before."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            found = [e for e in self.events if e["event"] == event]
            if len(found) >= count:
                return found[count - 1]
            if self.process.poll() is not None and not found:
                time.sleep(0.2)
                if not [e for e in self.events if e["event"] == event]:
                    pytest.fail(f"the worker ended ({self.process.returncode}) before {event}")
            time.sleep(0.005)
        pytest.fail(f"no {event} within {timeout} s; had {self.events}")

    def close(self):
        """Ends the worker as a driver does."""
        self.process.stdin.close()
        return self.process.wait(60)


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    """A persistent compilation cache shared by the session's workers."""
    return tmp_path_factory.mktemp("xla")


@pytest.fixture
def worker(cache_dir):
    """Returns a function that starts a worker; all are killed at the end."""
    started = []

    def start(*arguments, **extra):
        started.append(WorkerProcess(cache_dir, *arguments, **extra))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
        one.process.stdin.close()
        one.process.stdout.close()
