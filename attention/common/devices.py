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
        raise ValueError(
            f"JAX finds no device with JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')!r}; "
            f"unset it, or set it to cpu. {error}"
        ) from error
