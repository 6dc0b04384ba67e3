"""What every test needs."""

import os
import pathlib
from typing import Any

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


@pytest.fixture
def sigmoid(monkeypatch: pytest.MonkeyPatch) -> str:
    """A mixer that is no softmax: its rows sum to anything, and it does not say its weights."""
    from attention import table, variant

    monkeypatch.setitem(table.MIXERS, "sigmoid", table.Entry("sigmoid(QKᵀ/√D)·V"))
    monkeypatch.setitem(variant.ATTEND, "sigmoid", _sigmoid)
    return "sigmoid"


def _sigmoid(query: Any, key: Any, value: Any, *, scale: float, mask: Any, **settings: Any) -> Any:
    import jax
    import jax.numpy as jnp

    weights = jax.nn.sigmoid(scale * jnp.einsum("...thd,...shd->...hts", query, key))
    weights = weights if mask is None else jnp.where(mask, weights, 0)
    return jnp.einsum("...hts,...shd->...thd", weights, value)
