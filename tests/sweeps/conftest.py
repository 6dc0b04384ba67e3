"""Small real studies on digits, and real processes to run and kill them."""

import collections
import contextlib
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from sweeps.launchers import local
from sweeps.monitoring import jax_calls
from sweeps.records import layout, lease, measurements, submissions
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


@pytest.fixture
def in_process(monkeypatch):
    """A driver's questions take a process of 2 s each: the same functions, called here."""
    monkeypatch.setattr(jax_calls, "call", lambda function, **arguments: function(**arguments))


class JobProcess:
    """Real jobs of one trial each, one after the other; what they did is read from files."""

    def __init__(self, cache_dir, *arguments, **extra):
        self._arguments = arguments
        self.environment = _environment(**{"JAX_COMPILATION_CACHE_DIR": str(cache_dir), **extra})
        self.process = None

    def run(self, directory, data_dir):
        """Starts the job of a trial, of a study whose data lie in `data_dir`."""
        self._directory, root = directory, layout.study_of(directory)
        record = layout.read_json(root / layout.STUDY)
        record["config"]["data_dir"] = data_dir
        layout.write_json(root / layout.STUDY, record)
        self.batch = submissions.new(root, "local", [(str(directory.relative_to(root)),)], {})
        with self.batch.log(0).open("w") as log:
            self.process = subprocess.Popen(
                [*self.batch.command(0), *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
            )

    @property
    def attempt(self):
        """The folder of its attempt, None before its claim."""
        for path in (self._directory / layout.ATTEMPTS).glob("[0-9]*"):
            if layout.read_record(path / lease.LEASE).get("pid") == self.process.pid:
                return path
        return None

    def rows(self, kind):
        """Returns the rows of a kind, 'train' or 'eval', that it has measured."""
        with contextlib.suppress(TypeError, FileNotFoundError):
            lines = (self.attempt / measurements.FILE).read_text().splitlines(keepends=True)
            rows = [json.loads(line) for line in lines if line.endswith("\n")]
            return [row for row in rows if row["kind"] == kind]
        return []

    @property
    def start(self):
        """The step that its attempt began from, None before it knows."""
        record = layout.read_record(self.attempt / measurements.RESUMED) if self.attempt else {}
        return record.get("global_step")

    def wait_for(self, kind, count=1, timeout=240):
        """Waits for so many rows of a kind; fails where the process ends before."""
        deadline = time.monotonic() + timeout
        while len(self.rows(kind)) < count:
            ended = self.process.poll() is not None
            if ended and len(self.rows(kind)) < count:
                pytest.fail(f"no {count} rows of {kind}: {self.batch.log(0).read_text()}")
            assert time.monotonic() < deadline, f"no {count} rows of {kind} within {timeout} s"
            time.sleep(0.005)

    def end(self, timeout=240):
        """Waits for its end; returns the outcome and the error, '' where there is none."""
        self.process.wait(timeout)
        text = self.batch.log(0).read_text()
        path = f"{self.batch.jobs[0][0]}: "
        said = [line for line in text.splitlines() if line.startswith(path)]
        assert said, text
        outcome, _, error = said[-1].removeprefix(path).partition(": ")
        return outcome, error

    def kill(self):
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    """The compilation cache of real jobs: the tests' own."""
    return os.environ.get("JAX_COMPILATION_CACHE_DIR") or tmp_path_factory.mktemp("xla")


@pytest.fixture
def worker(cache_dir):
    """Returns a function that makes a JobProcess; all are killed at the end."""
    made = []

    def make(*arguments, **extra):
        made.append(JobProcess(cache_dir, *arguments, **extra))
        return made[-1]

    yield make
    for one in made:
        one.kill()


def kill_jobs(study):
    """Kills the jobs of a study that outlive their drivers."""
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"sweeps\0job\0{study}/jobs/".encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)


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

    def handles(self):
        """Returns {path of a trial in the study: its jobs' handles, first submission first}."""
        handles = collections.defaultdict(list)
        for path in sorted((self.study / "jobs").glob("*.handles.json"), key=os.path.getmtime):
            batch = layout.read_json(path.with_name(path.name.replace(".handles", "")))
            for handle, task in zip(layout.read_json(path), batch["tasks"], strict=False):
                for trial in task:
                    handles[self.study / trial].append(handle)
        return handles

    def close(self):
        """Kills drivers, then the jobs that outlive them."""
        for process in self._started:
            process.kill()
            process.communicate()
        kill_jobs(self.study)


@pytest.fixture
def drivers(tmp_path, data_dir, environment, cache_dir):
    """Drivers of a small study that a test may disturb."""
    made = Drivers(tmp_path, data_dir, environment(JAX_COMPILATION_CACHE_DIR=str(cache_dir)))
    yield made
    made.close()


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


def fill_disk(disk, leave):
    """Fills a disk up to `leave` bytes; returns the file to remove."""
    filler = disk / "filler"
    descriptor = os.open(filler, os.O_CREAT | os.O_WRONLY)
    with contextlib.suppress(OSError):
        while os.write(descriptor, b"\0" * 2**16):
            pass
    if leave:
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - leave)
    os.close(descriptor)
    return filler


@pytest.fixture
def stub_drivers(tmp_path, data_dir, stub_environment):
    """As `drivers`, of workers that train nothing, for a second a trial."""
    made = Drivers(tmp_path, data_dir, stub_environment(STUB_UPDATE_S="0.1"))
    yield made
    made.close()


def _undisturbed(folder, data_dir, environment, **changes):
    """Runs the study of `drivers` in peace."""
    made = Drivers(folder, data_dir, environment)
    code, output = made.finish(made.run(**changes))
    made.close()
    assert code == 0, output


@pytest.fixture(scope="session")
def make_undisturbed(made_once, data_dir, environment, cache_dir):
    """Returns a function that runs the study of `drivers` in peace and returns its directory."""
    variables = environment(JAX_COMPILATION_CACHE_DIR=str(cache_dir))

    def make(name, **changes):
        run = functools.partial(_undisturbed, data_dir=data_dir, environment=variables, **changes)
        return made_once(name, run) / Drivers.NAME

    return make


@pytest.fixture(scope="session")
def undisturbed(make_undisturbed):
    """The directory of the study of `drivers`, run in peace: what faults must not change."""
    return make_undisturbed("undisturbed")


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
