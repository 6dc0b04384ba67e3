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

from attention import table
from attention.verification import check, laws
from sweeps import __main__ as command
from sweeps.monitoring import hardware_check, jax_calls
from workloads import bench


@pytest.mark.nightly
def test_all_of_it_on_this_machine(tmp_path, capfd):
    """Kernels within their limits, two processes; full-size steps are for accelerators."""
    out = tmp_path / "hardware.json"
    assert command.main(["hardware", f"--out={out}"]) == 0
    lines = json.loads(out.read_text())["lines"]
    printed = capfd.readouterr().out
    assert all(line["said"] in printed for line in lines)
    verdicts = collections.defaultdict(list)
    for line in lines:
        verdicts[line["part"], line["verdict"]].append(line["what"])
    assert verdicts["kernels", "ok"] == ["xla", "jax_xla"]
    assert verdicts["kernels", "not here"] == ["cudnn", "splash", "fused"]
    assert len(verdicts["steps", "not here"]) == 3
    assert len(verdicts["processes", "ok"]) == 1
    assert len(lines) == 9


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
    ("error", "verdict", "said"),
    [
        (1e-6, "ok", "limits"),
        (math.nan, "WRONG", "exceed"),
        (ValueError("no room"), "FAILED", "no room"),
    ],
)
def test_kernels_are_checked_by_attention_check(error, verdict, said, in_process, monkeypatch):
    """Float32 by those alone that multiply in the float32 that the limits are for."""
    measured = set()

    def measure(case, shape):
        if isinstance(error, ValueError):
            raise error
        measured.add((case.kernel, case.dtype, jax.config.jax_default_matmul_precision))
        gradients = dict.fromkeys(("query", "key", "value"), error)
        return check.Measurement(case, 0.0, gradients, {}, (2e-6, 3e-6))

    monkeypatch.setattr(check, "measure", measure)
    monkeypatch.setattr(laws, "problem", lambda variant: "")
    results = list(hardware_check._kernels({"platform": "gpu"}))
    assert {result.what: result.verdict for result in results} == {
        **dict.fromkeys(("xla", "jax_xla", "cudnn", "fused"), verdict),
        "splash": "not here",
    }
    assert all(said in result.said for result in results if result.what != "splash")
    if verdict != "FAILED":
        assert measured == {
            *itertools.product(("xla", "jax_xla"), ("float32", "bfloat16"), ("float32",)),
            ("cudnn", "bfloat16", None),
            ("fused", "bfloat16", None),
        }


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_steps_are_timed_by_workloads_bench(platform, in_process, monkeypatch):
    calls = []

    def lines(workload, data_dir, variants, batch_size, kernel, compute_dtype):
        calls.append((workload, kernel, batch_size))
        table.check_kernel(
            kernel, platform=platform, dtype=compute_dtype, head_size=64, value_size=64
        )
        yield from (f"{variant} 7 ms" for variant in variants)
        if kernel == "fused":
            raise ValueError("no room")

    monkeypatch.setattr(bench, "lines", lines)
    results = list(hardware_check._steps({"platform": platform, "count": 2}))
    assert {(workload, batch_size) for workload, _, batch_size in calls} == {
        ("imagenet_vit", 256),
        ("librispeech_conformer", 64),
        ("c4_lm", 32),
    }
    for (workload, kernel, _), result in zip(calls, results, strict=True):
        assert result.what == f"{workload} by {kernel}"
        is_bad = kernel == "fused"
        assert result.verdict == ("FAILED" if is_bad else "measured")
        assert ("no room" if is_bad else "laser 7 ms") in result.said


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
