"""Kernels for TPUs and GPUs in interpret mode: numbers, refusals, and their way onto a mesh.

The compilers are asked in test_accelerated_compiled.py.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import functions, registry
from attention.kernels import core, fused, inputs, splash
from attention.kernels.tpu import plan_tpu
from attention.masks import Bias, Mask
from attention.mixers import laser, laser_shift, sigmoid, standard
from attention.verification import check, reference
from tests.attention.interpreted import HAS_TRITON, interpreted
from tests.python_processes import start_python

STATIC = ("attend", "is_causal", "kernel")

KERNELS = {"splash": splash, "fused": fused}


@pytest.fixture(params=["splash on tpu", "fused on tpu", "fused on gpu"])
def kernel(request, monkeypatch):
    """A kernel run by XLA, in blocks of 128 rows so that small problems have several."""
    name, _, platform = request.param.split()
    if platform == "gpu" and not HAS_TRITON:
        pytest.skip("JAX has no Triton backend")
    if name == "splash" and jax.__version_info__ < splash.SMALL_HEADS:
        pytest.skip("JAX's splash takes no small heads")
    module = KERNELS[name]
    monkeypatch.setattr(module, "KERNEL", interpreted(platform, module))
    monkeypatch.setattr(splash, "_largest_block", lambda *_: 128)
    monkeypatch.setattr(plan_tpu, "_most_rows", lambda *_: (128, None, True))
    yield name
    jax.clear_caches()  # what was traced knows a kernel by its name alone, not its platform


def _qkv(length=9, keys=None, size=8, value_size=None, dtype="float32", batch=(2,)):
    rng = np.random.default_rng(0)
    keys = keys or length
    shapes = (
        (length, size),
        (keys, size),
        (keys, value_size or size),
        (length, value_size or size),
    )
    return [jnp.asarray(rng.standard_normal((*batch, n, 2, d)), dtype) for n, d in shapes]


@functools.partial(jax.jit, static_argnames=STATIC)
def _run(attend, arrays, **settings):
    *qkv, cotangent = arrays
    output, pullback = jax.vjp(lambda *qkv: attend(*qkv, **settings), *qkv)
    return output, pullback(cotangent.astype(output.dtype))


@pytest.mark.parametrize(
    ("mixer", "dtype", "mask"),
    [
        ("standard", "bfloat16", "causal"),
        ("laser", "float32", "causal"),
        ("laser", "bfloat16", "padded"),
        pytest.param("diff", "bfloat16", "causal", marks=pytest.mark.nightly),
        pytest.param("diff_laser", "bfloat16", "none", marks=pytest.mark.nightly),
    ],
)
def test_error_within_limits(mixer, dtype, mask, kernel, monkeypatch):
    """A scale of 1/8 rounds nothing, so that the library kernels' limits hold; 160 is padded."""
    exact = dataclasses.replace(KERNELS[kernel].KERNEL, bfloat16_allowance=1.0)
    monkeypatch.setattr(KERNELS[kernel], "KERNEL", exact)
    for qs, vs in ((1, 0.1), (1, 1), (4, 0.1), (4, 1), (4, 4)):
        if dtype == "float32" and vs > 1:
            continue
        case = check.Case(mixer, kernel, dtype, mask, qs, vs)
        row = check.measure(case, shape=(160, 2, 64), seed=7)
        assert row.passed, row


@pytest.mark.parametrize("kernel", ["splash on tpu"], indirect=True)
def test_a_scale_that_is_no_power_of_two_rounds_splash_s_queries_once_more(kernel):
    limits = check.LIMITS["bfloat16", False]
    for qs, factor in ((1, 1.0), (4, 1.5)):
        row = check.measure(check.Case("laser", kernel, "bfloat16", "none", qs, 1), (96, 2, 40))
        assert row.passed, row
        assert row.limits == (1.5 * limits[0], 1.5 * limits[1])
        assert row.output <= factor * limits[0]
        assert max(row.gradients.values()) <= factor * limits[1]


def _agrees(kernel, attend, arrays, **settings):
    ours = _run(attend, arrays, kernel=kernel, **settings)
    theirs = _run(attend, arrays, **settings)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=5e-6), ours, theirs)
    return ours


