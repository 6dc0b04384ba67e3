"""Small real studies on digits, and real processes to run and kill them."""

import collections
import contextlib
import errno
import functools
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from sweeps.launchers import local
from sweeps.records import clock, layout, lease, measurements, status, submissions
from sweeps.scheduling import preflight
from sweeps.study import config, study, study_directory
from tests.sweeps import defaults, waiting
from workloads.images import digits

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def resolve(study_name="digits_vit_demo", /, *, planning=False, **changes):
    """Returns a shipped study, or that of a file, with `--config.key=value` for changes."""
    if study_name == "digits_vit_quick":
        changes = {**defaults.SMALL, **changes}
    overrides = [f"--config.{key}={value}" for key, value in changes.items()]
    return study.resolve(config.parse(study_name, overrides), planning=planning)


def begin_stage(resolved, stage="tune"):
    """Writes a study and the trials of a stage to disk; returns the trials."""
    study_directory.prepare(resolved)
    return study_directory.materialise(resolved, stage, resolved.trials(stage))


def begin_attempt(directory, rows=(), resumed=0):
    """Claims a trial, as resumed after some updates, and writes rows of measurements.

    Returns the attempt, which is under way.
    """
    attempt = lease.claim(directory)
    layout.write_json(attempt.directory / measurements.RESUMED, {"global_step": resumed})
    writer = measurements.Writer(attempt.directory)
    writer.append(rows)
    writer.close()
    return attempt


def evaluations(accuracies, first=1):
    """Returns rows of evaluations every four updates, from number `first` on."""
    return [
        {"kind": "eval", "global_step": 4 * number, "validation/accuracy": accuracy}
        for number, accuracy in enumerate(accuracies, first)
    ]


def end_trial(directory, accuracy, state="done"):
    """Ends a trial of 12 updates whose evaluations are all the same."""
    begin_attempt(directory, evaluations([accuracy] * 3)).end(state)
    status.write(directory, state, global_step=12)


def change_lease(attempt, **changes):
    """Writes an attempt's lease anew with other values, as another process would have it."""
    path = attempt.directory / lease.LEASE
    layout.write_json(path, {**layout.read_json(path), **changes})


def failing(monkeypatch, function, number, when, times=10**9, module=os):
    """Has a function of `os` fail for paths that `when` picks, a number of times; returns them."""
    real, met = getattr(module, function), []

    def fails(path, *arguments, **named):
        if isinstance(path, str | os.PathLike) and when(os.fspath(path)) and len(met) < times:
            met.append(os.fspath(path))
            raise OSError(number, os.strerror(number), os.fspath(path))
        return real(path, *arguments, **named)

    monkeypatch.setattr(module, function, fails)
    return met


def failing_in_turn(monkeypatch, run, is_counted=lambda: True):
    """Calls `run` again and again while one file that it reads or writes fails, each in its turn.

    Yields, after each call, the file that failed; files count while `is_counted()`.
    """
    real_read, real_write, touched = pathlib.Path.read_bytes, layout.write_atomically, []
    monkeypatch.setattr(clock.clock, "sleep", lambda seconds: None)

    def touch(path):
        if is_counted():
            touched.append(path)
            if len(touched) == fails:
                raise OSError(errno.EIO, "Input/output error", str(path))

    def read(path):
        touch(path)
        return real_read(path)

    def write(path, text):
        touch(path)
        real_write(path, text)

    monkeypatch.setattr(pathlib.Path, "read_bytes", read)
    monkeypatch.setattr(layout, "write_atomically", write)
    fails = 0
    run()
    for fails in range(1, len(touched) + 1):
        touched.clear()
        run()
        yield touched[fails - 1]


@pytest.fixture(scope="session")
def data_dir(made_once):
    """The embedded digits."""
    return str(made_once("digits", digits.DIGITS.prepare))


