"""JAX as a job's trials need it: its persistent cache, the platform that the job was promised."""

import os
import socket
import sys

from sweeps.monitoring import jax_calls
from sweeps.records import provenance


def set_up(cache_dir: str, platform: str) -> None:
    """Loads JAX with its persistent compilation cache on for every program, however small.

    platform: 'cpu', 'gpu' or 'tpu', '' for whatever JAX finds. Raises ValueError where JAX finds
    another one.
    """
    import jax

    from attention import devices

    jax.config.update("jax_compilation_cache_dir", cache_dir)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
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


def set_up_other_trainer(cache_dir: str, platform: str) -> None:
    """Has the processes that this one starts use the cache, and leaves the devices to them.

    Raises ValueError as `set_up`, of one such process: they would compute on a CPU without a word.
    Raises ChildProcessError where JAX ends that process.
    """
    os.environ["JAX_COMPILATION_CACHE_DIR"] = cache_dir
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    for name in provenance.PINNED:
        os.environ.pop(name.upper(), None)
    if platform:
        jax_calls.call(set_up, cache_dir=cache_dir, platform=platform)