def _agrees_with_reference(kernel, attend, arrays, is_causal=True):
    """Output and gradients are those of float64, with or without causality."""
    (length, *_), (keys, *_) = arrays[0].shape, arrays[1].shape
    mask = np.tril(np.ones((length, keys), bool)) if is_causal else None
    ours = _run(attend, arrays, is_causal=is_causal, kernel=kernel)
    exact = reference.attend(attend.__module__.rpartition(".")[2], *arrays, mask=mask)
    assert reference.relative_error(ours[0], exact.output) <= 2e-6
    for gradient, expected in zip(ours[1], exact.gradients.values(), strict=True):
        assert reference.relative_error(gradient, expected) <= 3e-6


def test_values_of_another_size_and_padded_keys_of_each_batch_entry(kernel):
    """One entry sees no key at all; hidden keys and values may be anything."""
    arrays = _qkv(length=9, keys=150, value_size=5, batch=(2, 2))
    there = np.arange(150) < np.array([[131, 100], [7, 0]])[..., None, None, None]
    arrays[1] = arrays[1].at[:, :, -19:].multiply(100.0)
    arrays[2] = arrays[2].at[:, :, -19:].add(1e3)
    output, (query_bar, key_bar, value_bar) = _agrees(
        kernel, laser.attend, arrays, mask=jnp.asarray(there)
    )
    assert not output[1, 1].any()
    for gradient in (query_bar[1, 1], key_bar[1, 1], value_bar[1, 1], value_bar[1, 0, 7:]):
        assert not gradient.any()


@pytest.mark.parametrize(("length", "keys"), [(140, 9), (9, 140)])
def test_causality_where_nothing_divides_into_blocks(length, keys, kernel):
    _agrees_with_reference(kernel, laser.attend, _qkv(length, keys, batch=()))


@pytest.mark.parametrize(
    ("kernel", "heads", "size", "wide", "together", "masked"),
    [
        ("fused on tpu", 4, 64, 64, 2, True),
        ("fused on tpu", 4, 64, 64, 2, False),
        ("fused on tpu", 2, 64, 128, 2, False),
        ("fused on tpu", 2, 128, 256, 0, True),
        ("fused on tpu", 3, 32, 32, 3, True),
        ("fused on tpu", 2, 80, 80, 0, False),
        ("fused on gpu", 2, 64, 128, 2, False),
        ("fused on gpu", 3, 32, 32, 3, True),
        ("fused on gpu", 2, 80, 80, 0, False),
    ],
    indirect=["kernel"],
)
def test_heads_side_by_side_in_a_block(heads, size, wide, together, masked, kernel):
    """As many as 128 lanes hold; others are transposed. The last block passes the arrays' end."""
    assert plan_tpu.heads_together(heads, size, wide) == together
    rng = np.random.default_rng(1)
    shapes = [(2, 140, heads, one) for one in (size, size, wide, wide)]
    arrays = [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]
    there = jnp.arange(140) < jnp.array([131, 9])[:, None, None, None]
    settings = {"mask": there} if masked else {"is_causal": True}
    ours = _run(laser.attend, arrays, kernel=kernel, **settings)
    theirs = _run(laser.attend, arrays, **settings)
    for found, exact in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert reference.relative_error(found, np.asarray(exact, np.float64)) <= 3e-6


def test_soft_cap_is_the_modifier_s(kernel):
    """In the same place, by the same formula, with its gradient."""
    query, key, value, cotangent = _qkv()
    arrays = [8 * query, key, value, cotangent]
    capped = registry.get("laser+softcap", cap=1.5, kernel=kernel)
    ours = _run(capped, arrays, is_causal=True)
    theirs = _run(dataclasses.replace(capped, kernel="xla"), arrays, is_causal=True)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=5e-6), ours, theirs)


DROPOUT = {"dropout_rate": 0.1, "dropout_rng": jax.random.key(0)}
SEGMENTS = Mask(segments=(jnp.zeros((2, 9), int),) * 2)


@pytest.mark.parametrize(
    ("name", "settings", "dtype", "message"),
    [
        *[(name, {}, "float32", "a TPU.* kernel='xla' or 'jax_xla'") for name in KERNELS],
        *[(name, {"bias": jnp.ones((9, 9))}, "float32", "no bias.*'jax_xla'") for name in KERNELS],
        *[(name, {"precision": "highest"}, "float32", "precision.*'xla'") for name in KERNELS],
        *[(name, {}, "float16", "bfloat16 or float32, not float16") for name in KERNELS],
        ("splash", DROPOUT, "float32", "dropout.*kernel='xla' or kernel='fus"),
        ("splash", {"mask": jnp.ones((9, 9), bool)}, "float32", "by query or head.*'jax_xla'"),
        ("splash", {"mask": jnp.ones((2, 2, 1, 9), bool)}, "float32", "query or head.*'jax_xla'"),
        ("splash", {"mask": SEGMENTS}, "float32", "segments.*'jax_xla'"),
    ],
)
def test_refusals_name_a_kernel_that_can(name, settings, dtype, message, monkeypatch):
    if dtype == "float16":
        monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    with pytest.raises(ValueError, match=message):
        standard.attend(*_qkv(dtype=dtype)[:3], kernel=name, **settings)