@pytest.fixture(scope="session")
def make_study_in(data_dir):
    """Returns a function that makes a small study below a folder, `--config.key=value` changed."""

    def make(folder, **changes):
        settings = {
            **defaults.SMALL,
            "experiment_dir": folder,
            "data_dir": data_dir,
            "batch_size": 16,
            "steps": 12,
            "eval_every": 4,
            "log_every": 1,
            **changes,
        }
        return resolve("digits_vit_quick", **settings)

    return make


@pytest.fixture(scope="session")
def make_trial_in(make_study_in):
    """Returns a function that writes one trial of a study to disk and returns its directory."""

    def make(folder, stage="tune", index=0, **changes):
        resolved = make_study_in(folder, **changes)
        return resolved.directory / begin_stage(resolved, stage)[index].path

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


def environment(**extra):
    """Returns the environment of a subprocess: CPU only, this checkout first."""
    return {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(REPOSITORY), **extra}


@pytest.fixture(scope="session", name="environment")
def _environment():
    """Returns the function that makes a subprocess's environment."""
    return environment


@pytest.fixture(scope="session")
def stub_environment():
    """As `environment`, for processes whose workers train nothing: see stub_training."""
    path = f"{pathlib.Path(__file__).parent / 'stub_training'}{os.pathsep}{REPOSITORY}"
    return lambda **extra: environment(**{"PYTHONPATH": path, **extra})


