"""The Transformer of the language models: counts, numbers, what options change, where it lies."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import registry as variants
from tests.workloads import parameters
from workloads.base.options import Options
from workloads.text.text_specs import SIZES, TransformerSize
from workloads.text.transformer import PARAMETER_RULES, Transformer, unstacked

# heads · head size (20) is not the width (16), as in the paper's larger models.
TINY = TransformerSize(2, 16, 24, 4, 5, vocabulary=32, context=8)
TOKENS = jnp.asarray(np.random.default_rng(0).integers(4, 32, (2, 8)))


# At a vocabulary of 32,000.
COUNTS = {
    "c4_lm_234m": 234_128_384,
    "c4_lm": 301_270_016,
    "c4_lm_435m": 435_487_744,
    "c4_lm_1b": 1_139_410_944,
    "c4_lm_2b": 2_213_152_768,
    "c4_lm_8b": 7_733_123_440,
    "c4_lm_32k": 301_270_016,
    "wikipedia_bert_2b": 2_213_152_768,
    # 12·(4·768² + 2·768·3072 + 2·768) + 32000·768 + 768.
    "wikipedia_bert": 109_529_856,
    # 2·(4·64² + 2·64·256 + 2·64) + 1024·64 + 64.
    "pydoc_lm": 164_160,
    "pydoc_bert": 164_160,
    # layers·(12·width² + 2·width) + 1025·width.
    "pysource_lm_57k": 57_504,
    "pysource_lm_105k": 104_688,
    "pysource_lm_164k": 164_160,
    "pysource_lm_320k": 319_968,
    "pysource_lm_722k": 721_792,
}


def _shapes(size, variant=None, scan_layers=True):
    model = Transformer(size, variant, options=Options(scan_layers=scan_layers))
    return jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 8), int))["params"]


def test_parameter_counts():
    """As the paper names them; tests of the catalog count the models' own."""
    sizes = {name: size.parameters for name, size in SIZES.items() if "finewebedu" not in name}
    assert sizes == COUNTS


def test_logits_are_those_of_plain_numpy():
    """Of four places and five words, as pre-LN blocks written out in NumPy gave them; the same of
    some places alone."""
    params = parameters.drawn(_shapes(TINY, scan_layers=False))
    run = jax.jit(lambda at=None: Transformer(TINY).apply({"params": params}, TOKENS, at=at))
    logits, some = run(), run(jnp.asarray([[0, 5], [7, 2]]))
    expected = [
        [0.9596, 0.35705, -0.32638, -1.68927, -1.1339],
        [-0.56293, -0.62093, 0.45476, -0.82735, -1.26184],
        [1.03618, 0.61422, -0.26897, -2.46812, -0.63269],
        [0.1446, 1.84162, -1.10043, -1.18875, -0.02114],
    ]
    places = np.asarray([0, 0, 1, 1]), np.asarray([0, 5, 7, 2])
    np.testing.assert_allclose(logits[places][:, :5], expected, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(some.reshape(4, -1), logits[places], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        (
            "standard",
            {"kv_heads": 2},
            [
                [1.00035, 0.64094, -0.84395, -1.20211],
                [0.45132, -0.24471, -0.42234, -1.12471],
                [0.15436, 0.53431, -1.1081, -0.98653],
            ],
        ),
        (
            "standard+rope",
            {},
            [
                [-1.11079, -1.52659, 0.90757, 1.02614],
                [0.19573, -1.48018, 1.79341, -1.29038],
                [-1.2464, 0.41037, 1.2621, -0.97177],
            ],
        ),
        (
            "standard+alibi",
            {},
            [
                [-1.11079, -1.52659, 0.90757, 1.02614],
                [-0.0588, -1.29429, 1.38865, -1.1113],
                [-0.45829, -0.12276, 2.09665, -1.70945],
            ],
        ),
        (
            "standard",
            {"positions": "none"},
            [
                [-1.11079, -1.52659, 0.90757, 1.02614],
                [0.04935, -1.19879, 1.22323, -1.05353],
                [-0.50732, -0.01763, 2.02121, -1.63289],
            ],
        ),
    ],
)
def test_logits_with_other_heads_and_positions(name, options, expected):
    """Of three places and four words. Two heads of keys gave the same as four with equal
    projections. Without sinusoids the first place's are the same, whatever else tells places."""
    size = dataclasses.replace(TINY, head_size=4)
    model = Transformer(size, variants.get(name), options=Options(**options))
    shapes = jax.eval_shape(model.init, jax.random.key(0), TOKENS)
    logits = jax.jit(model.apply)(parameters.drawn(shapes), TOKENS)
    places = np.asarray([0, 0, 1]), np.asarray([0, 5, 7])
    np.testing.assert_allclose(logits[places][:, :4], expected, atol=5e-5)


