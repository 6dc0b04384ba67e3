"""The Conformer, its log-mel front end and SpecAugment: parts by hand, and what padding changes."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from attention.verification import reference
from workloads import registry
from workloads.speech import conformer, conformer_layers, spectrogram

TINY = conformer.Config(
    vocab_size=7, encoder_dim=8, num_heads=2, num_layers=1, feed_forward_factor=2,
    batch_norm_momentum=0.9, subsampling_channels=3, masks=None,
)  # fmt: skip


def test_variants_of_the_model():
    configs = {
        name: registry.make(f"librispeech_conformer{name}")._model.config
        for name in ("", "_gelu", "_layernorm", "_attention_temperature")
    }
    assert configs == {
        "": conformer.Config(),
        "_gelu": conformer.Config(activation="gelu"),
        "_layernorm": conformer.Config(use_post_layer_norm=False),
        "_attention_temperature": conformer.Config(attention_temperature=1.6),
    }


@pytest.mark.parametrize(
    ("settings", "first", "last"),
    [
        (
            {},
            [1.36258, 0.15647, -1.36874, 2.15116, 0.64172, -0.07992, -0.65637],
            [1.0158, 0.44565, -1.78656, 2.23059, 0.41002, 0.06213, -0.14372],
        ),
        (
            {"attention_temperature": 1.6, "activation": "gelu", "use_post_layer_norm": False},
            [1.23601, 2.19965, 1.63405, 0.68189, 1.32192, 0.13186, 0.65751],
            [1.17014, 1.62622, 1.63722, 0.52046, 1.11461, 0.23170, 0.57273],
        ),
    ],
)
def test_logits_of_the_first_and_the_last_frame(settings, first, last):
    """As written down when parts by hand were right, and tests/algoperf/parity found those of
    AlgoPerf's own model."""
    audio = np.random.RandomState(0).randint(-9000, 9000, (1, 6000)).astype(np.float32)
    paddings = (np.arange(6000) >= 4000).astype(np.float32)[None]
    model = conformer.Conformer(dataclasses.replace(TINY, **settings))
    variables = _drawn(jax.eval_shape(model.init, jax.random.key(1), audio, paddings))
    logits, left = jax.jit(model.apply)(variables, audio, paddings)
    np.testing.assert_array_equal(left, [[0] * 7 + [1] * 2])
    np.testing.assert_allclose(logits[0, [0, 6]], [first, last], atol=3e-4)


def test_query_scale_by_hand():
    """softplus(ln(e^2 - 1)) = 2, so the logits are multiplied by 2/ln 2; zeros change nothing."""
    q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 5, 2, 4))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, q, k, v):
            return conformer.QueryScaledAttention(1.6, None, 0, None, {})(q, k, v)

    plain, scaled = (
        {"QueryScaler_0": {"scale": jnp.full(4, s)}} for s in (0.0, np.log(np.e**2 - 1))
    )
    for params, factor in ((plain, 1.0), (scaled, 2 / np.log(2))):
        expected = 1.6 * nn.dot_product_attention(q * factor, k, v)
        np.testing.assert_allclose(Model().apply({"params": params}, q, k, v), expected, atol=1e-6)


def test_batch_norm_skips_padding():
    """Valid frames 1, 3 and 5: mean 3, variance 8/3; the padded 100 counts nowhere."""
    norm = conformer_layers.BatchNorm(momentum=0.9)
    inputs = jnp.asarray([[[1.0], [3.0]], [[5.0], [100.0]]])
    paddings = jnp.asarray([[0.0, 0.0], [0.0, 1.0]])
    first = norm.init(jax.random.key(0), inputs, paddings, True, False)
    np.testing.assert_array_equal(first["batch_stats"]["mean"], [0.0])
    output, moved = norm.apply(first, inputs, paddings, True, False, mutable=["batch_stats"])
    deviation = np.sqrt(8 / 3 + 1e-3)
    np.testing.assert_allclose(output[..., 0], [[-2 / deviation, 0], [2 / deviation, 0]], atol=1e-6)
    assert float(moved["batch_stats"]["mean"][0]) == pytest.approx(0.3)
    assert float(moved["batch_stats"]["var"][0]) == pytest.approx(0.9 + 0.1 * 8 / 3)
    kept = norm.apply(first, inputs, paddings, False, False, mutable=["batch_stats"])[1]
    assert jax.tree.all(jax.tree.map(jnp.array_equal, kept, {"batch_stats": first["batch_stats"]}))
    running = norm.apply({**first, **moved}, inputs, paddings, False, True)
    expected = (5 - 0.3) / np.sqrt(0.9 + 0.8 / 3 + 1e-3)
    assert float(running[1, 0, 0]) == pytest.approx(expected, rel=1e-6)
    nothing = norm.apply(first, inputs, jnp.ones((2, 2)), True, False, mutable=["batch_stats"])
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(nothing))


