"""Differential attention: values by hand, pairs, λ, the head norm, and depth."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from attention import registry, table
from attention.mixers import head_pairs, laser, standard
from tests.attention import pairs
from tests.attention.pairs import Layer

STATIC = ("is_causal", "dropout_rate", "broadcast_dropout", "kernel")
# Compiled as a whole: operation by operation takes several times as long.
ATTEND = {mixer: pairs.compiled(mixer) for mixer in table.DIFF_ROWS}
BRANCH = {
    "diff": jax.jit(standard.attend, static_argnames=STATIC),
    "diff_laser": jax.jit(laser.attend, static_argnames=STATIC),
}


def _qkv(heads=4, size=6, value_size=6, batch=(2,), keys=5, dtype="float32"):
    rng = np.random.default_rng(0)
    shapes = [(*batch, length, heads, d) for length, d in ((5, size), (keys, size))]
    shapes.append((*batch, keys, heads, value_size))
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


def test_lambda_init_by_hand():
    """0.8 − 0.6·exp(−0.3·depth): 0.2 in the first layer, 0.8 − 0.6·0.740818 in the second."""
    assert float(head_pairs.lambda_init(0)) == pytest.approx(0.2, abs=1e-7)
    assert float(head_pairs.lambda_init(1)) == pytest.approx(0.355509, abs=1e-6)
    assert float(jax.jit(head_pairs.lambda_init)(jnp.int32(1))) == pytest.approx(0.355509, abs=1e-6)
    assert float(head_pairs.lambda_init(np.int64(100))) == pytest.approx(0.8, abs=1e-6)


def test_lambda_by_hand():
    """exp(ln 3) − exp(ln 2) + 0.2 = 1.2."""
    vectors = ([np.log(3.0), 5.0], [1.0, 0.0], [0.0, np.log(2.0)], [7.0, 1.0])
    names = ("scale_q1", "scale_k1", "scale_q2", "scale_k2")
    leaves = {
        f"diff_lambda/{name}": jnp.asarray(row, jnp.float32)
        for name, row in zip(names, vectors, strict=True)
    }
    value = head_pairs.layer_lambda(leaves, head_pairs.lambda_init(0))
    assert float(value) == pytest.approx(1.2, abs=1e-6)


def test_head_norm_by_hand():
    """Pair (3, 4): root mean square √12.5, times 1 + scale."""
    pair = head_pairs.normed(jnp.asarray([3.0, 4.0]), jnp.asarray([0.0, 1.0]))
    np.testing.assert_allclose(pair, np.array([3.0, 8.0]) / np.sqrt(12.5 + 1e-5), rtol=1e-6)


@pytest.mark.parametrize("mixer", ["diff", "diff_laser"])
def test_two_keys_by_hand(mixer):
    """A1 = (½, ½), A2 = (¾, ¼), λ = ½; each head brings one channel of the pair's value.

    diff: channel (0, ln 3): ln 3·(½ − ½·¼); channel (ln 5, 0): ln 5·(½ − ½·¾).
    diff_laser: log(½ + 3/2) − ½·log(¾ + ¾), and log(5/2 + ½) − ½·log(15/4 + ¼).
    """
    query = jnp.asarray([0.0, np.log(3.0)], jnp.float32).reshape(1, 2, 1)
    key = jnp.asarray([1.0, 0.0]).reshape(2, 1, 1) * jnp.ones((2, 2, 1))
    value = jnp.asarray([[0.0, np.log(5.0)], [np.log(3.0), 0.0]], jnp.float32).reshape(2, 2, 1)
    expected = {
        "diff": [np.log(3) * 3 / 8, np.log(5) / 8],
        "diff_laser": [np.log(2) - np.log(1.5) / 2, np.log(3) - np.log(4) / 2],
    }[mixer]
    output = ATTEND[mixer](query, key, value, lambda_=0.5)
    np.testing.assert_allclose(output[0, :, 0], expected, atol=3e-7)


@pytest.mark.parametrize("mixer", ["diff", "diff_laser"])
@pytest.mark.parametrize("kind", ["mask per head", "mask, bias per head", "causal"])
def test_pairs_are_two_branches_over_one_value(mixer, kind):
    """Heads 0::2 minus λ times heads 1::2, mask and bias split with them."""
    query, key, value = _qkv(keys=5, value_size=3)
    rng = np.random.default_rng(1)
    whole = {
        "mask per head": {"mask": rng.random((2, 4, 5, 5)) < 0.7},
        "mask, bias per head": {
            "mask": jnp.arange(5)[None, None] < 4,
            "bias": jnp.asarray(rng.standard_normal((4, 1, 5)), jnp.float32),
        },
        "causal": {"is_causal": True},
    }[kind]
    both = value.reshape(2, 5, 2, 6)
    branches = []
    for branch in (0, 1):
        settings = {
            name: given[..., branch::2, :, :] if np.ndim(given) and len(given) > 1 else given
            for name, given in whole.items()
        }
        queries, keys = query[..., branch::2, :], key[..., branch::2, :]
        branches.append(BRANCH[mixer](queries, keys, both, scale=0.3, **settings))
    output = ATTEND[mixer](query, key, value, lambda_=0.7, scale=0.3, **whole)
    assert output.shape == value.shape
    expected = (branches[0] - 0.7 * branches[1]).reshape(value.shape)
    np.testing.assert_allclose(output, expected, atol=2e-6)


def test_dropout_shares_its_mask_within_a_pair_when_broadcast():
    """Equal maps and λ = 1 cancel while both lose the same keys; drawn by each, they do not."""
    query, key, value = _qkv(heads=2)
    query, key = (jnp.repeat(array[..., :1, :], 2, axis=-2) for array in (query, key))
    # rbg compiles in a tenth of the default generator's time.
    rng = jax.random.key(0, impl="rbg")
    settings = {"lambda_": 1.0, "dropout_rng": rng, "dropout_rate": 0.5}
    for attend in ATTEND.values():
        np.testing.assert_allclose(attend(query, key, value, **settings), 0.0, atol=1e-6)
        own = attend(query, key, value, broadcast_dropout=False, **settings)
        assert np.abs(own).max() > 0.1
        assert np.isfinite(own).all()


@pytest.mark.parametrize(("mixer", "head_norm"), [("diff", True), ("diff_laser", False)])
def test_hidden_rows_keys_and_extremes_stay_finite(mixer, head_norm):
    """Rows that see nothing return 0; nothing flows to hidden keys; values to 1e6 are finite."""
    query, key, value = _qkv()
    value = value.at[..., 2, :, :].multiply(1e6)
    mask = np.ones((5, 5), bool)
    mask[3] = mask[:, 4] = False
    layer = Layer(registry.get(mixer, head_norm=head_norm))
    params = jax.jit(layer.init)(jax.random.key(0), query, key, value)

    @jax.jit
    def run(*arrays):
        output, pullback = jax.vjp(lambda *arrays: layer.apply(*arrays, mask=mask), *arrays)
        return output, pullback(jnp.ones_like(output))

    output, (params_bar, query_bar, key_bar, value_bar) = run(params, query, key, value)
    for leaf in jax.tree.leaves((output, params_bar, query_bar, key_bar, value_bar)):
        assert np.isfinite(leaf).all()
    assert not np.asarray(output)[:, 3].any()
    assert not np.asarray(query_bar)[:, 3].any()
    assert not np.asarray(key_bar)[:, 4].any()
    assert not np.asarray(value_bar)[:, 4].any()


def test_head_norm_and_its_factor():
    """With the norm: root mean square 1 − λ_init per pair; without, one key gives (1 − λ)·v."""
    query, key, value = _qkv(keys=1)
    params = jax.jit(Layer(registry.get("diff")).init)(jax.random.key(0), query, key, value)
    vectors = params["params"]["diff_lambda"]
    q1, k1, q2, k2 = (vectors[f"scale_{name}"] for name in ("q1", "k1", "q2", "k2"))
    for mixer in table.DIFF_ROWS:
        layer = Layer(registry.get(mixer))
        normed = jax.jit(layer.apply, static_argnames="layer")(params, query, key, value, layer=2)
        pairs = np.asarray(normed).reshape(2, 5, 2, 12)
        size = 0.6 * np.exp(-0.6) + 0.2
        np.testing.assert_allclose(np.sqrt((pairs**2).mean(-1)), size, rtol=1e-3)
        plain = Layer(registry.get(mixer, head_norm=False))
        tree = jax.eval_shape(plain.init, jax.random.key(0), query, key, value)
        assert list(tree["params"]) == ["diff_lambda"]
        lambda_ = np.exp(q1 @ k1) - np.exp(q2 @ k2) + 0.8 - 0.6 * np.exp(-0.6)
        np.testing.assert_allclose(
            plain.apply({"params": {"diff_lambda": vectors}}, query, key, value, layer=2),
            np.broadcast_to((1 - lambda_) * value, query.shape),
            rtol=1e-5,
        )


def test_leaves_and_their_start():
    """Four vectors of the head size, sd 0.1; the norm's factor over 2·Dv, 1 + 0 at start."""
    query, key, value = _qkv(size=512, value_size=3)
    init = jax.jit(Layer(registry.get("diff_laser")).init)
    params = init(jax.random.key(1), query, key, value)["params"]
    assert set(params) == {"diff_lambda", "head_norm"}
    assert sorted(params["diff_lambda"]) == ["scale_k1", "scale_k2", "scale_q1", "scale_q2"]
    spread = np.stack(list(params["diff_lambda"].values()))
    assert spread.shape == (4, 512)
    assert spread.std() == pytest.approx(0.1, rel=0.05)
    np.testing.assert_array_equal(params["head_norm"]["scale"], np.zeros(6))


