"""The log-mel front end against plain NumPy in float64, and SpecAugment's bounds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.verification import reference
from workloads.speech import conformer_layers, spectrogram

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
