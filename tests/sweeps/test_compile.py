"""Steps compiled for accelerators: by the real TPU compiler, and what is read from its text."""

import dataclasses
import functools
import importlib.metadata
import importlib.util
import json
import pathlib
import types
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from attention import registry
from attention.common import accelerators
from attention.compilers import kernel_cycles
from attention.kernels import fused
from sweeps import __main__ as sweeps
from sweeps.compilers import compile as compiler
from sweeps.compilers import compiled_step, hlo
from sweeps.study import config, study
from tests.sweeps import defaults

libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu is not installed: pip install -e '.[compile-tpu]'",
)
_ARGUMENTS = ["compile", "--config=digits_vit_quick", "--topology=v5e:2x2"]
_ARGUMENTS += [f"--config.{key}={value}" for key, value in defaults.SMALL.items()]
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


@libtpu
@pytest.mark.slow
def test_what_does_not_fit_is_exit_1(capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["compile", "--config=c4_lm_paper", "--topology=v5e:2x4"]
    assert sweeps.main([*arguments, "--config.variants=standard"]) == 1
    printed = capfd.readouterr().out
    assert "OUT OF MEMORY, 25.51G of 15.75G" in printed
    assert "--config.compute_dtype=bfloat16" in printed


@libtpu
@pytest.mark.slow
def test_two_slices(capfd: pytest.CaptureFixture[str]) -> None:
    """Compiled, 'data' across them; a group of fsdp in both is refused."""
    arguments = ["compile", "--config=pydoc_lm_quick", "--topology=v5e:2x2*2"]
    arguments.append("--config.variants=standard")
    assert sweeps.main([*arguments, "--json"]) == 0
    (row,) = json.loads(capfd.readouterr().out)["rows"]
    assert row["memory_gb"] > 0
    assert sweeps.main([*arguments, "--config.mesh.fsdp=8"]) == 2
    assert "more than one of the 2 slices" in capfd.readouterr().err


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
    problem = functools.partial(fused.KERNEL.call, interpret="gpu")
    kernel = dataclasses.replace(fused.KERNEL, call=problem)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fused, "KERNEL", kernel)
        traced = jax.jit(functools.partial(attend, is_causal=True)).trace(shape, shape, shape)
    (call,) = kernel_cycles.pallas_calls(traced.jaxpr)
    whole = 2 * 196 * 2 * 80 * 2
    shifts = 2 * 2 * 2 * 80 * 4
    rows = 2 * 128 * 2 * 2 * 80 * 2 - whole  # the last tile of queries passes the end
    assert compiled_step._read_again(call) == (2 * whole + shifts + rows) / 2


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="libtpu is installed")
def test_without_the_compiler_the_extra_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert sweeps.main(_ARGUMENTS) == 2
    assert "pip install 'attnperf[compile-tpu]'" in capfd.readouterr().err


