"""`status --watch` as a process: plain lines in a log, a table on a terminal, a quiet end."""

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from sweeps.monitoring import watch as watching_module
from sweeps.records import layout, lease, status, study_reader
from sweeps.study import study_directory

CODE = (
    "import pathlib, sys; from sweeps.monitoring import watch; "
    "watch.show(pathlib.Path(sys.argv[1]), 0.05)"
)


@pytest.fixture
def begun(make_study):
    """A grid of two trials on disk, one of them running."""
    resolved = make_study(protocol="grid", points=2, variants="standard", name="watched")
    study_directory.prepare(resolved)
    trials = resolved.trials("grid")
    study_directory.materialise(resolved, "grid", trials)
    directories = [resolved.directory / trial.path for trial in trials]
    lease.claim(directories[0])
    status.write(directories[0], "running", global_step=4, steps=12, step_seconds=2.0)
    return resolved.directory, directories


class Watching:
    """A watching process and what it has shown so far."""

    def __init__(self, directory, environment, on_terminal):
        self.shown = b""
        self._read, write = pty.openpty() if on_terminal else os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE, str(directory)],
            stdout=write,
            stderr=write,
            env=environment(TERM="xterm", COLUMNS="120", LINES="40"),
        )
        os.close(write)
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self):
        try:
            while part := os.read(self._read, 65536):
                self.shown += part
        except OSError:  # a terminal's way to end
            pass

    @property
    def text(self):
        return self.shown.decode(errors="replace")

    def wait_for(self, pattern):
        deadline = time.monotonic() + 120
        while not re.search(pattern, self.text):
            assert self.process.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.02)

    def end(self):
        code = self.process.wait(120)
        self._thread.join()
        os.close(self._read)
        return code


@pytest.fixture
def watch(environment):
    """Returns a function that watches a study; the process is killed at the end."""
    started = []

    def start(directory, on_terminal=False):
        started.append(Watching(directory, environment, on_terminal))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.end()


def _finish(directories):
    for directory in directories:
        status.write(directory, "done", global_step=12)
        for name in (layout.EVAL_MEASUREMENTS, layout.MEASUREMENTS):
            (directory / name).write_text("global_step\n12\n")


def test_a_log_gets_a_line_per_change(begun, watch):
    directory, trials = begun
    watching = watch(directory)
    watching.wait_for("1 running")
    _finish(trials[:1])
    watching.wait_for("1 done")
    _finish(trials)
    assert watching.end() == 0
    lines = [re.sub(r"^\[[\d:]{8}\] ", "", line) for line in watching.text.splitlines()]
    # 8 steps are left of the first trial and 12 of the second, 2 s each.
    assert lines == [
        "grid 1 pending 1 running; time left: grid about 40 s; study about 40 s, 1 trial at a time",
        "grid 1 pending 1 done; time left: grid unknown; study unknown: no trial is running",
        "grid 2 done; complete",
    ]


def test_a_terminal_gets_a_table_that_changes(begun, watch):
    directory, trials = begun
    watching = watch(directory, on_terminal=True)
    watching.wait_for(r"study about 40 s, 1 trial at a time")
    assert re.search("┃.*stage.*┃.*variant.*preempted.*┃", watching.text)
    assert "trial_1 running on" in watching.text
    _finish(trials)
    assert watching.end() == 0
    assert re.search(r"\n\S*complete", watching.text)


@pytest.mark.parametrize("on_terminal", [False, True])
def test_ctrl_c_leaves_quietly(begun, watch, on_terminal):
    watching = watch(begun[0], on_terminal)
    watching.wait_for("running")
    watching.process.send_signal(signal.SIGINT)
    assert watching.end() == 0
    assert "Traceback" not in watching.text
    assert "Interrupt" not in watching.text


def test_a_trial_that_failed_may_be_tried_again(begun):
    """It is failed for a moment: the study is over where it still looks so at the next look."""
    directory, trials = begun
    _finish(trials[1:])
    attempt = trials[0] / "attempts/1/outcome.json"
    attempt.write_text("{}")
    status.write(trials[0], "failed", reason="RuntimeError: boom")
    looks = watching_module.looks(study_reader.StudyReader(directory), 0.0)
    assert next(looks).complete
    lease.claim(trials[0])
    assert next(looks).running
    (trials[0] / "attempts/2/outcome.json").write_text("{}")
    assert next(looks).complete
    assert next(looks).complete
    with pytest.raises(StopIteration):
        next(looks)


def test_no_study_is_said(tmp_path, watch):
    watching = watch(tmp_path)
    assert watching.end() == 1
    assert "is no study: it has no study.json" in watching.text
