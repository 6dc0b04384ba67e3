"""What every test needs."""

import os
import pathlib

import pytest

# Before JAX loads: tests of data-parallel sharding want several devices, and must not see a GPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
REPOSITORY = pathlib.Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> pathlib.Path:
    """The folder of shared reference material beside the checkout; skips where it is absent."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no {folder}: reference logs and parameter lists are not part of the project")
    return folder