def test_subsampling_masks_and_halves():
    """7 frames become 4, of which padding from frame 5 on leaves 3; a kernel of ones sums."""
    layer = conformer_layers.Conv2dSubsampling(1)
    params = {"kernel": jnp.ones((3, 3, 1, 1)), "bias": jnp.zeros(1)}
    paddings = jnp.asarray([[0.0] * 5 + [1.0] * 2])
    outputs, left = layer.apply({"params": params}, jnp.ones((1, 7, 4, 1)), paddings)
    np.testing.assert_array_equal(left, [[0, 0, 0, 1]])
    # An odd length gets a zero row on both ends, an even one only at the far end.
    expected = np.outer([2, 3, 3, 0], [3, 2])
    np.testing.assert_array_equal(outputs[0, :, :, 0], expected)


def test_positions_by_hand():
    """Four dimensions: rates 1 and 1e-4, sines first; an odd fifth is 0."""
    signal = conformer_layers.sine_positions(3, 5)
    two = [np.sin(2), np.sin(2e-4), np.cos(2), np.cos(2e-4), 0]
    np.testing.assert_allclose(signal[0], [0, 0, 1, 1, 0], atol=1e-7)
    np.testing.assert_allclose(signal[2], two, atol=1e-6)


def _audio(samples, valid):
    audio = jax.random.normal(jax.random.key(0), (1, valid)) * 3000
    audio = jnp.pad(audio, ((0, 0), (0, samples - valid)), constant_values=12345.0)
    return audio, (jnp.arange(samples) >= valid).astype(jnp.float32)[None]


@pytest.fixture(scope="module")
def variables():
    """Random parameters and statistics: drawn by NumPy, so that nothing is compiled for them."""
    model = conformer.Conformer(TINY)
    return _drawn(jax.eval_shape(model.init, jax.random.key(1), *_audio(4000, 4000)))


def _drawn(shapes):
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: jnp.asarray(np.abs(random.normal(0.2, 0.3, leaf.shape)), jnp.float32), shapes
    )


def test_more_padding_changes_nothing(variables):
    """Valid frames of 4000 samples are the same in 6000 and in 6000 + 8 frames of samples.

    By multiples of 4 frames: strided convolutions centre odd and even lengths differently. Outside
    training a dropout rate changes nothing either.
    """
    model = conformer.Conformer(TINY)
    short, long = (
        jax.jit(model.apply)(variables, *_audio(n, 4000), dropout_rate=rate)
        for n, rate in ((6000, 0.0), (6000 + 8 * 160, 0.5))
    )
    frames = int((short[1] == 0).sum())
    assert frames == int((long[1] == 0).sum()) == 7
    np.testing.assert_allclose(short[0][:, :frames], long[0][:, :frames], atol=1e-5)
    assert float(jnp.ptp(short[0][:, :frames], axis=1).max()) > 0.1


def test_bfloat16_keeps_statistics_and_logits_wide(variables):
    (half, state), (wide, _) = (
        jax.jit(_trained, static_argnums=0)(jnp.dtype(name), variables, *_audio(4000, 3000))
        for name in ("bfloat16", "float32")
    )
    assert half.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {jnp.dtype("float32")}
    error = float(jnp.abs(half - wide).max())
    assert 0 < error < 0.05 * float(jnp.abs(wide).max())


def _trained(dtype, variables, audio, paddings):
    """Logits and state of a training-mode pass."""
    model = conformer.Conformer(dataclasses.replace(TINY, dtype=dtype))
    (logits, _), state = model.apply(
        variables, audio, paddings, train=True, mutable=["batch_stats"],
        update_batch_norm=True, use_running_average=False,
    )  # fmt: skip
    return logits, state


# Compiled as a whole: operation by operation the tests take three times as long.
log_mel = jax.jit(spectrogram.log_mel)


def test_features_of_a_tone():
    """Three frames and six bands, as plain NumPy in float64 gave them frame by frame."""
    time = np.arange(1361) / 16_000
    noise = np.random.RandomState(0).randint(-300, 300, 1361)
    audio = (8000 * np.sin(2 * np.pi * 1000 * time)).round() + noise
    features, paddings = log_mel(jnp.asarray(np.stack([audio] * 2)), jnp.zeros((2, 1361)))
    assert (features.shape, features.dtype) == ((2, 7, 80), jnp.float32)
    expected = [
        [-1.1376, -1.2213, -0.7619, 3.4409, 0.4157, 1.4022],
        [-1.0733, -1.2213, -0.8415, 3.4432, 0.436, 1.2294],
        [-1.1376, -1.2213, -0.8909, 3.4444, 0.4621, 1.3686],
    ]
    some = np.asarray(features)[1, [0, 3, 6]][:, [0, 1, 10, 24, 50, 79]]
    np.testing.assert_allclose(some, expected, atol=2e-4)
    assert not paddings.any()
    # 1000 Hz is 1000 mel: (1000 - 185.2)/(2788.4 - 185.2)·81 - 1, the 24th band from 0.
    level = features * jnp.asarray(spectrogram._STDDEV) + jnp.asarray(spectrogram._MEAN)
    assert int(level[0, 3].argmax()) == 24


