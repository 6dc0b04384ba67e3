"""`python -m sweeps hardware`: what it finds on this machine, and what it says of what is wrong."""

import contextlib
import json
import math
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import types

import pytest

from analysis import cli
from analysis.views import catalog
from attention.verification import check
from sweeps import __main__ as command
from sweeps.benchmarks import first_minutes
from sweeps.monitoring import calibration, jax_calls


@pytest.mark.slow
def test_all_of_it_on_this_machine(tmp_path, data_dir, capfd):
    """Kernels within their limits, steps of three domains, a kill that costs nothing."""
    out = tmp_path / "hardware.json"
    assert command.main(["hardware", f"--out={out}", f"--data_dir={data_dir}"]) == 0
    said = capfd.readouterr().out
    record = json.loads(out.read_text())
    parts = {line["part"] for line in record["lines"]}
    assert parts == set(first_minutes.PARTS)
    assert all(first_minutes.told(line) in said for line in record["lines"])
    of_part = {part: [x for x in record["lines"] if x["part"] == part] for part in parts}
    assert {x["verdict"] for x in of_part["kernels"]} == {"ok", "not here"}
    assert {x["what"] for x in of_part["kernels"] if x["verdict"] != "ok"} == {
        "cudnn", "splash", "fused",
    }  # fmt: skip
    assert len(of_part["steps"]) == 6
    assert all(x["figures"]["step_ms"] > 0 for x in of_part["steps"])
    (recovery,) = of_part["recovery"]
    assert recovery["said"] == "the same curve to the bit, in 2 attempts"
    (processes,) = of_part["processes"]
    assert processes["verdict"] == "ok"
    assert cli.main(["hardware", str(out)]) == 0
    printed = capfd.readouterr().out
    assert "pydoc_lm_quick, 32 examples, laser by xla" in printed
    assert "the same curve to the bit" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--parts=kernel"], "unknown part 'kernel' of the check. Known: kernels, steps"),
        (["--out=no/such/file.json"], "no/such is no directory"),
        (["--out=/"], "--out=/: that is a directory"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    assert command.main(["hardware", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_analysis_reads_what_is_written():
    """It loads no module of the check, so that the words stand in both."""
    page = catalog.get("hardware")
    assert (page.FORMAT, page.BAD) == (first_minutes.FORMAT, first_minutes.BAD)


def _fails():
    raise ValueError("no room")


def test_a_part_that_fails_is_a_line():
    (line,) = first_minutes._asked("a kernel", _fails)
    assert (line["what"], line["verdict"], line["said"]) == ("a kernel", "FAILED", "no room")


def _waits():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def test_a_process_that_does_not_answer_is_ended():
    """Two that never find each other would else hold the devices and the command for ever."""
    with (
        pytest.raises(TimeoutError, match="'_waits' gave no answer in 5 s"),
        jax_calls.Call(_waits) as call,
    ):
        call.result(5)
    call.process.join(30)
    assert call.process.exitcode == -signal.SIGKILL


@pytest.mark.slow
def test_a_process_that_dies_does_not_end_the_command_without_a_word(tmp_path, environment):
    """Its pool would write to it: SIGPIPE is ignored wherever processes are started."""
    command_line = [sys.executable, "-m", "sweeps", "hardware", f"--out={tmp_path}/hardware.json"]
    with subprocess.Popen(command_line, env=environment(), stdout=subprocess.DEVNULL) as program:
        try:
            started = pathlib.Path(f"/proc/{program.pid}/task/{program.pid}/children")
            while not started.read_text():
                assert program.poll() is None
                time.sleep(0.1)
            status = pathlib.Path(f"/proc/{program.pid}/status").read_text()
        finally:
            program.kill()
    (ignored,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
    assert int(ignored, 16) >> (signal.SIGPIPE - 1) & 1


@pytest.mark.slow
@pytest.mark.parametrize(("part", "number"), [("kernels", "SIGTERM"), ("recovery", "SIGINT")])
def test_a_check_that_is_stopped_leaves_no_process_and_no_semaphore(
    tmp_path, environment, data_dir, part, number
):
    with subprocess.Popen(
        [sys.executable, "-m", "sweeps", "hardware", f"--parts={part}", f"--data_dir={data_dir}"],
        env=environment(),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        program.stdout.readline()  # the devices: a process of theirs came to its end
        children = pathlib.Path(f"/proc/{program.pid}/task/{program.pid}/children")
        started = set()
        while len(started) < 2:  # the tracker of semaphores, and the part's own
            assert program.poll() is None
            started |= {int(child) for child in children.read_text().split()}
            time.sleep(0.1)
        program.send_signal(getattr(signal, number))
        _, said = program.communicate(timeout=60)
    assert program.returncode == 130
    assert "leaked" not in said
    assert "Traceback" not in said
    assert not [child for child in started if pathlib.Path(f"/proc/{child}/cwd").exists()]


def test_a_command_that_is_left_early_is_ended_with_its_workers(monkeypatch, tmp_path):
    program = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid); p.wait()"
    )
    monkeypatch.setattr(first_minutes.sys, "executable", _program(tmp_path, program))
    monkeypatch.setattr(first_minutes, "_GRACE_S", 5.0)
    with first_minutes._started(["run"]) as process:
        worker = int(process.stdout.readline())
    assert process.returncode
    until = time.monotonic() + 5
    while pathlib.Path(f"/proc/{worker}/cwd").exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not pathlib.Path(f"/proc/{worker}/cwd").exists()


def _program(folder, text):
    path = folder / "program"
    path.write_text(f"#!{sys.executable} -u\n{text}\n")
    path.chmod(0o700)
    return str(path)


@pytest.mark.parametrize(("step_ms", "verdict"), [(11.0, "ok"), (12.0, "DIFFERS")])
def test_a_step_beside_its_prediction(step_ms, verdict):
    line = first_minutes._line("x", "measured", "said", step_ms=step_ms, memory_gb=2.0)
    first_minutes._compare(line, calibration.Prediction({"all": 2.1}, 10.0), 10.0)
    assert line["verdict"] == verdict
    assert line["figures"]["over_standard"] == pytest.approx(step_ms / 10)
    assert line["said"].endswith("plan: 2.10 GB, 10.0 ms")


@pytest.mark.parametrize(("step_ms", "verdict"), [(50.0, "ok"), (3.6, "ok"), (3.3, "DIFFERS")])
def test_a_step_on_a_gpu_takes_its_least_time_or_more(step_ms, verdict):
    line = first_minutes._line("x", "measured", "said", step_ms=step_ms, memory_gb=2.0)
    first_minutes._compare(line, calibration.Prediction({"all": 2.1}, None, 4.0), step_ms)
    assert line["verdict"] == verdict
    assert line["said"].endswith("plan: 2.10 GB, at least 4.0 ms")


def test_a_step_that_nothing_was_predicted_of():
    line = first_minutes._line("x", "measured", "said", step_ms=5.0, memory_gb=2.0)
    first_minutes._compare(line, None, 4.0)
    assert (line["verdict"], line["said"]) == ("measured", "said, 1.250 times standard")


def test_another_curve_is_named(tmp_path):
    header = "global_step,train/loss,accumulated_submission_time\n"
    for name, row in (("a", "2,0.5,1.0\n"), ("b", "2,0.5,7.0\n"), ("c", "2,0.25,1.0\n")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "eval_measurements.csv").write_text(header + row)
    a, b, c = (tmp_path / name for name in "abc")
    assert first_minutes._difference(a, b) == ""
    assert first_minutes._difference(c, a) == "step 2: train/loss 0.25, not 0.5"
    shutil.copy(a / "eval_measurements.csv", b)
    with (b / "eval_measurements.csv").open("a") as file:
        file.write("4,0.5,2.0\n")
    assert first_minutes._difference(b, a) == "2 evaluations, not 1"


@pytest.mark.parametrize(
    ("gradients", "verdict"), [((0.0, 1e-6, 0.0), "ok"), ((0.0, 0.0, math.nan), "WRONG")]
)
def test_a_kernel_of_nan_is_wrong(gradients, verdict, monkeypatch):
    def measure(case):
        given = gradients if case.qs == 4 else (0.0, 0.0, 0.0)
        return check.Measurement(case, 0.0, given, None, (2e-6, 3e-6))

    monkeypatch.setattr(check, "measure", measure)
    assert {line["verdict"] for line in first_minutes._errors("xla")} == {verdict}


@pytest.mark.parametrize("losses", [[1.0, 2.0, math.nan], [math.nan, 2.0, 3.0], [1.0, 2.0, 3.1]])
def test_processes_of_other_losses_are_wrong(losses, monkeypatch):
    class Answer(contextlib.nullcontext):
        process = types.SimpleNamespace(exitcode=0)

        def __init__(self, function, index, **settings):
            super().__init__(self)
            self.losses = losses if index else [1.0, 2.0, 3.0]

        def result(self, limit_s):
            return self.losses

    monkeypatch.setattr(jax_calls, "Call", Answer)
    monkeypatch.setattr(jax_calls, "call", lambda *given, **settings: [1.0, 2.0, 3.0])
    (line,) = first_minutes._processes({"platform": "cpu", "kind": "cpu", "count": 1}, "")
    assert line["verdict"] == "WRONG"
