"""Matmul precision: what products of float32 arrays are computed in. Standard library only.

The names are those of jax.default_matmul_precision, which says it for every matrix product and
convolution that is given no precision of its own: `bfloat16` is jax.lax.Precision.DEFAULT,
`tensorfloat32` HIGH (and 'high'), `float32` HIGHEST (and 'highest'). `default` leaves it to the
platform, which is DEFAULT as well. What each platform makes of them, by jax.lax.Precision's
docstring (docs.jax.dev/en/latest/jax.lax.html#jax.lax.Precision): a CPU float32 whatever it is
told; a GPU TensorFloat-32 (10 bits of mantissa) where it has it, from Ampere on, for all but
`float32`; a TPU one product of bfloat16 numbers, or a sum of 3 or 6 of them. Sums are float32.
Arrays that are bfloat16 themselves are multiplied as they are, under every name.
"""

NAMES = ("default", "bfloat16", "tensorfloat32", "float32")
_MADE: dict[str, dict[str, str]] = {
    "default": {"cpu": "float32", "gpu": "TF32", "tpu": "bfloat16"},
    "bfloat16": {"cpu": "float32", "gpu": "TF32", "tpu": "bfloat16"},
    "tensorfloat32": {"cpu": "float32", "gpu": "TF32", "tpu": "3 bfloat16 products"},
    "float32": {"cpu": "float32", "gpu": "float32", "tpu": "6 bfloat16 products"},
}
# NVIDIA's compute capability from which on there is TF32.
_AMPERE = 8.0


def made_of(name: str, platform: str, capability: str = "") -> str:
    """Returns what a platform ('cpu', 'gpu' or 'tpu') makes of products of float32 arrays.

    capability: an NVIDIA GPU's, '9.0'; without it GPUs from Ampere on are meant. Of a platform that
    is none of the three nothing is known.
    """
    made = _MADE[name].get(platform, "not known")
    if made == "TF32" and capability:
        return made if float(capability) >= _AMPERE else "float32"
    return made


def describe(name: str, platform: str) -> str:
    """Returns one line: what every platform makes of float32, `platform` being the one at hand."""
    parts = [
        f"{made} on {device}{' (float32 before Ampere)' * (made == 'TF32')}"
        f"{' (here)' * (device == platform)}"
        for device, made in _MADE[name].items()
    ]
    return f"matmul_precision {name}: products of float32 arrays are {', '.join(parts)}"