def _loss(options, params, variant, dropout_rate=0.0):
    model = Transformer(TINY, variant, options=options)
    logits = model.apply(
        {"params": params}, TOKENS, train=True, dropout_rate=dropout_rate,
        rngs={"dropout": jax.random.key(1)},
    )  # fmt: skip
    assert logits.dtype == jnp.float32
    return -jnp.mean(jax.nn.log_softmax(logits)[..., 3])


def _run(params, variant, **options):
    function = functools.partial(_loss, Options(**options), variant=variant)
    return jax.jit(jax.value_and_grad(function))(params)


@pytest.mark.slow
def test_bfloat16_weights_and_activations():
    """Both precisions of the paper's pair; statistics in float32 keep loss and gradients close."""
    variant = variants.get("laser")
    options = Options("bfloat16", "bfloat16", scan_layers=True, remat=True)
    model = Transformer(TINY, variant, options=options)
    params = jax.jit(model.init)(jax.random.key(0), TOKENS)["params"]
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("bfloat16")}
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    loss, gradients = _run(params, variant, **dataclasses.asdict(options))
    expected, wide_gradients = _run(wide, variant, scan_layers=True)
    assert float(loss) == pytest.approx(float(expected), rel=5e-3)
    for one, other in zip(*map(jax.tree.leaves, (gradients, wide_gradients)), strict=True):
        error = np.linalg.norm(np.asarray(one, np.float32) - other) / np.linalg.norm(other)
        assert error < 0.05


def test_gradients_of_frequent_tokens_add_up_in_bfloat16():
    """4096 equal rows: a sum kept in bfloat16 would stop at 256 times one of them."""
    size = dataclasses.replace(TINY, layers=0, context=4096)
    tokens = jnp.full((1, 4096), 5)
    table = jnp.asarray(parameters.drawn(jnp.zeros((32, 16)), 1.0))
    norm = {"scale": jnp.zeros(16)}

    def gradient(dtype):
        model = Transformer(size, options=Options("float32", dtype))
        params = {"embedding": table.astype(dtype), "final_norm": norm}
        total = lambda p: jnp.sum(model.apply({"params": p}, tokens)[..., 7])  # noqa: E731
        return np.asarray(jax.jit(jax.grad(total))(params)["embedding"][5], np.float32)

    narrow, wide = gradient("bfloat16"), gradient("float32")
    assert np.linalg.norm(narrow - wide) < 0.01 * np.linalg.norm(wide)


def test_dropout_acts_in_training_alone_and_is_traced():
    params = parameters.drawn(_shapes(TINY))
    options = Options(scan_layers=True)
    run = jax.jit(lambda rate: _loss(options, params, None, rate))
    assert run(jnp.float32(0.0)) != run(jnp.float32(0.5))
    model = Transformer(TINY, options=options)
    evaluate = jax.jit(lambda rate: model.apply({"params": params}, TOKENS, dropout_rate=rate))
    np.testing.assert_array_equal(evaluate(jnp.float32(0.0)), evaluate(jnp.float32(0.5)))


def test_first_loss_is_near_that_of_equal_odds():
    """ln V and half the variance of the logits, which is about 1."""
    model = Transformer(SIZES["pydoc_lm"], options=Options(scan_layers=True))
    tokens = jax.random.randint(jax.random.key(1), (8, 64), 4, 1024)
    params = jax.jit(model.init)(jax.random.key(0), tokens)
    logits = jax.jit(model.apply)(params, tokens)
    assert float(jnp.var(logits[:, :, 500:])) == pytest.approx(1.0, abs=0.3)
    assert float(jax.nn.logsumexp(logits, -1).mean()) == pytest.approx(np.log(1024) + 0.5, abs=0.3)