@pytest.mark.parametrize(
    ("power", "dtype"),
    [(spectrogram._power, "float32"), (spectrogram._power_by_products, "float64")],
)
def test_power_against_float64(power, dtype):
    """Of noise and of tones that fade by 10⁴ over 50 windows: by the FFT, and as a TPU takes it.

    A TPU's waves are float32. Their sums are float64 here: a CPU's in float32 are 1.6e-6 off with
    jaxlib 0.10.2, 6.1e-6 with 0.12.0.
    """
    time, random = np.arange(400) / 16_000, np.random.default_rng(0)
    tones = np.sin(2000 * np.pi * time) * np.logspace(-4, 0, 50)[:, None]
    windows = np.concatenate([random.normal(size=(200, 400)), tones]).astype(np.float32)
    exact = np.abs(np.fft.rfft(windows.astype(float), 512)) ** 2
    with reference.float64():
        error = np.abs(np.asarray(power(jnp.asarray(windows, dtype)), float) - exact)
    assert (error / exact.max(axis=1, keepdims=True)).max() < 5e-6


@pytest.mark.parametrize(("platform", "transforms"), [("tpu", 0), ("cpu", 1), ("cuda", 1)])
def test_a_tpu_multiplies_where_others_transform(platform, transforms):
    traced = log_mel.trace(*[jax.ShapeDtypeStruct((2, 1361), jnp.float32)] * 2)
    program = traced.lower(lowering_platforms=(platform,)).as_text()
    assert program.count("stablehlo.fft") == transforms


def test_padding():
    """A frame is padding if all its 401 samples are; what padded samples hold is not heard."""
    audio = jax.random.normal(jax.random.key(0), (2, 1361)) * 9999
    paddings = jnp.stack([jnp.arange(1361) >= 320, jnp.arange(1361) >= 321]).astype(jnp.float32)
    features, left = log_mel(audio, paddings)
    np.testing.assert_array_equal(left, [[0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1]])
    with pytest.raises(ValueError, match="400 samples; at least 401"):
        spectrogram.log_mel(jnp.zeros((1, 400)), jnp.zeros((1, 400)))
    silence = (np.log(1e-5) - np.array(spectrogram._MEAN)) / np.array(spectrogram._STDDEV)
    np.testing.assert_allclose(features[0, 2], silence, rtol=1e-5)


def _masked(masks, lengths, key, frames=100, bands=80):
    paddings = (jnp.arange(frames) >= jnp.asarray(lengths)[:, None]).astype(jnp.float32)
    features = jnp.ones((len(lengths), frames, bands))
    return np.asarray(_augmented(masks, features, paddings, jax.random.key(key))) == 0


@functools.partial(jax.jit, static_argnums=0)
def _augmented(masks, features, paddings, key):
    return conformer_layers.SpecAug(masks).apply({}, features, paddings, rngs={"dropout": key})


def test_time_spans_are_within_bounds():
    """One span of at most 20 % of each example's own frames, whole frames, before its end."""
    masks = conformer_layers.SpecAugMasks(time_masks=1, time_ratio=0.2, frequency_masks=0)
    lengths = [100, 40, 3, 0] * 50
    hidden = _masked(masks, lengths, 0)
    np.testing.assert_array_equal(hidden.any(-1), hidden.all(-1))
    spans = hidden[..., 0]
    counts = spans.sum(1).reshape(50, 4)
    assert counts.max(0).tolist()[:2] == [19, 7]  # int(u·20) and int(u·8) with u below 1
    assert counts[:, 2:].max() == 0
    for row, length in zip(spans, lengths, strict=True):
        places = np.flatnonzero(row)
        assert not places.size or np.ptp(places) == places.size - 1
        assert not row[length:].any()
    first = [int(np.argmax(row)) for row in spans[::4] if row.any()]
    assert min(first) < 20
    assert max(first) > 70


def test_frequency_spans_are_within_bounds():
    masks = conformer_layers.SpecAugMasks(time_masks=0, frequency_masks=2, frequency_bins=27)
    hidden = _masked(masks, [100] * 100, 1, frames=5)
    np.testing.assert_array_equal(hidden.any(1), hidden.all(1))
    counts = hidden[:, 0].sum(1)
    assert 26 < counts.max() <= 52
    assert counts.min() < 10
    assert hidden[:, 0].any(0).all()


def test_no_masks_change_nothing_and_keys_change_masks():
    assert not _masked(
        conformer_layers.SpecAugMasks(time_masks=0, frequency_masks=0), [50], 0
    ).any()
    once, again, other = (_masked(conformer_layers.SpecAugMasks(), [100], key) for key in (0, 0, 1))
    assert (once == again).all()
    assert (once != other).any()
