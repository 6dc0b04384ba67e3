"""`python -m sweeps hardware`: what it finds on this machine, and what it says of what is wrong."""

import contextlib
import json
import math
import signal
import time
import types

import pytest

from attention.verification import check
from sweeps import __main__ as command
from sweeps.monitoring import hardware_check, jax_calls


@pytest.mark.nightly
def test_all_of_it_on_this_machine(tmp_path, capfd):
    """Kernels within their limits, steps of three domains, two processes."""
    out = tmp_path / "hardware.json"
    assert command.main(["hardware", f"--out={out}"]) == 0
    lines = json.loads(out.read_text())["lines"]
    printed = capfd.readouterr().out
    assert all(line["said"] in printed for line in lines)
    verdicts = {
        part: {line["what"]: line["verdict"] for line in lines if line["part"] == part}
        for part in hardware_check.PARTS
    }
    absent = {what for what, verdict in verdicts["kernels"].items() if verdict == "not here"}
    assert absent == {"cudnn", "splash", "fused"}
    assert len(verdicts["steps"]) == 6
    assert all(line["figures"]["step_ms"] > 0 for line in lines if line["part"] == "steps")
    assert list(verdicts["processes"].values()) == ["ok"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--parts=recovery"], "unknown part 'recovery'. Known: kernels, steps"),
        (["--out=no/such/file.json"], "no/such is no directory"),
        (["--out=/"], "--out=/: that is a directory"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    assert command.main(["hardware", *arguments]) == 2
    assert message in capsys.readouterr().err


def _fails():
    raise ValueError("no room")


def test_a_part_that_fails_is_a_result():
    (result,) = hardware_check._attempt("a kernel", jax_calls.call, _fails)
    assert result == hardware_check.Result("a kernel", "FAILED", "no room")


def _waits():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def test_a_process_that_does_not_answer_is_ended():
    """Two that never find each other would else hold the devices and the command for ever."""
    with (
        pytest.raises(TimeoutError, match="'_waits' gave no answer in 2 s"),
        jax_calls.SubprocessCall(_waits) as call,
    ):
        call.result(2)
    call.process.join(30)
    assert call.process.exitcode == -signal.SIGKILL


def test_every_study_is_timed_by_variant(monkeypatch):
    def timed(function, what, trial):
        step_ms = {"standard": 4.0, "laser": 6.0}[trial.variant]
        figures = {"step_ms": step_ms, "memory_gb": 1.0}
        return [hardware_check.Result(what, "measured", "", figures)]

    monkeypatch.setattr(jax_calls, "call", timed)
    results = list(hardware_check._steps({"platform": "cpu", "kind": "cpu", "count": 1}))
    assert [result.figures["over_standard"] for result in results] == [1.0, 1.5] * 3


@pytest.mark.parametrize(
    ("gradients", "verdict"), [((0.0, 1e-6, 0.0), "ok"), ((0.0, 0.0, math.nan), "WRONG")]
)
def test_a_kernel_of_nan_is_wrong(gradients, verdict, monkeypatch):
    def measure(case):
        errors = gradients if case.qs == 4 else (0.0, 0.0, 0.0)
        named = dict(zip(("query", "key", "value"), errors, strict=True))
        return check.Measurement(case, 0.0, named, {}, (2e-6, 3e-6))

    monkeypatch.setattr(check, "measure", measure)
    assert {result.verdict for result in hardware_check._errors("xla")} == {verdict}


@pytest.mark.parametrize("losses", [[1.0, 2.0, math.nan], [math.nan, 2.0, 3.0], [1.0, 2.0, 3.1]])
def test_processes_of_other_losses_are_wrong(losses, monkeypatch):
    def start(function, index, **settings):
        process = types.SimpleNamespace(exitcode=0)
        answer = losses if index else [1.0, 2.0, 3.0]
        call = types.SimpleNamespace(process=process, result=lambda limit_s: answer)
        return contextlib.nullcontext(call)

    monkeypatch.setattr(jax_calls, "SubprocessCall", start)
    monkeypatch.setattr(jax_calls, "call", lambda *arguments, **settings: [1.0, 2.0, 3.0])
    (result,) = hardware_check._processes({"platform": "cpu", "kind": "cpu", "count": 1})
    assert result.verdict == "WRONG"