PLACES = np.arange(130)
SIGMOID = functools.partial(inputs.attend, sigmoid.MIXER)


@pytest.mark.parametrize(
    ("attend", "mask", "hidden"),
    [
        (standard.attend, Mask(causal=True, strict=True), (129,)),
        (SIGMOID, Mask(causal=True, strict=True), (129,)),
        (
            laser.attend,
            Mask(keys=PLACES % 3 > 0, segments=(PLACES // 40, PLACES // 60), width=70),
            (42, 129),
        ),
        (
            standard.attend,
            Mask(dense=(PLACES[:, None] != PLACES) & (PLACES != 7), causal=True),
            (7,),
        ),
        (laser.attend, Mask(dense=np.tile(PLACES % 2 == 0, (2, 2, 1, 1))), (41,)),
        (SIGMOID, Mask(dense=np.tile(PLACES % 2 == 0, (2, 2, 1, 1))), (41,)),
    ],
)
@pytest.mark.parametrize("kernel", ["fused on tpu", "fused on gpu"], indirect=True)
def test_masks_of_every_part(attend, mask, hidden, kernel):
    """Strict causality, keys of no query, parts together; values nobody sees may be anything."""
    arrays = _qkv(length=130)
    arrays[2] = arrays[2].at[:, hidden].add(1e3)
    _agrees(kernel, attend, arrays, mask=mask)


@pytest.mark.parametrize("broadcast", [False, True])
@pytest.mark.parametrize("kernel", ["fused on tpu", "fused on gpu"], indirect=True)
def test_dropout_of_weights(broadcast, kernel):
    """The same weights as of our core: of each head, or of all; LASER's stays there."""
    *qkv, cotangent = _qkv(length=140)
    settings = {"dropout_rng": jax.random.key(1), "dropout_rate": 0.3}
    settings |= {"broadcast_dropout": broadcast, "kernel": kernel}
    attend = functools.partial(standard.attend, **settings)
    ours = _run(attend, [*qkv, cotangent], is_causal=True)
    seeds = inputs._dropout(qkv[0], 140, jax.random.key(1), 0.3, broadcast, fused.KERNEL).seeds
    assert len(np.unique(seeds)) == (1 if broadcast else 4)
    places = jnp.arange(140)
    kept = functions.is_kept(0.3, seeds[..., None, None], places[:, None], places) / 0.7

    def core_sum(query, key, value):
        visible = places[:, None] >= places
        settings = core.CoreSettings(8**-0.5)
        return core.weighted_sum(settings, query, key, value, Bias(), visible, kept)

    output, pull = jax.vjp(core_sum, *qkv)
    theirs = output, pull(cotangent)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=5e-6), ours, theirs)
    with reference.float64():  # indices are 32 bits wide
        wide = attend(*(jnp.asarray(array, jnp.float32) for array in qkv), is_causal=True)
    np.testing.assert_allclose(wide, ours[0], atol=5e-6)
    with pytest.raises(ValueError, match="no attention dropout where values and outputs have"):
        laser.attend(*qkv, **settings)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        *[("splash", name) for name in ("sigmoid", "softpick", "laser+sink", "laser+fox")],
        *[(kernel, "stick_breaking") for kernel in KERNELS],
        ("splash", "laser+alibi"),
    ],
)
def test_other_mechanisms_are_refused_by_name(kernel, name):
    with pytest.raises(ValueError, match=f"kernel='{kernel}' has no .*use kernel='xla'"):
        registry.get(name, kernel=kernel)


@pytest.mark.parametrize(
    ("kernel", "refused"),
    [
        ("splash on tpu", {"bfloat16": "highest", "float32": "tensorfloat32"}),
        ("fused on tpu", {"bfloat16": "highest", "float32": "tensorfloat32"}),
        ("fused on gpu", {"bfloat16": "bfloat16", "float32": "highest"}),
    ],
    indirect=["kernel"],
)
def test_precisions_that_its_compiler_does_not_know_are_refused(kernel, refused):
    shape = jax.eval_shape(functools.partial(standard.attend, kernel=kernel), *_qkv()[:3])
    assert shape.shape == (2, 9, 2, 8)
    for dtype, given in refused.items():
        arrays = _qkv(dtype=dtype)[:3]
        with (
            jax.default_matmul_precision(given),
            pytest.raises(ValueError, match=f"jax_default_matmul_precision='{given}'.*or use"),
        ):
            standard.attend(*arrays, kernel=kernel)


