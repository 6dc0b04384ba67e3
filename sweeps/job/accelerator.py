"""JAX as a job's trials need it: its persistent cache, the platform that the job was promised."""

import socket
import sys

from sweeps.launchers import local
from sweeps.records import provenance


def set_up(cache_dir: str, platform: str) -> None:
    """Loads JAX with its persistent compilation cache on for every program, however small.

    platform: 'cpu', 'gpu' or 'tpu', '' for whatever JAX finds. Raises ValueError if JAX finds
    another one.
    """
    import jax

    from attention.common import devices

    local.cache_programs(cache_dir)
    provenance.pin_options()
    devices.default_platform()
    if platform not in ("", jax.default_backend()):
        remedy = "JAX_PLATFORMS must name it, or be unset"
        if platform != "cpu":  # an extra of that name brings its driver
            remedy = (
                f"pip install '.[{platform}]' in {sys.prefix}, see that its driver works and "
                "that the job was given the device; or set JAX_PLATFORMS=cpu to insist on the CPU"
            )
        raise ValueError(
            f"{socket.gethostname()}: a {platform} was expected here, but JAX {jax.__version__} "
            f"finds {', '.join(map(str, jax.devices()))}: {remedy}"
        )