# Two trips through a loop (bound 4, step 2) around a fusion that updates 8 of 32 floats in place;
# a kernel; one collective that stands twice, as asynchronous ones do.
_TEXT = """HloModule jit_step, is_scheduled=true

%fused_update (p.0: f32[32], p.1: f32[8], p.2: s32[]) -> f32[32] {
  %p.0 = f32[32]{0} parameter(0)
  %p.1 = f32[8]{0} parameter(1)
  %p.2 = s32[] parameter(2)
  ROOT %dus = f32[32]{0} dynamic-update-slice(%p.0, %p.1, %p.2)
}

%fused_gather (q.0: bf16[100,4]) -> bf16[100,8] {
  %q.0 = bf16[100,4]{1,0} parameter(0)
  ROOT %ag = bf16[100,8]{1,0} all-gather(%q.0), channel_id=7, dimensions={1}
}

%fused_slice (r.0: f32[32], r.1: s32[]) -> f32[4] {
  %r.0 = f32[32]{0} parameter(0)
  %r.1 = s32[] parameter(1)
  ROOT %ds = f32[4]{0} dynamic-slice(%r.0, %r.1), dynamic_slice_sizes={4}
}

%fused_outer (t.1: s32[], t.0: f32[32]) -> f32[4] {
  %t.1 = s32[] parameter(0)
  %t.0 = f32[32]{0} parameter(1)
  %inner = f32[4]{0} fusion(%t.0, %t.1), kind=kLoop, calls=%fused_slice
  ROOT %twice = f32[4]{0} add(%inner, %inner)
}

%body (arg: (s32[], f32[32], f32[8])) -> (s32[], f32[32], f32[8]) {
  %arg = (s32[], f32[32]{0}, f32[8]{0:S(1)}) parameter(0)
  %i = s32[] get-tuple-element(%arg), index=0
  %x = f32[32]{0} get-tuple-element(%arg), index=1
  %u = f32[8]{0:S(1)} get-tuple-element(%arg), index=2
  %two = s32[] constant(2)
  %next = s32[] add(%i, %two)
  %new = f32[32]{0} fusion(%x, %u, %i), kind=kLoop, calls=%fused_update, METADATA
  ROOT %out = (s32[], f32[32]{0}, f32[8]{0:S(1)}) tuple(%next, %new, %u)
}

%condition (arg.1: (s32[], f32[32], f32[8])) -> pred[] {
  %arg.1 = (s32[], f32[32]{0}, f32[8]{0:S(1)}) parameter(0)
  %i.1 = s32[] get-tuple-element(%arg.1), index=0
  %four = s32[] constant(4)
  ROOT %lt = pred[] compare(%i.1, %four), direction=LT
}

ENTRY %main (a: f32[32], b: bf16[100,4], c: f32[8]) -> f32[32] {
  %a = f32[32]{0} parameter(0)
  %b = bf16[100,4]{1,0} parameter(1)
  %c = f32[8]{0:S(1)} parameter(2)
  %zero = s32[] constant(0)
  %start = (s32[], f32[32]{0}, f32[8]{0:S(1)}) tuple(%zero, %a, %c)
  %loop = (s32[], f32[32]{0}, f32[8]{0:S(1)}) while(%start), condition=%condition, body=%body
  %g.1 = bf16[100,8]{1,0} fusion(%b), kind=kLoop, calls=%fused_gather
  %g.2 = bf16[100,8]{1,0} fusion(%b), kind=kLoop, calls=%fused_gather
  %nested = f32[4]{0} fusion(%zero, %a), kind=kLoop, calls=%fused_outer
  %kernel.1 = f32[32]{0} custom-call(%a), custom_call_target="tpu_custom_call", kernel_metadata={
"x":"{}"
}, metadata={op_name="jit(step)/pallas_call"}
  ROOT %r = f32[32]{0} get-tuple-element(%loop), index=1
}
""".replace(
    "METADATA",
    'metadata={op_name="jit(step)/jvp(Model)/attention/add"}, '
    'backend_config={"window_config":{"estimated_cycles":"100"}}',
)


def _counted() -> dict[str, hlo.Counted]:
    return {line.instruction.name: line for line in hlo.Module(_TEXT).counted}


def test_a_loop_counts_as_often_as_it_runs() -> None:
    counted = _counted()
    update = counted["new"]
    assert update.times == 2
    assert update.instruction.cycles == 100
    assert update.instruction.op_name.endswith("attention/add")
    assert counted["kernel.1"].instruction.call == "tpu_custom_call"


@pytest.mark.parametrize(
    ("name", "moved"),
    [
        # 8 floats written in place, and the index read; the floats come from on-chip memory, and
        # the other 24 are not touched.
        ("new", 8 * 4 + 4),
        # 4 floats read and 4 written, and the index: not the 32 that the outer fusion is given.
        ("nested", 4 * 4 + 4 * 4 + 4),
        ("kernel.1", 2 * 32 * 4),  # its attributes span lines
    ],
)
def test_bytes_by_hand(name: str, moved: int) -> None:
    assert _counted()[name].bytes == moved