class JobProcess:
    """The real job of one trial, with arguments; what it does is read from files."""

    def __init__(self, cache_dir, directory, *arguments, **variables):
        self._directory, root = directory, layout.study_of(directory)
        self.environment = environment(JAX_COMPILATION_CACHE_DIR=str(cache_dir), **variables)
        self.batch = submissions.new(root, "local", [(str(directory.relative_to(root)),)], {})
        with self.batch.log(0).open("w") as log:
            self.process = subprocess.Popen(
                [*self.batch.command(0), *arguments],
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

    @property
    def start(self):
        """The step that its attempt began from."""
        return layout.read_json(self.attempt / measurements.RESUMED)["global_step"]

    def wait_for(self, kind, count=1):
        """Waits for so many rows of a kind, 'train' or 'eval'; fails where it ends before."""

        def are_measured():
            ended = self.process.poll() is not None
            measured = self._count(kind) >= count
            assert measured or not ended, self.batch.log(0).read_text()
            return measured

        waiting.wait(are_measured, f"{count} rows of {kind}", 240, every=0.005)

    def _count(self, kind):
        if self.attempt is None:
            return 0
        number = int(self.attempt.name)
        rows = measurements.curve(self._directory)
        return sum(row["kind"] == kind and row["preemption_count"] == number - 1 for row in rows)

    def end(self):
        """Waits for its end; returns the outcome and the error, '' where there is none."""
        self.process.wait(240)
        text = self.batch.log(0).read_text()
        path = f"{self.batch.jobs[0][0]}: "
        lines = [line for line in text.splitlines() if line.startswith(path)]
        assert lines, f"exit status {self.process.returncode}\n{text}"
        outcome, _, error = lines[-1].removeprefix(path).partition(": ")
        return outcome, error

    def kill(self):
        """SIGKILL."""
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    """The compilation cache of real jobs: the tests' own."""
    return os.environ.get("JAX_COMPILATION_CACHE_DIR") or tmp_path_factory.mktemp("xla")


@pytest.fixture
def worker(cache_dir):
    """Returns a function that starts the job of a trial; all are killed at the end."""
    jobs = []

    def start(directory, *arguments, **variables):
        jobs.append(JobProcess(cache_dir, directory, *arguments, **variables))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


def job_processes(study):
    """Returns the numbers of the processes of a study's jobs."""
    numbers = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"sweeps\0job\0{study}/jobs/".encode() in path.read_bytes():
                numbers.append(int(path.parent.name))
    return numbers


def kill_jobs(study, but=()):
    """Kills the jobs of a study that outlive their drivers."""
    for number in set(job_processes(study)) - set(but):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


class Drivers:
    """Drivers of one small study below `folder`; `close` kills what they have left behind."""

    NAME = "faults"
    # Four trials of one program, and two workers, so that a worker has the cores of `one_core`.
    SETTINGS = {  # noqa: RUF012
        **defaults.SMALL,
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

    def __init__(self, folder, data_dir, environment, output=subprocess.PIPE):
        self.folder, self.study = folder, folder / self.NAME
        self._settings = {**self.SETTINGS, "experiment_dir": folder, "data_dir": data_dir}
        self.environment, self._output = environment, output
        self._started = []

    def materialise(self):
        """Writes the study and its trials to disk; returns the first trial's directory."""
        begin_stage(resolve("digits_vit_quick", **self._settings), "grid")
        return self.trial(0)

    def trial(self, point):
        """Returns the directory of a trial by its point."""
        return self.study / f"grid/standard/digits_vit_jax/trial_{1000 * point + 1}"

    def run(self, *, command="run", environment=None, **changes):
        """Starts `sweeps run` of the study; `command` may be 'resume' too."""
        arguments = ["resume", str(self.study)]
        if command == "run":
            settings = {**self._settings, **changes}.items()
            overrides = [f"--config.{key}={value}" for key, value in settings]
            arguments = ["run", "--config=digits_vit_quick", *overrides]
        process = subprocess.Popen(
            [sys.executable, "-m", "sweeps", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
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

    def finish(self, process, code=0, timeout=240):
        """Waits for a driver, which must end with that exit code; returns its output."""
        output, _ = process.communicate(timeout=timeout)
        assert process.returncode == code, output
        return output

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
    variables = environment(JAX_COMPILATION_CACHE_DIR=str(cache_dir))
    with contextlib.closing(Drivers(tmp_path, data_dir, variables)) as made:
        yield made


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
    variables = stub_environment(STUB_UPDATE_S="0.1")
    with contextlib.closing(Drivers(tmp_path, data_dir, variables)) as made:
        yield made


@pytest.fixture(scope="session")
def make_undisturbed(made_once, data_dir, environment, cache_dir):
    """Returns a function that runs the study of `drivers` in peace and returns its directory."""
    real = environment(JAX_COMPILATION_CACHE_DIR=str(cache_dir))

    def make(name, variables=real, **changes):
        def run(folder):
            with contextlib.closing(Drivers(folder, data_dir, variables)) as made:
                made.finish(made.run(**changes))

        return made_once(name, run) / Drivers.NAME

    return make


@pytest.fixture(scope="session")
def undisturbed(make_undisturbed):
    """The directory of the study of `drivers`, run in peace: what faults must not change."""
    return make_undisturbed("undisturbed")


@pytest.fixture(scope="session")
def stub_undisturbed(make_undisturbed, stub_environment):
    """As `undisturbed`, of `stub_drivers`."""
    return make_undisturbed("stub", stub_environment())


@pytest.fixture(scope="session")
def one_core():
    """The argument that puts a worker on as many cores as each of a driver's two workers has."""
    cores = sorted(os.sched_getaffinity(0))
    return f"--cpus={','.join(map(str, cores[-max(1, len(cores) // 2) :]))}"


@pytest.fixture(scope="session")
def wait_until():
    """Returns a function that waits until a condition holds, and returns what it returned."""
    return functools.partial(waiting.wait, every=0.005)


def finish_stage(made, stage="tune", values=None):
    """Writes a stage whose trials are done, with accuracies by point (else 0.5)."""
    trials = begin_stage(made, stage)
    for trial in trials:
        end_trial(made.directory / trial.path, (values or {}).get(trial.point, 0.5))
    return trials


def answer_data(monkeypatch, digest, meanwhile=lambda: None):
    """Has `jax_calls.data` answer with a digest, after what happens meanwhile."""

    def answer(*_):
        meanwhile()
        return {"lines": [], "reference": None, "digest": digest}

    monkeypatch.setattr(preflight, "_ask", answer)


def trial_ids(made):
    """Returns the ids of a study's trials by path, with point 0 in stage 'compare'."""
    chosen = {"points": dict.fromkeys(made.settings["variants"], 0)}
    return {t.path: t.id for stage in made.stages for t in made.trials(stage, chosen)}
