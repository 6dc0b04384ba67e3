"""Log-mel spectrograms of 16 kHz audio: the front end of AlgoPerf's Conformer.

Facts from algoperf/workloads/librispeech_conformer/librispeech_jax/librispeech_preprocessor.py:
frames of 25 ms every 10 ms, HTK pre-emphasis 0.97, periodic Hann window, power spectrum of a
512-point FFT, 80 mel bands from 125 to 7600 Hz, logarithm floored at 1e-5, then LibriSpeech's mean
and standard deviation per band. No parameters; float32 throughout.
"""

import jax
import jax.numpy as jnp
import numpy as np

SAMPLE_RATE = 16_000
NUM_BINS = 80
FRAME_STEP = 160
# 400 windowed samples, and one more because pre-emphasis looks one sample back.
FRAME_SIZE = 401
_BLOCKS = 3  # steps that a frame reaches into
_FFT_SIZE = 512
_PREEMPHASIS = 0.97
_LOWEST_HERTZ, _HIGHEST_HERTZ = 125.0, 7600.0
_FLOOR = 1e-5

# fmt: off
_MEAN = (
    -7.6047816, -7.1206226, -6.8864245, -6.870577, -6.966772, -7.1084094, -6.9528027, -6.783994,
    -6.619552, -6.4876266, -6.412066, -6.3940477, -6.424487, -6.399371, -6.515827, -6.7138,
    -6.8476877, -6.9885, -6.9221387, -7.1461487, -7.20404, -7.0537553, -7.3140383, -7.122325,
    -7.302514, -7.1212144, -7.2425733, -7.1730537, -7.0979414, -7.0887475, -6.984991, -6.878773,
    -6.7602754, -6.6300945, -6.514577, -6.4245057, -6.3565135, -6.3178763, -6.266077, -6.246833,
    -6.2821527, -6.190839, -6.2484355, -6.147264, -6.0924726, -6.0171003, -5.9250402, -5.8535833,
    -5.820911, -5.811893, -5.8078375, -5.771463, -5.7453732, -5.7705655, -5.776564, -5.7831674,
    -5.7954087, -5.7994823, -5.8023477, -5.804712, -5.816818, -5.88448, -5.9727106, -6.044466,
    -6.1284866, -6.2257586, -6.3157496, -6.3906116, -6.49286, -6.5498457, -6.605432, -6.650838,
    -6.669176, -6.672689, -6.6842346, -6.697458, -6.7547183, -6.7949142, -6.863421, -6.9418654,
)
_STDDEV = (
    3.4353282, 3.5962932, 3.7012472, 3.7369206, 3.7535105, 3.6936293, 3.6922498, 3.7641523,
    3.8419716, 3.8999848, 3.929424, 3.931741, 3.9139585, 3.9031599, 3.8692, 3.8155081, 3.764497,
    3.7099106, 3.6965086, 3.6003766, 3.5493226, 3.5465121, 3.450036, 3.4712813, 3.408461,
    3.4408135, 3.4104881, 3.421764, 3.4312851, 3.419921, 3.4305806, 3.4382665, 3.4580367,
    3.4817991, 3.495871, 3.5036793, 3.5047574, 3.4988735, 3.493056, 3.4822943, 3.4594305, 3.461277,
    3.4559064, 3.4755423, 3.497155, 3.5326557, 3.57052, 3.5920312, 3.5969074, 3.59135, 3.5865932,
    3.582681, 3.5837743, 3.589579, 3.5819314, 3.583787, 3.5861185, 3.588959, 3.5922148, 3.5939455,
    3.585663, 3.5884113, 3.5921023, 3.587049, 3.580657, 3.5731068, 3.5617533, 3.5498073, 3.5527375,
    3.5475366, 3.538785, 3.5256178, 3.5031836, 3.4922726, 3.4879646, 3.4725595, 3.455839,
    3.4351828, 3.4284294, 3.429917,
)
# fmt: on


