"""`python -m sweeps hardware`: what it finds on this machine, and what it says of what is wrong."""

import collections
import contextlib
import itertools
import json
import math
import signal
import time
import types

import jax
import pytest

from attention import backends
from attention.verification import check, laws
from sweeps import __main__ as command
from sweeps.compilers import hardware_check
from sweeps.study import jax_calls
from workloads import bench


@pytest.mark.nightly
def test_all_of_it_on_this_machine(tmp_path, capfd):
    """Kernels within their limits, two processes; full-size steps are for accelerators."""
    out = tmp_path / "hardware.json"
    assert command.main(["hardware", f"--out={out}"]) == 0
    lines = json.loads(out.read_text())["lines"]
    printed = capfd.readouterr().out
    assert all(line["summary"] in printed for line in lines)
    assert collections.Counter((line["part"], line["verdict"]) for line in lines) == {
        ("kernels", "ok"): 2,
        ("kernels", "not here"): 3,
        ("steps", "not here"): 3,
        ("processes", "ok"): 1,
    }


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


@pytest.fixture
def in_process(monkeypatch):
    monkeypatch.setattr(jax_calls, "call", lambda function, **arguments: function(**arguments))


@pytest.mark.parametrize(
    ("error", "verdict", "text"), [(1e-6, "ok", "limits"), (math.nan, "WRONG", "exceed")]
)
def test_kernels_are_checked_by_attention_check(error, verdict, text, in_process, monkeypatch):
    """Float32 by those alone that multiply in the float32 that the limits are for."""
    measured = set()

    def measure(case, shape):
        measured.add((case.kernel, case.dtype, jax.config.jax_default_matmul_precision))
        gradients = dict.fromkeys(("query", "key", "value"), error)
        return check.Measurement(case, 0.0, gradients, {}, (2e-6, 3e-6))

    monkeypatch.setattr(check, "measure", measure)
    monkeypatch.setattr(laws, "problem", lambda variant: "")
    results = list(hardware_check._kernels({"platform": "gpu"}))
    verdicts = {result.what: result.verdict for result in results if text in result.summary}
    assert verdicts == dict.fromkeys(("xla", "jax_xla", "cudnn", "fused"), verdict)
    assert [result.what for result in results if result.verdict == "not here"] == ["splash"]
    assert measured == {
        *itertools.product(("xla", "jax_xla"), ("float32", "bfloat16"), ("float32",)),
        ("cudnn", "bfloat16", None),
        ("fused", "bfloat16", None),
    }


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_steps_are_timed_by_workloads_bench(platform, in_process, monkeypatch):
    """By kernels that can compute them; what a command refuses is a result."""

    def lines(workload, data_dir, variants, batch_size, kernel, compute_dtype):
        yield f"{workload} by {kernel}, batch {batch_size}"
        sizes = {"head_size": 64, "value_size": 64}
        backends.check_kernel(kernel, platform=platform, dtype=compute_dtype, **sizes)
        if kernel == "fused":
            raise ValueError("no room")

    monkeypatch.setattr(bench, "lines", lines)
    results = list(hardware_check._steps({"platform": platform, "device_count": 2}))
    text = {result.summary for result in results if result.verdict == "measured"}
    assert text >= {
        "imagenet_vit by xla, batch 256",
        "librispeech_conformer by xla, batch 64",
        "c4_lm by xla, batch 32",
    }
    bad = {(result.what, result.summary) for result in results if result.verdict == "FAILED"}
    refused = "python -m workloads: no room"
    assert bad == {(f"{name} by fused", refused) for name, *_ in hardware_check._STEPS}


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


@pytest.mark.parametrize(
    ("losses", "code", "verdict"),
    [
        ([1.0, 2.0, math.nan], 0, "WRONG"),
        ([math.nan, 2.0, 3.0], 0, "WRONG"),
        ([1.0, 2.0, 3.1], 0, "WRONG"),
        ([1.0, 2.0, 3.0], 0, "ok"),
        ([1.0, 2.0, 3.0], 1, "FAILED"),
    ],
)
def test_two_processes_agree_with_one(losses, code, verdict, monkeypatch):
    def start(function, index, **settings):
        process = types.SimpleNamespace(exitcode=code)
        answer = losses if index else [1.0, 2.0, 3.0]
        call = types.SimpleNamespace(process=process, result=lambda limit_s: answer)
        return contextlib.nullcontext(call)

    monkeypatch.setattr(jax_calls, "SubprocessCall", start)
    monkeypatch.setattr(jax_calls, "call", lambda *arguments, **settings: [1.0, 2.0, 3.0])
    (result,) = hardware_check._processes({"platform": "cpu"})
    assert result.verdict == verdict
