"""Reading a compiled program's text: loops, bytes, collectives, calls, by hand."""

import pytest

from sweeps.monitoring import hlo
from sweeps.training import accelerators

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