def log_mel(audio: jax.Array, paddings: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns normalised features [B, T, 80] and their paddings [B, T], both float32.

    audio [B, N]: 16-bit samples as numbers in [-32768, 32767]; paddings [B, N]: 1 beyond the end.
    T = (N - 401) // 160 + 1; a frame is padding if all its samples are.
    Raises ValueError for audio shorter than one frame.
    """
    paddings = paddings.astype(jnp.float32)
    samples = audio.astype(jnp.float32) * (1.0 - paddings) * 2.0**-15
    windows = _preemphasised(frames(samples)) * jnp.asarray(_hann(), jnp.float32)
    # A TPU's Fourier transform goes from layout to layout: by the compiler for v5e the whole step
    # of librispeech_conformer_paper takes 139.8 ms with it and 130.4 by the products below.
    power = jax.lax.platform_dependent(windows, tpu=_power_by_products, default=_power)
    bands = jnp.einsum("btf,fn->btn", power, mel_weights())
    features = jnp.log(jnp.maximum(bands, _FLOOR))
    mean, stddev = jnp.asarray(_MEAN, jnp.float32), jnp.asarray(_STDDEV, jnp.float32)
    return (features - mean) / stddev, _frame_paddings(paddings)


def _power(windows: jax.Array) -> jax.Array:
    """Returns |DFT|² of windows [..., 400], zeros behind, at 257 frequencies from 0 to 8 kHz."""
    spectrum = jnp.fft.rfft(windows, _FFT_SIZE, axis=-1)
    return jnp.square(spectrum.real) + jnp.square(spectrum.imag)


def _power_by_products(windows: jax.Array) -> jax.Array:
    """Returns `_power`, by the definition of the transform in products of float32 numbers."""
    frequencies = jnp.arange(_FFT_SIZE // 2 + 1)
    turns = jnp.arange(windows.shape[-1])[:, None] * frequencies % _FFT_SIZE
    # Computed in the step: as constants they would lie in every platform's program, 1.6 MB of text.
    angles = 2 * np.pi / _FFT_SIZE * turns.astype(jnp.float32)
    real, imaginary = (
        jnp.matmul(windows, wave(angles), precision=jax.lax.Precision.HIGHEST)
        for wave in (jnp.cos, jnp.sin)
    )
    return jnp.square(real) + jnp.square(imaginary)


def frames(signal: jax.Array) -> jax.Array:
    """Returns overlapping frames [B, T, 401] of a signal [B, N], 160 samples apart.

    Frames are cut from blocks of one step each: slices, where a gather of the same samples takes
    several times as long on a CPU. Raises ValueError for a signal shorter than one frame.
    """
    blocks = _blocks(signal)
    count = blocks.shape[1] - _BLOCKS + 1
    parts = [blocks[:, first : first + count] for first in range(_BLOCKS)]
    return jnp.concatenate(parts, axis=-1)[..., :FRAME_SIZE]


def _blocks(signal: jax.Array) -> jax.Array:
    """Returns the signal's frame steps [B, T + 2, 160], zeros beyond the last frame's samples."""
    batch, size = signal.shape
    if size < FRAME_SIZE:
        raise ValueError(f"audio has {size} samples; at least {FRAME_SIZE} make one frame")
    needed = ((size - FRAME_SIZE) // FRAME_STEP + _BLOCKS) * FRAME_STEP
    signal = jnp.pad(signal[:, :needed], ((0, 0), (0, max(0, needed - size))))
    return signal.reshape(batch, -1, FRAME_STEP)


def _frame_paddings(paddings: jax.Array) -> jax.Array:
    """Returns the least padding in each frame [B, T]: min(frames(paddings)) without the frames.

    Frames would cost a CPU as much as a third of the features.
    """
    blocks = _blocks(paddings)
    whole = jnp.min(blocks[:, :-1], axis=-1)
    part = jnp.min(blocks[:, _BLOCKS - 1 :, : FRAME_SIZE - (_BLOCKS - 1) * FRAME_STEP], axis=-1)
    return jnp.minimum(jnp.minimum(whole[:, :-1], whole[:, 1:]), part)


def _preemphasised(framed: jax.Array) -> jax.Array:
    """x_0·(1 - a), then x_n - a·x_{n-1}: HTK's form, [B, T, 401] to [B, T, 400]."""
    first = framed[..., :1] * (1.0 - _PREEMPHASIS)
    return jnp.concatenate([first, framed[..., 1:-1] - _PREEMPHASIS * framed[..., :-2]], axis=-1)


def _hann() -> np.ndarray:
    """The periodic Hann window of 400 samples."""
    size = FRAME_SIZE - 1
    return 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(size) / size)


def mel_weights() -> jax.Array:
    """Returns triangular band weights [257, 80] float32, linear in mel(f) = 1127·ln(1 + f/700).

    In float32 as AlgoPerf computes them: rounded edges move weights by up to 1e-5.
    """
    frequencies = jnp.linspace(0.0, SAMPLE_RATE / 2, _FFT_SIZE // 2 + 1, dtype=jnp.float32)[1:]
    lowest, highest = _mel(_LOWEST_HERTZ), _mel(_HIGHEST_HERTZ)
    edges = jnp.linspace(lowest, highest, NUM_BINS + 2, dtype=jnp.float32)
    lower, centre, upper = edges[:-2], edges[1:-1], edges[2:]
    mel = _mel(frequencies)[:, None]
    rising, falling = (mel - lower) / (centre - lower), (upper - mel) / (upper - centre)
    weights = jnp.maximum(0.0, jnp.minimum(rising, falling))
    return jnp.pad(weights, ((1, 0), (0, 0)))  # HTK leaves the constant component out


def _mel(hertz: jax.Array | float) -> jax.Array:
    return 1127.0 * jnp.log(1.0 + hertz / 700.0)