SHARDED = """
import dataclasses, functools, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from attention import registry
from attention.kernels import fused, splash
from tests.attention.interpreted import interpreted
module = {"splash": splash, "fused": fused}[sys.argv[1]]
module.KERNEL = interpreted(sys.argv[2], module)
mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "fsdp", "tensor"))
heads = NamedSharding(mesh, P(("data", "fsdp"), None, "tensor", None))
plain = registry.get("laser")
placed = dataclasses.replace(plain, kernel=sys.argv[1], sharding=heads)
rng = np.random.default_rng(0)
def gradients(variant, mask, *qkv):
    return jax.grad(lambda *qkv: jnp.sum(jnp.sin(variant(*qkv, mask=mask))), (0, 1, 2))(*qkv)
for batch in (4, 1):
    qkv = [jnp.asarray(rng.standard_normal((batch, 6, 2, 4)), jnp.float32) for _ in "qkv"]
    mask = (np.arange(6) < 3 + np.arange(batch)[:, None])[:, None, None]
    put = heads if batch == 4 else NamedSharding(mesh, P())
    got = jax.jit(functools.partial(gradients, placed))(mask, *jax.device_put(qkv, put))
    for ours, theirs in zip(got, gradients(plain, mask, *qkv)):
        np.testing.assert_allclose(ours, theirs, atol=3e-6)
        assert batch == 1 or ours.sharding.is_equivalent_to(heads, 4), ours.sharding
# Leaves that differ by head are divided with the heads; one head of keys is not.
from attention.verification import check
for name, keys in (("laser+sink+alibi", 2), ("standard+fox+softcap", 1)) * (module is fused):
    plain = registry.get(name)
    placed = dataclasses.replace(plain, kernel="fused", sharding=heads)
    shapes = {"query": (4, 6, 2, 4), "key": (4, 6, keys, 4), "value": (4, 6, keys, 4)}
    shapes["x"] = (4, 6, 5)
    arrays = {n: jnp.asarray(rng.standard_normal(s), jnp.float32) for n, s in shapes.items()}
    params = check.leaves(plain, arrays, 0.5, 0)
    def loss(variant, params, arrays):
        out = check.Host(variant, 0, True).apply({"params": params}, **arrays)
        return jnp.sum(jnp.sin(out))
    expected = jax.grad(functools.partial(loss, plain), (0, 1))(params, arrays)
    got = jax.jit(jax.grad(functools.partial(loss, placed), (0, 1)))(params, arrays)
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=3e-6)
    assert jax.tree.leaves(got[0]), name
# Masks: segments by entry, pairs by head, by entry, and of neither.
from attention.masks import Mask
qkv = [jnp.asarray(rng.standard_normal((4, 6, 2, 4)), jnp.float32) for _ in "qkv"]
segments = jnp.asarray(np.arange(6) // np.array([[2], [3], [4], [5]]))
masks = [Mask(segments=(segments, segments), causal=True)]
masks += [jnp.asarray(rng.random(shape) < 0.6) for shape in ((2, 6, 6), (4, 1, 6, 6), (6, 6))]
placed = dataclasses.replace(registry.get("laser"), kernel=sys.argv[1], sharding=heads)
for mask in masks * (module is fused):
    got = jax.jit(functools.partial(gradients, placed, mask))(*jax.device_put(qkv, heads))
    for ours, theirs in zip(got, gradients(registry.get("laser"), mask, *qkv)):
        np.testing.assert_allclose(ours, theirs, atol=3e-6)
try:
    dataclasses.replace(placed, sharding=NamedSharding(mesh, P("data", None, None, "fsdp")))(*qkv)
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "platform"),
    [
        ("fused", "tpu"),
        pytest.param("splash", "tpu", marks=pytest.mark.nightly),
        pytest.param("fused", "gpu", marks=pytest.mark.nightly),
    ],
)
def test_on_a_mesh_of_eight_devices(name, platform):
    """Batch and heads divided, a batch of one example computed everywhere: the gradients agree."""
    output, errors = start_python(SHARDED, 8, name, platform).communicate()
    assert "are divided by batch, queries and heads" in output, errors[-1500:]


def test_an_outlier_inside_a_block_on_the_diagonal(kernel):
    """A key whose logit is 100 above the others', and a value 60 above, where some see them."""
    query, key, value, cotangent = _qkv(length=200, batch=())
    key = key.at[70].set(100.0 * query[150] / jnp.sum(query[150] ** 2, -1, keepdims=True))
    value = value.at[100].add(60.0)
    arrays = [8**0.5 * query, key, value, cotangent]
    for attend in (standard.attend, laser.attend):
        _agrees_with_reference(kernel, attend, arrays)