def test_traced_depth_in_scan_is_the_loop():
    """Three layers in nn.scan, depth from the loop's counter, against three called by number."""

    class Block(nn.Module):
        @nn.compact
        def __call__(self, inputs, depth):
            function = functools.partial(registry.get("diff_laser+qk_norm"), layer=depth)
            layer = nn.MultiHeadDotProductAttention(2, attention_fn=function, name="attention")
            return inputs + layer(inputs), None

    block = nn.remat(Block, prevent_cse=False)
    scanned = nn.scan(block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)()
    inputs = jnp.asarray(np.random.default_rng(0).standard_normal((2, 4, 8)), jnp.float32)
    params = jax.jit(scanned.init)(jax.random.key(0), inputs, jnp.arange(3))
    assert params["params"]["attention"]["diff_lambda"]["scale_q1"].shape == (3, 4)
    output, _ = jax.jit(scanned.apply)(params, inputs, jnp.arange(3))
    expected, apply = inputs, jax.jit(Block().apply, static_argnums=2)
    for depth in range(3):
        leaves = jax.tree.map(lambda leaf, depth=depth: leaf[depth], params)
        expected, _ = apply(leaves, expected, depth)
    np.testing.assert_allclose(output, expected, atol=2e-6)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (None, "'diff' needs the layer's index"),
        (-1, "layer=-1.*it is the layer's index, one integer from 0"),
        ("3", "layer='3'"),
        (jnp.float32(1), "dtype float32"),
    ],
)
def test_layers_that_are_none_are_refused(layer, message):
    with pytest.raises(ValueError, match=message):
        Layer(registry.get("diff")).init(jax.random.key(0), *_qkv(), layer=layer)