@pytest.mark.parametrize("scan_layers", [True, False])
def test_rules_name_every_matrix(scan_layers):
    """What is left whole is small: norms, and what variants add."""
    shapes = _shapes(TINY, variants.get("diff_laser+qk_norm"), scan_layers)
    paths = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree_util.tree_leaves_with_path(shapes)
    ]
    left = [path for path in paths if not any(re.search(rule, path) for rule, _ in PARAMETER_RULES)]
    assert left
    assert all(re.search("norm|_ln|lambda|scale", path) for path in left), left


DEEP = dataclasses.replace(TINY, layers=4)


# What differs by layer, and what is handed from layer to layer.
@pytest.mark.parametrize(
    ("name", "settings", "remat"),
    [
        ("diff_laser+qk_norm", {}, True),
        ("standard+window", {"global_every": 2}, False),
        ("laser+gate+value_residual+window", {"global_every": 4, "kv_heads": 2}, True),
        ("laser+value_residual", {"document_mask": True}, False),
    ],
)
def test_scanned_layers_are_unrolled_layers(name, settings, remat):
    """Logits and gradients, of parameters that are stacked by layer either way."""
    given = {"width": 3} if "window" in name else {}
    variant = variants.get(name, **given)

    def run(scan_layers):
        options = Options(scan_layers=scan_layers, remat=remat and scan_layers, **settings)
        model = Transformer(DEEP, variant, options=options)

        def loss(params):
            params = params if scan_layers else unstacked(params)
            return jnp.sum(jnp.sin(model.apply({"params": params}, TOKENS)))

        return model, jax.jit(jax.value_and_grad(loss))

    scanned, of_scan = run(True)
    shapes = jax.eval_shape(scanned.init, jax.random.key(0), TOKENS)["params"]
    plain = Transformer(
        DEEP, variant, options=Options(scan_layers=True, kv_heads=settings.get("kv_heads", 0))
    )
    plain_shapes = jax.eval_shape(plain.init, jax.random.key(0), TOKENS)["params"]
    assert jax.tree.map(lambda leaf: leaf.shape, shapes) == jax.tree.map(
        lambda leaf: leaf.shape, plain_shapes
    )
    params = parameters.drawn(shapes)
    (value, gradient), (expected, gradients) = of_scan(params), run(False)[1](params)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, atol=2e-5, rtol=1e-4),
        gradient,
        gradients,
    )


def test_a_global_layer_sees_past_the_window():
    """One layer of two ignores a window of 1: the last token hears of the first."""
    variant = variants.get("standard+window", width=1)
    tokens = jnp.arange(4, 12)[None]

    def reach(**settings):
        model = Transformer(TINY, variant, options=Options(**settings))
        params = parameters.drawn(jax.eval_shape(model.init, jax.random.key(0), tokens)["params"])
        apply = jax.jit(model.apply)
        logits = [apply({"params": params}, tokens.at[0, 0].set(t))[0, -1] for t in (4, 20)]
        return np.abs(logits[0] - logits[1]).max()

    assert reach() == 0
    assert reach(global_every=2) > 1e-3


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_document_mask_makes_of_each_document_a_sequence_of_its_own(is_causal):
    """Without positions; a decoder's document begins with the separator, an encoder's ends so."""
    first, second = [1, 7, 9, 11], [1, 20, 5, 6, 7]
    if not is_causal:
        first, second = first[::-1], second[::-1]
    options = Options(positions="none", document_mask=True)
    model = Transformer(TINY, variants.get("laser"), is_causal, options)
    packed = jnp.asarray([first + second])
    params = parameters.drawn(jax.eval_shape(model.init, jax.random.key(0), packed)["params"])
    apply = jax.jit(model.apply)
    logits = apply({"params": params}, packed)[0]
    for part, document in ((logits[:4], first), (logits[4:], second)):
        alone = apply({"params": params}, jnp.asarray([document]))[0]
        np.testing.assert_allclose(part, alone, atol=2e-5)
    unmasked = model.clone(options=Options(positions="none"))
    whole = jax.jit(unmasked.apply)({"params": params}, packed)[0]
    assert np.abs(whole[4:] - logits[4:]).max() > 1e-3
