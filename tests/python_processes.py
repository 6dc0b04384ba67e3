"""Programs of tests that run in a Python of their own, with so many CPU devices."""

import os
import pathlib
import subprocess
import sys

_REPOSITORY = pathlib.Path(__file__).resolve().parents[1]


def start_python(
    code: str, devices: int = 1, *arguments: str, **environment: str
) -> subprocess.Popen[str]:
    """Starts a program that may import the packages and the tests."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=_REPOSITORY,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