def test_what_cannot_be_computed_is_refused():
    for mixer in table.DIFF_ROWS:
        with pytest.raises(ValueError, match="heads come in pairs; got 3 heads, an odd number"):
            pairs.attend(mixer, *_qkv(heads=3), lambda_=0.2)
        for kernel in ("jax_xla", "cudnn"):
            message = r"head size of V \(12\).*\(6\); use kernel='xla'"
            with pytest.raises(ValueError, match=message):
                pairs.attend(mixer, *_qkv(), lambda_=0.2, kernel=kernel)
    with pytest.raises(ValueError, match="inside a Flax module"):
        registry.get("diff")(*_qkv(), layer=0)
    with pytest.raises(ValueError, match="float16 gives NaN"):
        pairs.attend("diff_laser", *_qkv(dtype="float16"), lambda_=0.2)


@pytest.mark.parametrize("mixer", ["diff", "diff_laser"])
def test_a_library_kernel_serves_values_of_half_the_size(mixer):
    query, key, value = _qkv(size=6, value_size=3)
    ours = ATTEND[mixer](query, key, value, lambda_=0.4)
    theirs = ATTEND[mixer](query, key, value, lambda_=0.4, kernel="jax_xla")
    np.testing.assert_allclose(ours, theirs, atol=2e-6)


def test_check_kernel_counts_the_pairs_value():
    """cuDNN wants one head size for all: a pair's value is twice as wide, whatever the size."""
    assert table.value_size("diff+temp", 64) == 128
    assert table.value_size("laser", 64) == 64
    where = {"platform": "gpu", "dtype": "bfloat16", "head_size": 64}
    table.check_kernel("cudnn", **where, value_size=table.value_size("laser", 64))
    table.check_kernel("xla", **where, value_size=table.value_size("diff", 64))
    for kernel in ("cudnn", "jax_xla"):
        with pytest.raises(ValueError, match=r"V \(128\) to be that of Q and K \(64\).*'xla'"):
            table.check_kernel(kernel, **where, value_size=table.value_size("diff", 64))
