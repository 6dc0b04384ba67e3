"""`sweeps compile` by the real TPU compiler, which needs libtpu (extra compile-tpu) and no TPU.

One process per compilation, about 15 CPU-s each for the smallest study.
"""

import dataclasses
import functools
import importlib.metadata
import importlib.util
import json

import jax
import jax.numpy as jnp
import pytest

from attention import registry
from attention.kernels import fused
from sweeps import __main__ as sweeps
from sweeps.monitoring import compile as compiler
from sweeps.monitoring import compiled_step
from sweeps.study import config, study

libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu is not installed: pip install -e '.[compile-tpu]'",
)
_ARGUMENTS = ["compile", "--config=digits_vit_quick", "--topology=v5e:2x2"]
# v5e, laser.
STEP_MS = 0.2591


@libtpu
@pytest.mark.slow
def test_a_small_study(capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        sweeps.main([*_ARGUMENTS, "--config.variants=laser", "--config.baseline=laser", "--json"])
        == 0
    )
    printed = json.loads(capfd.readouterr().out)
    assert (printed["study"], printed["topology"]) == ("digits_vit_quick", "v5e:2x2")
    [row] = printed["rows"]
    assert row.keys() >= set(compiled_step.FIGURES)
    assert row["fits"]
    assert (row["kernel_ms"], row["custom_calls"]) == (0, {})
    assert row["step_ms"] == row["xla_ms"] == pytest.approx(sum(row["parts_ms"].values()))
    # Parameters, two moments of the same size, and what the compiler adds.
    parts = row["memory_parts_gb"]
    assert parts["moments"] == pytest.approx(2 * parts["parameters"], rel=1e-3)
    assert row["memory_gb"] == pytest.approx(sum(parts.values()))
    if importlib.metadata.version("libtpu") == "0.0.42.1":
        # Two compilations agree to the last digit; another version is another compiler.
        assert row["step_ms"] == pytest.approx(STEP_MS, rel=1e-3)


@libtpu
@pytest.mark.slow
def test_work_in_a_kernel_is_counted(capfd: pytest.CaptureFixture[str]) -> None:
    """Its instructions times its grid, or its bytes: never free."""
    arguments = ["compile", "--config=pydoc_lm_quick", "--config.kernel=splash", "--json"]
    arguments += ["--topology=v5e:2x2", "--config.variants=laser", "--config.baseline=laser"]
    assert sweeps.main([*arguments, "--config.compute_dtype=bfloat16"]) == 0
    [row] = json.loads(capfd.readouterr().out)["rows"]
    assert set(row["kernels_ms"]) == {"splash_mha_fwd_residuals", "splash_mha_dkv_no_residuals"}
    assert 0 < row["kernel_ms"] == pytest.approx(sum(row["kernels_ms"].values()))
    assert row["step_ms"] == row["xla_ms"] + row["kernel_ms"]
    assert row["custom_calls"] == {"tpu_custom_call": 4}
    assert 0 < row["kernel_hbm_gb"] < row["hbm_gb"]
    assert row["warnings"] == []


def test_rows_of_several_kernels_are_told_apart() -> None:
    """Each has its own baseline beside it."""
    resolved = study.resolve(config.parse("digits_vit_quick", []), planning=True)
    counts = dict.fromkeys(("peak_gb", "hbm_gb", "kernel_hbm_gb", "collectives_gb", "flops"), 1.0)
    lists = {"memory_parts_gb": {}, "parts_ms": {}, "kernels_ms": {}, "custom_calls": {}}
    rest = {"model_flops": None, **counts, **lists, "warnings": [], "versions": {}, "fits": True}
    times = {("standard", "xla"): 4.0, ("laser", "xla"): 6.0}
    times |= {("standard", "splash"): 2.0, ("laser", "splash"): 2.2}
    compiled = [
        {"variant": variant, "kernel": kernel, "memory_gb": 1.0, "step_ms": ms, **rest}
        for (variant, kernel), ms in times.items()
    ]
    text = compiler.render(resolved, "v5e:2x2", compiled)
    for name in ("standard by xla", "laser by xla", "standard by splash", "laser by splash"):
        assert f"{name}: 1 GB" in text
    assert "step 6 ms, 1.500 times standard" in text
    assert "step 2.2 ms, 1.100 times standard" in text


def test_what_tiles_read_again_by_hand() -> None:
    """Two programs of a causal problem read all keys and values, 196 of 256 rows being there."""
    attend = registry.get("laser", kernel="fused")
    shape = jax.ShapeDtypeStruct((2, 196, 2, 80), jnp.bfloat16)
    problem = functools.partial(fused.KERNEL.transformed, interpret="gpu")
    kernel = dataclasses.replace(fused.KERNEL, transformed=problem)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fused, "KERNEL", kernel)
        traced = jax.jit(functools.partial(attend, is_causal=True)).trace(shape, shape, shape)
    (call,) = compiled_step._pallas_calls(traced.jaxpr)
    whole = 2 * 196 * 2 * 80 * 2
    shifts = 2 * 2 * 2 * 80 * 4
    rows = 2 * 128 * 2 * 2 * 80 * 2 - whole  # the last tile of queries passes the end
    assert compiled_step._read_again(call) == (2 * whole + shifts + rows) / 2


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="libtpu is installed")
def test_without_the_compiler_the_extra_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert sweeps.main(_ARGUMENTS) == 2
    assert "pip install 'attnperf[compile-tpu]'" in capfd.readouterr().err