def test_a_collective_counts_once_however_often_it_stands() -> None:
    counted = _counted()
    assert counted["g.1"].collective_bytes + counted["g.2"].collective_bytes == 100 * 8 * 2


@pytest.mark.parametrize(
    ("text", "unreadable", "times"),
    [
        ("direction=LT", "direction=NE", [1]),
        ("while(%start), condition=%condition, body", "conditional(%zero, %start), branch", []),
    ],
)
def test_what_cannot_be_read_is_named(text: str, unreadable: str, times: list[int]) -> None:
    """A loop counts once, a branch not at all."""
    module = hlo.Module(_TEXT.replace(text, unreadable))
    assert [line.times for line in module.counted if line.instruction.name == "new"] == times
    assert module.unread == ["loop"]


def test_a_text_that_is_no_program() -> None:
    with pytest.raises(ValueError, match="no ENTRY"):
        hlo.Module("nothing")


@pytest.mark.parametrize(
    ("text", "devices", "slices"), [("v5e:8x8", 64, 1), ("v5e:4x4*2", 32, 2), ("h100:1x1x8", 8, 1)]
)
def test_topologies(text: str, devices: int, slices: int) -> None:
    where = accelerators.topology(text)
    assert (where.devices, where.slices) == (devices, slices)


@pytest.mark.parametrize(
    "text",
    [
        *("v5e", "v5e:8", "v5e:0x8", "v3:2x2", "v5p:2x2", "h100:8", "v5e:ax8"),
        *("v7:2x2", "h100:1x1x8*2", "v5e:2x2*0", "a100:1x1x8"),
    ],
)
def test_topologies_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="topology"):
        accelerators.topology(text)


@pytest.mark.parametrize("kind", ["v4", "v5e", "v5p", "v6e"])
def test_the_clock_gives_the_published_peak(kind: str) -> None:
    """2·size²·units FLOP a cycle."""
    units = {"v4": 8 * 128**2, "v5e": 4 * 128**2, "v5p": 8 * 128**2, "v6e": 4 * 256**2}[kind]
    device = accelerators.KINDS[kind]
    assert 2 * units * device.clock_ghz / 1e3 == pytest.approx(device.peak_tflops, rel=0.01)


# As libtpu 0.0.42.1 dumps them: a jump over a region, and bundles that are run either way.
_BUNDLES = """
 0x10   : > { %1 = sbr.rel (%p1_p2) target = $region40 } /* Start region 2 */
 0x14   : > { nop } /* Start region 3 */
 0x18   : > { %2 = sbr.rel (%p2_p0) target = $region12 }
 0x1d   : > { %3 = vst [vmem:[#allocation4]] } /* Start region 11 */
 0x31   : > { %4 = vst [vmem:[#allocation4]] } /* End region 11 */
 0x32 PF: > { %5 = scmp.ne } /* Start/End empty region 12 :: Start region 13 */
 0x33   : > { %6 = sbr.rel (%p3_p0) target = $region16 }
 0x38   : > { %7 = vld } /* Start region 15 */
 0x9c   : > { %8 = vld } /* Start/End empty region 16 */
 0xa0   : > { nop } /* Start/End empty region 40 */
 0xa4   : > { %9 = sbr.rel (!%p9_p0) target = $region2 }
"""


def _traced(kernel: Any, grid: tuple[int, ...], prefetched: int = 0) -> dict[str, Any]:
    shape = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=prefetched,
        grid=grid,
        in_specs=[pl.BlockSpec()],
        out_specs=pl.BlockSpec(),
    )
    read = [jnp.zeros(2, jnp.int32)] * prefetched
    program = jax.make_jaxpr(
        lambda x: pl.pallas_call(kernel, out_shape=shape, grid_spec=spec)(*read, x)
    )(shape)
    (call,) = kernel_cycles.pallas_calls(program)
    return call


