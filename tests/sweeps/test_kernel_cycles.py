"""How often a kernel's branches run, by hand, and the time that is counted for it."""

import pathlib
import types
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from sweeps.monitoring import compiled_step, hlo, kernel_cycles
from sweeps.training import accelerators

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


def _traced(kernel: Any, grid: tuple[int, ...]) -> dict[str, Any]:
    shape = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    program = jax.make_jaxpr(lambda x: pl.pallas_call(kernel, out_shape=shape, grid=grid)(x))(shape)
    (call,) = compiled_step._pallas_calls(program)
    return call


def _causal(x: Any, out: Any) -> None:
    i, j = pl.program_id(0), pl.program_id(1)

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
    assert [one.steps for one in branches] == [4, 6, 4]
    assert [one.flop for one in branches] == [0, 2 * 16**3, 2 * 8 * 16**2]
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
    """Sixteen steps, called twice, on v5e: 1.5 GHz, 197 TFLOP/s, 819 GB/s."""

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
    line = hlo.Instruction("fused_forward.2", "f32[1]", "custom-call", "", "")
    counted = hlo.Counted(line, 2, moved, moved, 0)
    device = accelerators.KINDS["v5e"]
    found = kernel_cycles.cycles([counted], {"fused_forward": call}, device, str(folder))
    assert found == ({"fused_forward": pytest.approx(2 * cycles)}, [])
    unknown = kernel_cycles.cycles([counted], {}, device, str(folder))
    assert unknown == ({}, ["fused_forward"])
