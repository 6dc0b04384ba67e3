"""What JAX computes on. Loads nothing but JAX."""

import os

import jax


def default_platform() -> str:
    """Returns what JAX computes on here: 'cpu', 'gpu' or 'tpu'.

    Raises ValueError where JAX finds no device, as with JAX_PLATFORMS=cuda on a login node.
    """
    try:
        return jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # an assertion for cuda without its plugin
        asked = os.environ.get("JAX_PLATFORMS", "")
        raise ValueError(
            f"JAX finds no device with JAX_PLATFORMS={asked!r}; unset it, or set it to cpu. {error}"
        ) from error
