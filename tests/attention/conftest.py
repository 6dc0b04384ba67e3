"""What several tests of kernels need."""

import jax
import pytest

from attention.kernels import fused
from attention.kernels.tpu import plan_tpu
from tests.attention.interpreted import PLATFORMS, interpreted


@pytest.fixture(params=PLATFORMS)
def platform(request, monkeypatch):
    """`fused` run by XLA, in blocks of 128 rows and tiles of 64."""
    monkeypatch.setattr(fused, "KERNEL", interpreted(request.param))
    monkeypatch.setattr(plan_tpu, "_most_rows", lambda *_: (128, None, True))
    monkeypatch.setattr(plan_tpu, "_TILE", 64)
    yield request.param
    jax.clear_caches()
