"""Whole studies through the real command: interrupted, doubled, poisoned, continued."""

import contextlib
import errno
import functools
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from sweeps import __main__ as command
from sweeps.job import job
from sweeps.launchers.protocol import FINISHED
from sweeps.monitoring import plan
from sweeps.monitoring.progress import Progress
from sweeps.records import attempts, disk, layout, lease, measurements, status, submissions
from sweeps.scheduling import driver
from sweeps.study import study, study_directory
from tests.sweeps.conftest import kill_jobs

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "sweeps"]


def _arguments(tmp_path, data_dir, **changes):
    settings = {
        "experiment_dir": tmp_path,
        "data_dir": data_dir,
        "batch_size": 16,
        "steps": 8,
        "eval_every": 4,
        "local.workers": 2,
        "local.pin": False,
        **changes,
    }
    overrides = [f"--config.{key}={value}" for key, value in settings.items()]
    return [*COMMAND, "run", "--config=digits_vit_quick", *overrides]


@pytest.fixture
def start_stub(start, stub_environment):
    """As `start`, with workers that train nothing: who runs what is all that is asked."""
    return functools.partial(start, stub_environment)


@pytest.fixture
def start(tmp_path, data_dir, cache_dir, environment):
    """Returns a function that starts `sweeps run` on a small study."""
    started = []

    def run(environment=environment, **changes):
        process = subprocess.Popen(
            _arguments(tmp_path, data_dir, **changes),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(JAX_COMPILATION_CACHE_DIR=str(cache_dir)),
            cwd=tmp_path,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()
    kill_jobs(_study(tmp_path))


def _finish(process, timeout=240):
    output, _ = process.communicate(timeout=timeout)
    return process.returncode, output


def _study(tmp_path):
    return tmp_path / "digits_vit_quick"


def _attempts(study):
    return {str(p.parent.parent): p.name for p in study.glob("*/*/*/*/attempts/*")}


@pytest.mark.slow
def test_a_study_from_nothing_and_again(tmp_path, start):
    """Tune, select, compare without a person; a second run repeats nothing."""
    code, output = _finish(start())
    assert code == 0, output
    study = _study(tmp_path)
    assert "4 done" in output
    selection = layout.read_json(study / layout.SELECTION)
    assert selection["points"]["standard"] == selection["points"]["laser"]
    record = layout.read_json(study / layout.STUDY)
    assert record["format"] == layout.FORMAT
    assert len(record["points"]) == 2
    assert record["versions"]["jax"]
    number = 1 + 1000 * selection["points"]["laser"]
    trial = study / "compare/laser/digits_vit_jax" / f"trial_{number}"
    expected = {"trial.json", "hparams.json", "meta_data_0.json", "flags_0.json", "status.json"}
    expected |= {"eval_measurements.csv", "measurements.csv", "attempts", "checkpoints"}
    assert {path.name for path in trial.iterdir()} == expected
    assert layout.read_json(study / layout.REFERENCE)["digits_vit"]["rows"][0]["test/error"] < 0.05
    before = _attempts(study)
    code, output = _finish(start())
    assert code == 0
    assert "2 trials, 2 already finished" in output
    assert _attempts(study) == before
    code, output = _finish(start(seeds=2))
    assert code == 0
    assert "6 done" in output
    assert _attempts(study).items() >= before.items()
    shown = subprocess.run(
        [*COMMAND, "status", str(study)], capture_output=True, text=True, check=True
    ).stdout
    assert re.search(r"compare +laser +0 +0 +2 +0 +0", shown)


@pytest.mark.slow
def test_interrupted_and_continued(tmp_path, start_stub):
    process = start_stub(steps=400, eval_every=4)
    study = _study(tmp_path)
    deadline = time.monotonic() + 120
    while not list(study.glob("tune/*/*/*/eval_measurements.csv")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    code, output = _finish(process, 90)
    assert code == 130, output
    assert "interrupted; the same command goes on with what is left" in output
    states = [status.read(path.parent)["state"] for path in study.glob("tune/*/*/*/trial.json")]
    assert set(states) == {"pending"}
    # The same study, cut short so that the test ends soon, is another study.
    code, output = _finish(start_stub(steps=8))
    assert code == 2
    assert "holds another study of that name (" in output
    assert "steps: 400 there, 8 now" in output


@pytest.mark.slow
def test_two_drivers_do_not_run_a_trial_twice(tmp_path, start_stub):
    first, second = start_stub(seeds=2), start_stub(seeds=2)
    results = [_finish(first), _finish(second)]
    assert [code for code, _ in results] == [0, 0], results
    attempts = list(_study(tmp_path).glob("*/*/*/*/attempts/*"))
    assert len(attempts) == 2 + 4
    assert all(path.name == "1" for path in attempts)


def test_a_poison_trial_is_given_up_and_the_study_completes(
    tmp_path, start, start_stub, stub_environment
):
    """Whoever takes trial_1 is killed at once, as by the kernel's out-of-memory killer."""
    # Slow, so that none gets as far as a checkpoint before it is killed.
    slow = functools.partial(stub_environment, STUB_UPDATE_S="0.2")
    process = start(slow, protocol="grid", points=2, max_attempts=2)
    poisoned = _study(tmp_path) / "grid/laser/digits_vit_jax/trial_1"
    killed = 0
    while process.poll() is None:
        number = lease.latest(poisoned)
        attempt = lease.last(poisoned)
        if number > killed and (attempt / attempts.LOG).exists():
            os.kill(layout.read_json(attempt / lease.LEASE)["pid"], signal.SIGKILL)
            killed = number
        time.sleep(0.01)
    code, output = _finish(process)
    assert code == 1, output
    assert killed == 2
    assert re.search(r"(3 done, 1 failed|1 failed, 3 done)", output)
    assert status.read(poisoned)["state"] == "failed"
    assert "died (without progress: 0 failures, 2 kills)" in status.read(poisoned)["reason"]
    # Running again is a person's wish to try once more, and now nobody kills it.
    code, output = _finish(start_stub(protocol="grid", points=2, max_attempts=2))
    assert code == 0, output
    assert status.read(poisoned)["state"] == "done"
    others = [p.parent for p in _study(tmp_path).glob("grid/*/*/*/trial.json")]
    assert [status.read(p)["state"] for p in others] == ["done"] * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--config=digits_vit_quick", "--config.launcher=pbs"], "unknown launcher"),
        (["run", "--config=digits_vit_quick", "--config.kernel=cudnn"], "needs an NVIDIA GPU"),
        (["plan", "--config=nothing"], "unknown study 'nothing'"),
        (["run", "--config=digits_vit_quick", "--seeds=3"], "run takes no '--seeds=3'"),
        (["run", "--config=digits_vit_quick,nothing"], "unknown study 'nothing'"),
        (["run", "--config=digits_vit_quick,"], "path '' is empty"),
        (["run", "--config=digits_vit_quick,digits_vit_demo", "--config.name=x"], "give each once"),
        (["resume", "/nowhere"], "is no study"),
        (["status", "/nowhere"], "is no study"),
    ],
)
def test_bad_input_is_answered(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert command.main(arguments) == 2
    printed = capsys.readouterr().err
    assert re.search(message, printed)
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config=digits_vit_quick", "--config.workload=mnist"], "unknown workload"),
        (["--config=imagenet_vit_paper", "--config.data_dir=/nowhere"], "/nowhere.*imagenet2012"),
    ],
)
def test_the_command_itself_answers_in_one_breath(tmp_path, arguments, message):
    started = time.monotonic()
    done = subprocess.run(
        [*COMMAND, "run", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 2
    assert re.search(message, done.stderr, re.DOTALL), done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - started < 20


def test_a_worker_preempted_by_somebody_else_goes_on(tmp_path, start_stub):
    """SIGTERM to one worker alone: its trial is saved, handed out again, and done."""
    process = start_stub(protocol="grid", points=1, steps=60, eval_every=4)
    trial = _study(tmp_path) / "grid/laser/digits_vit_jax/trial_1"
    deadline = time.monotonic() + 120
    while not (trial / layout.EVAL_MEASUREMENTS).exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(layout.read_json(trial / "attempts/1" / lease.LEASE)["pid"], signal.SIGTERM)
    code, output = _finish(process)
    assert code == 0, output
    assert status.read(trial)["state"] == "done"
    assert lease.latest(trial) == 2
    assert "2 done" in output


def test_a_claim_that_fails_is_not_tried_forever(tmp_path, start_stub):
    """attempts/ is a file: no worker can claim the trial, and the study ends around it."""
    trial = _study(tmp_path) / "grid/laser/digits_vit_jax/trial_1"
    trial.mkdir(parents=True)
    (trial / "attempts").write_text("in the way")
    code, output = _finish(start_stub(protocol="grid", points=1, max_attempts=2))
    assert code == 1, output
    assert output.count("will be tried again") == 1
    assert "1 done" in output


@pytest.fixture
def finished(make_study):
    """Returns a study of one trial that is done, by hand: 12 steps, evaluated every 4."""
    made = make_study(protocol="grid", points=1, variants="standard")
    study_directory.prepare(made)
    trials = made.trials("grid")
    study_directory.materialise(made, "grid", trials)
    directory = made.directory / trials[0].path
    attempt = lease.claim(directory)
    layout.write_json(attempt.directory / measurements.RESUMED, {"global_step": 0})
    writer = measurements.Writer(attempt.directory)
    times = dict.fromkeys(layout.TIME_COLUMNS, 1.0)
    for step in range(12):
        writer.append([{"kind": "train", "global_step": step, "loss": 0.5, "grad_norm": 1.0}])
        if (step + 1) % 4 == 0:
            row = {"kind": "eval", "global_step": step + 1, "validation/accuracy": 0.5, **times}
            writer.append([row])
    writer.close()
    measurements.publish(directory)
    status.write(directory, "done", global_step=12)
    attempt.end("done")
    return made, directory


def _drive(made, capsys):
    with Progress() as progress:
        counts = driver.Driver(made, progress).run()
    return counts, capsys.readouterr().out


@pytest.mark.parametrize("name", [layout.EVAL_MEASUREMENTS, layout.MEASUREMENTS])
@pytest.mark.parametrize("length", [None, 0, 60, -1, -5], ids=str)
def test_csvs_of_a_done_trial_are_written_anew_from_its_attempts(finished, capsys, name, length):
    made, directory = finished
    path = directory / name
    whole, written = path.read_bytes(), path.stat().st_mtime_ns
    assert _drive(made, capsys)[0] == {"done": 1}
    assert path.stat().st_mtime_ns == written
    path.unlink()
    if length is not None:
        path.write_bytes(whole[:length])
    assert _drive(made, capsys)[0] == {"done": 1}
    assert path.read_bytes() == whole
    assert lease.latest(directory) == 1


def test_a_file_server_that_fails_as_a_stage_begins_or_ends(finished, capsys, monkeypatch):
    """Of all files that the driver reads or writes by then, one fails, each in its turn."""
    made, _ = finished
    begun, touched = [], []
    real_read, real_write = pathlib.Path.read_bytes, layout.write_atomically
    make = driver.scheduler.of_study

    def of_study(*given):
        made = make(*given)
        begun.append(True)
        return made

    monkeypatch.setattr(driver.scheduler, "of_study", of_study)
    monkeypatch.setattr("sweeps.records.clock.clock.sleep", lambda seconds: None)

    def touch(path):
        if begun:
            touched.append(path)
            if len(touched) == fails:
                raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(pathlib.Path, "read_bytes", lambda path: touch(path) or real_read(path))
    monkeypatch.setattr(
        layout, "write_atomically", lambda path, text: touch(path) or real_write(path, text)
    )
    fails = 0
    _drive(made, capsys)
    last = len(touched)
    assert {path.name for path in touched} >= {layout.TRIALS, layout.TRIAL, layout.STATUS}
    for fails in range(1, last + 1):
        del begun[:], touched[:]
        counts, output = _drive(made, capsys)
        assert counts == {"done": 1}, touched[fails - 1]
        assert output.count("Input/output error") == 1


def test_a_folder_that_may_not_be_written_ends_the_driver_at_once(finished, capsys, monkeypatch):
    made, _ = finished

    def refused(*arguments):
        raise PermissionError(errno.EACCES, "Permission denied", "/x")

    monkeypatch.setattr(driver.study_directory, "materialise", refused)
    with pytest.raises(PermissionError):
        _drive(made, capsys)


@pytest.mark.parametrize("lost", [measurements.FILE, measurements.RESUMED])
def test_csvs_that_attempts_do_not_hold_are_refused_and_nothing_is_touched(finished, capsys, lost):
    made, directory = finished
    (directory / layout.EVAL_MEASUREMENTS).unlink()
    (directory / "attempts/1" / lost).unlink()
    before = (directory / layout.MEASUREMENTS).read_bytes()
    with pytest.raises(ValueError, match=rf"mv {directory} {directory}\.damaged"):
        _drive(made, capsys)
    assert (directory / layout.MEASUREMENTS).read_bytes() == before
    # As the message says: the trial is to be trained anew.
    directory.rename(f"{directory}.damaged")
    study_directory.materialise(made, "grid", made.trials("grid"))
    assert status.read(directory) == status.NEW


def test_resume_keeps_to_the_directory_it_was_given(tmp_path, make_study):
    from sweeps.study import study

    made = make_study()
    study_directory.prepare(made)
    record = layout.read_json(made.directory / layout.STUDY)
    assert study.from_record(record, made.directory).directory == made.directory.resolve()
    moved = made.directory.with_name("moved")
    made.directory.rename(moved)
    with pytest.raises(ValueError, match="holds study 'digits_vit_quick'"):
        study.from_record(record, moved)


def test_a_study_from_before_a_key_existed_continues(tmp_path, make_study):
    made = make_study()
    study_directory.prepare(made)
    record = layout.read_json(made.directory / layout.STUDY)
    del record["config"]["remat"], record["config"]["local"]["pin"]
    layout.write_json(made.directory / layout.STUDY, record)
    again = study.from_record(record, made.directory)
    assert again.settings["remat"] is False
    assert again.settings["local"]["pin"] is True
    study_directory.prepare(made)


def test_a_changed_space_is_another_study(tmp_path, make_study):
    from sweeps.study import study_directory

    path = tmp_path / "mine.json"
    text = pathlib.Path(REPOSITORY / "sweeps/spaces/paper_nadamw.json").read_text()
    path.write_text(text)
    study_directory.prepare(make_study(space=path))
    path.write_text(text.replace("1e-4", "2e-4"))
    with pytest.raises(ValueError, match="gives other points than when the study began"):
        study_directory.prepare(make_study(space=path))


def test_plan_tells_the_cost(capsys):
    assert command.main(["plan", "--config=imagenet_vit_paper"]) == 0
    printed = capsys.readouterr().out
    assert "22,122,472 parameters" in printed
    tune = re.search(r"tune +50 +50 +1 +8,399,950 +(\d+)", printed)
    assert tune
    # 50 × 167,999 steps × 0.4153 s.
    assert int(tune[1]) == pytest.approx(8_399_950 * 0.4153 / 3600, abs=1)
    assert re.search(r"compare +40 +40 +8 ", printed)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become an unprivileged user")
def test_read_only_experiment_directory(tmp_path, data_dir):
    """As an unprivileged uid: root may write into mode 0555."""
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    code = (
        "import os, sys; from sweeps.study import config, study, study_directory;"
        f"changes = ['--config.experiment_dir={folder}'];"
        "s = study.resolve(config.parse('digits_vit_quick', changes));"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n    study_directory.prepare(s)\n"
        "except ValueError as error:\n    print(error)\n"
    )
    for parent in [tmp_path, *tmp_path.parents][:4]:
        parent.chmod(parent.stat().st_mode | 0o055)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        cwd="/",
    )
    assert "cannot be written: Permission denied" in done.stdout, done.stderr
    assert "--config.experiment_dir" in done.stdout


@pytest.fixture
def tiny_disk(tmp_path):
    """A tmpfs of 256 kB; skips where mounting is not allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True
    )
    if mount.returncode:
        pytest.skip("cannot mount a tmpfs here: the full disk is not tested")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_full_disk_at_the_door(tiny_disk, make_study):
    from sweeps.study import study_directory

    filler = os.open(tiny_disk / "filler", os.O_CREAT | os.O_WRONLY)
    with contextlib.suppress(OSError):
        while os.write(filler, b"\0" * 4096):
            pass
    os.close(filler)
    with pytest.raises(ValueError, match="cannot be written: No space left on device"):
        study_directory.prepare(make_study(experiment_dir=tiny_disk))


@pytest.mark.slow
def test_disk_that_fills_while_training_fails_the_trial_by_name(
    tiny_disk, make_trial, worker, data_dir
):
    """The checkpoint (2.6 MB) does not fit: the trial is given back, and the job ends."""
    directory = make_trial(experiment_dir=tiny_disk, steps=4)
    one = worker()
    one.run(directory, data_dir)
    assert one.process.wait(120) == 1
    # Whether or not the disk took the outcome, the lease is not left behind alive.
    found = status.read(directory)
    assert found["state"] in ("failed", "pending")
    assert found["state"] == "pending" or disk.is_reason(found["reason"])


def test_a_job_begins_with_its_share_of_the_trials(make_study):
    """So that jobs of one stage compile different programs first; each may end all others'."""
    made = make_study(protocol="grid", points=3)
    study_directory.prepare(made)
    paths = [t.path for t in study_directory.materialise(made, "grid", made.trials("grid"))]
    batch = submissions.new(made.directory, "local", [tuple(paths)], {}, sharing=2)
    first, second = (list(job.Job(batch.file, index)._in_turn()) for index in range(2))
    assert first == paths
    assert second == paths[3:] + paths[:3]


def test_a_job_leaves_trials_that_other_jobs_have_tried(make_study, monkeypatch):
    """Those that a job of its batch has claimed, and those that failed meanwhile in another's."""
    made = make_study(protocol="grid", points=3, variants="standard")
    study_directory.prepare(made)
    free, claimed, failed = study_directory.materialise(made, "grid", made.trials("grid"))
    status.write(made.directory / free.path, "failed")  # before: a person runs the study again
    paths = (free.path, claimed.path, failed.path)
    batch = submissions.new(made.directory, "local", [paths], {}, sharing=2)
    batch.note_claim(1, claimed.path)
    status.write(made.directory / failed.path, "failed")
    worked, trained = job.Job(batch.file, 0), []

    def run(directory, *_):
        trained.append(directory)
        return job.trainer.End("done")

    monkeypatch.setattr(worked.trainer, "run", run)
    assert worked._train_all() == FINISHED
    assert trained == [made.directory / free.path]


def test_several_studies_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    """The second takes the point that the first selects; the time left is of both."""
    driven = []

    def drive(resolved, selection, after=()):
        later = plan.steps_after(resolved, after)
        driven.append((resolved.name, [one.name for one in after], later))
        if resolved.name == "c4_lm_234m_paper":
            layout.write_json(resolved.directory / "study.json", {
                "config": {"tuning_variant": "standard", "protocol": "tune_then_compare"},
                "points": resolved.points, "paper_table": "", "name": resolved.name,
                "stages": resolved.stages,
            })  # fmt: skip
            chosen = {"points": {"standard": 3, "laser": 3}}
            layout.write_json(resolved.directory / "selection.json", chosen)
        return int(resolved.name == "digits_vit_quick")

    monkeypatch.setattr(command, "_drive", drive)
    where = f"--config.experiment_dir={tmp_path}"
    (tmp_path / "c4_lm_234m_paper").mkdir()
    assert command.main(["run", "--config=c4_lm_234m_paper,c4_lm_paper", where]) == 0
    assert [each[:2] for each in driven] == [
        ("c4_lm_234m_paper", ["c4_lm_paper"]),
        ("c4_lm_paper", []),
    ]
    assert driven[0][2] == 0  # of full size no time is known on this host
    driven.clear()
    assert command.main(["run", "--config=digits_vit_quick,pydoc_lm_quick", where]) == 1
    first, second = (each[2] for each in driven)
    assert first > second == 0
    assert "study 2 of 2: pydoc_lm_quick" in capsys.readouterr().out
