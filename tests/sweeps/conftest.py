"""Small real studies on digits, and real processes to run and kill them."""

import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from sweeps.launchers import local
from sweeps.records import layout, lease
from sweeps.study import config, study, study_directory
from workloads.images import digits

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def data_dir(made_once):
    """The embedded digits."""
    return str(made_once("digits", digits.prepare))


@pytest.fixture(scope="session")
def make_study_in(data_dir):
    """Returns a function that makes a small study below a folder, `--config.key=value` changed."""

    def make(folder, **changes):
        settings = {
            "experiment_dir": folder,
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


@pytest.fixture(scope="session")
def make_trial_in(make_study_in):
    """Returns a function that writes one trial of a study to disk and returns its directory."""

    def make(folder, stage="tune", index=0, **changes):
        resolved = make_study_in(folder, **changes)
        study_directory.prepare(resolved)
        trials = resolved.trials(stage)
        study_directory.materialise(resolved, stage, trials)
        return resolved.directory / trials[index].path

    return make


@pytest.fixture
def make_study(make_study_in, tmp_path):
    """`make_study_in` below tmp_path."""
    return functools.partial(make_study_in, tmp_path)


@pytest.fixture
def make_trial(make_trial_in, tmp_path):
    """`make_trial_in` below tmp_path."""
    return functools.partial(make_trial_in, tmp_path)


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Returns a function that makes this host one with the given device files, and nothing set."""

    def make(*paths, vendor=None):
        for name in ("CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS", "JAX_PLATFORMS"):
            monkeypatch.delenv(name, raising=False)
        root = tmp_path / "host"
        for path in paths:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).touch()
        if vendor:
            pci = root / "sys/bus/pci/devices/0000:00:04.0"
            pci.mkdir(parents=True)
            (pci / "vendor").write_text(f"{vendor}\n")
        monkeypatch.setattr(local, "ROOT", root)

    return make


def _environment(**extra):
    """Returns the environment of a subprocess: CPU only, this checkout first."""
    return {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(REPOSITORY), **extra}


@pytest.fixture(scope="session")
def environment():
    """Returns the function that makes a subprocess's environment."""
    return _environment


@pytest.fixture(scope="session")
def stub_environment():
    """As `environment`, for processes whose workers train nothing: see stub_training."""
    path = f"{pathlib.Path(__file__).parent / 'stub_training'}{os.pathsep}{REPOSITORY}"
    return lambda **extra: _environment(**{"PYTHONPATH": path, **extra})


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
        order = {"trial": str(directory), "data_dir": data_dir}
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
    """The compilation cache of real workers: the tests' own."""
    return os.environ.get("JAX_COMPILATION_CACHE_DIR") or tmp_path_factory.mktemp("xla")


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


class Drivers:
    """Drivers of one small study below `folder`; `close` kills what they have left behind."""

    NAME = "faults"
    # Four trials of one program, and two workers, so that a worker has the cores of `one_core`.
    SETTINGS = {  # noqa: RUF012
        "name": NAME,
        "protocol": "grid",
        "variants": "standard",
        "points": 4,
        "batch_size": 16,
        "steps": 12,
        "eval_every": 4,
        "log_every": 1,
        "local.workers": 2,
    }

    def __init__(self, folder, data_dir, environment):
        self.folder, self.study = folder, folder / self.NAME
        self._settings = {**self.SETTINGS, "experiment_dir": folder, "data_dir": data_dir}
        self.environment = environment
        self._started = []

    def move_to(self, folder):
        """Puts the study below another folder; returns self."""
        self.study = folder / self.NAME
        self._settings["experiment_dir"] = folder
        return self

    def overrides(self, **changes):
        """Returns the study's settings as arguments, `--config.key=value` changed."""
        return [f"--config.{key}={value}" for key, value in {**self._settings, **changes}.items()]

    def resolve(self, **changes):
        """Returns the study."""
        return study.resolve(config.parse("digits_vit_quick", self.overrides(**changes)))

    def materialise(self, **changes):
        """Writes the study and its trials to disk, and returns the trials' directories."""
        made = self.resolve(**changes)
        study_directory.prepare(made)
        trials = made.trials("grid")
        study_directory.materialise(made, "grid", trials)
        return [made.directory / trial.path for trial in trials]

    def trial(self, point):
        """Returns the directory of a trial by its point."""
        return self.study / f"grid/standard/digits_vit_jax/trial_{1000 * point + 1}"

    def run(self, *, command="run", environment=None, **changes):
        """Starts `sweeps run` of the study; `command` may be 'resume' too."""
        arguments = ["resume", str(self.study)]
        if command == "run":
            arguments = ["run", "--config=digits_vit_quick", *self.overrides(**changes)]
        process = subprocess.Popen(
            [sys.executable, "-m", "sweeps", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment or self.environment,
            cwd=self.folder,
        )
        self._started.append(process)
        return process

    def call(self, *arguments):
        """Returns the ended process of `sweeps` with arguments, its output captured."""
        return subprocess.run(
            [sys.executable, "-m", "sweeps", *map(str, arguments)],
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.folder,
        )

    def finish(self, process, timeout=240):
        """Waits for a driver; returns its exit code and output."""
        output, _ = process.communicate(timeout=timeout)
        return process.returncode, output

    def worker(self, point):
        """Returns the process number of the live worker that has a trial, 0 where there is none."""
        trial = self.trial(point)
        attempt = trial / layout.ATTEMPTS / str(lease.latest(trial))
        record = layout.read_json_if_there(attempt / lease.LEASE)
        alive = record and lease.process_start(record["pid"]) == record["pid_start"]
        return record["pid"] if alive else 0

    def close(self):
        """Kills drivers, then the workers that outlive them."""
        for process in self._started:
            process.kill()
            process.communicate()
        for point in range(self._settings["points"]):
            if pid := self.worker(point):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def drivers(tmp_path, data_dir, environment, cache_dir):
    """Drivers of a small study that a test may disturb."""
    made = Drivers(tmp_path, data_dir, environment(JAX_COMPILATION_CACHE_DIR=str(cache_dir)))
    yield made
    made.close()


@pytest.fixture(scope="session")
def job_of():
    """Returns a function that gives the process of a worker's job, its parent, to be struck.

    It fails where that is none of this project's or Slurm's: a job that is gone leaves its worker
    to another parent.
    """

    def found(worker):
        stat = pathlib.Path(f"/proc/{worker}/stat").read_text()
        parent = int(stat.rpartition(")")[2].split()[1])
        command = pathlib.Path(f"/proc/{parent}/cmdline").read_bytes().replace(b"\0", b" ")
        assert b"sweeps" in command or b"slurm" in command, (worker, parent, command)
        return parent

    return found


@pytest.fixture
def disk(tmp_path):
    """A tmpfs of 64 MB; skips where mounting is not allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("cannot mount a tmpfs here: a full or read-only disk is not tested")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def stub_drivers(tmp_path, data_dir, stub_environment):
    """As `drivers`, of workers that train nothing, for a second a trial."""
    made = Drivers(tmp_path, data_dir, stub_environment(STUB_UPDATE_S="0.1"))
    yield made
    made.close()


def _undisturbed(*arguments):
    """Runs the study of `drivers` in peace."""
    made = Drivers(*arguments)
    code, output = made.finish(made.run())
    made.close()
    assert code == 0, output


@pytest.fixture(scope="session")
def undisturbed(made_once, data_dir, environment, cache_dir):
    """The directory of the study of `drivers`, run in peace: what faults must not change."""
    variables = environment(JAX_COMPILATION_CACHE_DIR=str(cache_dir))
    folder = made_once("undisturbed", lambda folder: _undisturbed(folder, data_dir, variables))
    return folder / Drivers.NAME


@pytest.fixture(scope="session")
def stub_undisturbed(made_once, data_dir, stub_environment):
    """As `undisturbed`, of `stub_drivers`."""
    variables = stub_environment()
    folder = made_once("stub", lambda folder: _undisturbed(folder, data_dir, variables))
    return folder / Drivers.NAME


@pytest.fixture(scope="session")
def one_core():
    """The argument that puts a worker on as many cores as each of a driver's two workers has."""
    cores = sorted(os.sched_getaffinity(0))
    return f"--cpus={','.join(map(str, cores[-max(1, len(cores) // 2) :]))}"


@pytest.fixture(scope="session")
def wait_until():
    """Returns a function that waits until a condition holds, and returns what it returned."""

    def wait(condition, timeout=120, every=0.005):
        deadline = time.monotonic() + timeout
        while not (found := condition()):
            assert time.monotonic() < deadline, f"not within {timeout} s"
            time.sleep(every)
        return found

    return wait
