"""Tiles of a kernel that a user gives, and `attention tune`, which finds them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import tuning
from attention.__main__ import main
from attention.flex import Mask, flex
from tests.attention.interpreted import interpreted, needs_triton


def _documents(length):
    ids = jnp.arange(length) // 170
    return Mask(causal=True, segments=(ids, ids))


SMALL = {"queries": 128, "keys": 128}
GPU = {"queries": 32, "keys": 16, "warps": 4, "stages": 1}


@pytest.mark.parametrize(
    ("platform", "mask", "tiles"),
    [
        ("tpu", None, {"forward": {"queries": 128, "keys": 256}, "backward": {"keys": 128}}),
        ("tpu", Mask(causal=True), {"forward": SMALL, "backward": {"rows": 128}}),
        ("tpu", Mask(causal=True, width=60), {"backward": SMALL}),
        ("tpu", _documents(300), {"forward": SMALL, "backward": SMALL}),
        pytest.param(
            "gpu",
            _documents(300),
            {"forward": GPU, "by_key": GPU, "by_query": {"queries": 64}},
            marks=needs_triton,
        ),
    ],
)
def test_other_tiles_give_the_same_numbers(platform, mask, tiles):
    """Output and gradients within float32's rounding, by another program."""
    drawn = np.random.default_rng(0).normal(size=(4, 1, 300, 2, 16)).astype(np.float32)
    cotangent, arrays = jnp.asarray(drawn[3]), tuple(map(jnp.asarray, drawn[:3]))

    def both(tiles):
        attend = functools.partial(flex, mask=mask, kernel=interpreted(platform), tiles=tiles)

        def program(arrays):
            output, pull = jax.vjp(attend, *arrays)
            return output, *pull(cotangent)

        return str(jax.make_jaxpr(program)(arrays)), jax.jit(program)(arrays)

    planned, chosen = both(None), both(tiles)
    assert planned[0] != chosen[0]
    for expected, result in zip(planned[1], chosen[1], strict=True):
        error = jnp.linalg.norm(result - expected) / jnp.linalg.norm(expected)
        assert error < 1e-6


@pytest.mark.parametrize(
    ("platform", "mask", "tiles", "named"),
    [
        ("tpu", None, [("forward", 128)], "forward"),
        ("tpu", None, {"forward": {"queries": 128.0}}, "128.0"),
        ("tpu", None, {"by_key": SMALL}, "backward"),
        ("tpu", None, {"forward": {"columns": 128}}, "queries"),
        ("tpu", None, {"forward": {"keys": 100}}, "128"),
        ("tpu", None, {"backward": {"queries": 4096}}, "MiB"),
        ("tpu", Mask(causal=True), {"forward": {"queries": 256, "keys": 128}}, "causality"),
        ("tpu", _documents(5000), {"forward": SMALL}, "backward"),
        pytest.param("gpu", None, {"backward": GPU}, "by_query", marks=needs_triton),
        pytest.param("gpu", None, {"forward": {"keys": 256}}, "128", marks=needs_triton),
    ],
)
def test_tiles_that_a_kernel_cannot_have_are_refused(platform, mask, tiles, named):
    """By what is wrong with them, before anything is compiled."""
    array = jax.ShapeDtypeStruct((1, 5000, 2, 128), jnp.float32)
    attend = functools.partial(flex, mask=mask, kernel=interpreted(platform), tiles=tiles)
    with pytest.raises(ValueError, match=named):
        jax.eval_shape(attend, array, array, array)


@pytest.mark.parametrize("kernel", ["xla", "jax_xla", "splash"])
def test_kernels_without_tiles_refuse_them(kernel):
    """Also where a call would be too small for several."""
    array = jnp.zeros((1, 8, 2, 16))
    with pytest.raises(ValueError, match=kernel):
        flex(array, array, array, kernel=kernel, tiles={"forward": SMALL})


def test_tiles_are_tried_by_time_and_the_fastest_are_the_best(monkeypatch):
    """Of each kernel alone; what the kernel refuses has no time."""
    sizes = [{}, {"rows": 128}, {"rows": 100}]
    monkeypatch.setattr(tuning, "_candidates", lambda *_: sizes)
    attend = functools.partial(flex, mask="causal", kernel=interpreted("tpu"))
    measure = functools.partial(tuning.time, attend, (1, 32, 2, 1, 16), "float32")
    tried = list(tuning.trials(measure, 32, "tpu", together=False))
    assert [(kernel, one) for kernel, one, _ in tried] == [
        (kernel, one) for kernel in ("forward", "backward") for one in sizes
    ]
    figures = [figure for *_, figure in tried]
    assert [isinstance(figure, str) for figure in figures] == [False, False, True] * 2
    assert all(0 < figure < 1e4 for figure in figures if not isinstance(figure, str))
    tiles = tuning.best(tried)
    for kernel, (planned, small, _) in (("forward", figures[:3]), ("backward", figures[3:])):
        assert tiles.get(kernel, {}) == sizes[int(small < planned)]
    attend = functools.partial(flex, kernel="xla")
    measure = functools.partial(tuning.time, attend, (1, 32, 2, 1, 16), "float32")
    with pytest.raises(ValueError, match="xla"):
        next(tuning.trials(measure, 32, "tpu", together=False))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["1,64,2,16"], "--topology"),
        (["1,64,16"], "B,T,H,D"),
        (["1,64,0,16", "--topology=v5e"], "B,T,H,D"),
    ],
)
def test_tune_without_a_device_or_a_shape_says_what_to_do(arguments, named, capsys):
    """Status 2, and one sentence."""
    assert main(["tune", *arguments]) == 2
    assert named in capsys.readouterr().err