def test_channels_wider_than_the_centred_form_holds(kernel):
    """The max form, inside the kernel, too: as our core, finite in every gradient."""
    query, key, value, cotangent = _qkv(length=150, batch=())
    for span in (100.0, 1e3, 1e6):
        wide = value.at[3].add(-span).at[7, 0].add(span)
        arrays = [query, key, wide, cotangent]
        ours = _run(laser.attend, arrays, kernel=kernel)
        theirs = _run(laser.attend, arrays)
        for gradient, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            assert np.isfinite(gradient).all()
            assert reference.relative_error(gradient, np.float64(expected)) <= 1e-5


@pytest.mark.parametrize("queries", [128, 200])
def test_a_block_that_holds_all_keys(queries, kernel):
    """There the fused kernel chooses LASER's shift itself, once for all blocks of queries."""
    arrays = _qkv(length=queries, keys=128, batch=())
    arrays[2] = arrays[2].at[5, 0, 1].add(-300.0)  # one channel in the max form
    _agrees_with_reference(kernel, laser.attend, arrays, is_causal=queries == 128)


@pytest.mark.parametrize(
    ("length", "size", "wide", "dtype", "chip", "rows"),
    [
        (1024, 128, 128, "bfloat16", "TPU v5 lite", (1024, None, True)),
        (4096, 128, 128, "bfloat16", "TPU v5 lite", (2048, 96 << 20, True)),
        (1024, 512, 512, "bfloat16", "TPU v5 lite", (2048, 96 << 20, True)),
        (1024, 512, 512, "bfloat16", "TPU v5", (1024, 48 << 20, True)),
        (1024, 512, 512, "bfloat16", "TPU v4", (256, None, False)),
        (256, 512, 512, "bfloat16", "TPU v5 lite", (256, None, True)),
        (1024, 512, 512, "float32", "TPU v5", (1024, 48 << 20, True)),
        (1024, 720, 1440, "float32", "TPU v5", (256, 48 << 20, True)),
        (1024, 720, 1440, "float32", "TPU v6 lite", (1024, 96 << 20, True)),
        (1 << 17, 128, 128, "bfloat16", "TPU v5 lite", (2048, 96 << 20, False)),
    ],
)
def test_wide_heads_get_more_of_a_chip_that_has_it(length, size, wide, dtype, chip, rows):
    """Of 16 MiB blocks may take 6, of 48 MiB 38, of 96 MiB 86; 512 channels take 16 kB a row, and
    their dQ 4 kB more, of all rows where it stays on the chip."""
    row, of_query = plan_tpu._row_bytes(size, wide, jnp.dtype(dtype))
    assert plan_tpu._most_rows(length, row, length * of_query, of_query, chip) == rows


def test_one_query_one_key(kernel):
    arrays = _qkv(length=1)
    output, (query_bar, key_bar, value_bar) = _run(
        laser.attend, arrays, is_causal=True, kernel=kernel
    )
    np.testing.assert_allclose(output, arrays[2], atol=1e-6)
    np.testing.assert_allclose(value_bar, arrays[3], atol=1e-6)
    assert np.abs(query_bar).max() <= 1e-6
    assert np.abs(key_bar).max() <= 1e-6


def test_the_exponential_that_mosaic_lacks():
    x = np.concatenate([np.linspace(-80, 80, 4001), np.geomspace(1e-30, 1, 500)]).astype("float32")
    x = np.concatenate([x, -x])
    exact = np.expm1(np.float64(x))
    found = np.asarray(laser_shift.expm1(jnp.asarray(x)), np.float64)
    assert np.abs(found - exact).max(where=exact == 0, initial=0) == 0
    relative = np.abs(found - exact)[exact != 0] / np.abs(exact[exact != 0])
    assert relative[np.abs(x[exact != 0]) < 20].max() <= 4e-7