def _causal(x: Any, out: Any) -> None:
    _causal_from(pl.program_id(0), x, out)


def _causal_from(i: Any, x: Any, out: Any) -> None:
    j = pl.program_id(1)

    @pl.when(j == 0)
    def _() -> None:
        out[...] = jnp.zeros_like(out)

    @pl.when((i > j) & (i // 2 >= 0))
    def _() -> None:
        out[...] += jnp.dot(x[...], x[...])

    @pl.when(i == j)
    def _() -> None:
        out[...] += jnp.dot(x[:8, :], x[...])[:1]


def test_branches_run_as_often_as_their_condition_holds() -> None:
    call = _traced(_causal, (4, 4))
    branches = kernel_cycles.kernel_branches(call["jaxpr"], (4, 4))
    assert [branch.steps for branch in branches] == [4, 6, 4]
    assert [branch.flop for branch in branches] == [0, 2 * 16**3, 2 * 8 * 16**2]

    # A kernel of one row of blocks, of queries from the second block on, and of all after these.
    def divided(shifts: Any, x: Any, out: Any) -> None:
        _causal_from(pl.program_id(0) + shifts[pl.program_id(0) // 2], x, out)

    call = _traced(divided, (4, 4), 1)
    branches = kernel_cycles.kernel_branches(call["jaxpr"], (4, 4), (0, 1))
    assert [branch.steps for branch in branches] == [4, 8, 3]
    # A condition on what the kernel reads is not known.
    unknown = _traced(lambda x, out: pl.when(x[0, 0] > 0)(lambda: None), (2,))
    assert kernel_cycles.kernel_branches(unknown["jaxpr"], (2,)) == []


def test_sizes_of_the_innermost_branches() -> None:
    assert kernel_cycles.branch_sizes(_BUNDLES) == [0x32 - 0x18 - 5, 0x9C - 0x33 - 5]
    assert kernel_cycles.branch_sizes("") == []


@pytest.mark.parametrize(
    ("bundles", "products", "moved", "text", "cycles"),
    [
        (1000, False, 0, "", 16_000),
        (1000, False, 0, _BUNDLES, 16_000 - 21 * 12 - 100 * 4),
        (1, True, 0, "", (6 * 2 * 16**3 + 4 * 2 * 8 * 16**2) / (197e12 / 1.5e9)),
        (1000, False, 819 * 10**9, "", 1.5e9),
    ],
)
def test_no_kernel_is_quicker_than_its_products_or_bytes(
    bundles: int, products: bool, moved: int, text: str, cycles: float, tmp_path: pathlib.Path
) -> None:
    """Sixteen steps on v5e: 1.5 GHz, 197 TFLOP/s, 819 GB/s."""

    def two(x: Any, out: Any) -> None:
        i = pl.program_id(0)
        pl.when(i < 4)(lambda: out.__setitem__(..., x[...]))
        pl.when(i < 12)(lambda: out.__setitem__(..., x[...]))

    call = _traced(_causal, (4, 4)) if products else _traced(two, (16,))
    if products:  # fewer bundles than any kernel has: its products decide
        call = {**call, "grid_mapping": types.SimpleNamespace(grid=(4, 4))}
        bundles = 0
    folder = tmp_path / "dump [1]"
    folder.mkdir()
    dump = f"total scheduled bundles: {bundles}"
    (folder / "77-fused_forward.1-9-schedule-analysis_final_bundles.txt").write_text(dump)
    (folder / "77-fused_forward.1-10-final_bundles.txt").write_text(text)
    device = accelerators.KINDS["v5e"]
    for name, expected in (("fused_forward", cycles), ("fused", 0)):
        counted = kernel_cycles.cycles({**call, "name": name}, moved, device, str(folder))
        assert counted == pytest.approx(expected)
