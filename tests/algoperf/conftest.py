"""Tests of the plugin: against our stand-in everywhere, against AlgoPerf where it is installed."""

import os
import pathlib
import sys

import pytest

from tests.algoperf import small_models
from tests.algoperf.parity import __main__ as parity
from workloads.algoperf import installation, supported

STAND_IN = pathlib.Path(__file__).parent / "stand_in"


def _forget():
    """Drops what was imported as AlgoPerf: one process holds one, a test session both in turn."""
    for name in list(sys.modules):
        if name.split(".")[0] in ("algoperf", "submission_runner", "algorithms"):
            del sys.modules[name]


@pytest.fixture
def stand_in(monkeypatch):
    """The stand-in as an Installation, active during the test."""
    kept = {
        name: module
        for name, module in sys.modules.items()
        if name.split(".")[0] in ("algoperf", "submission_runner", "algorithms")
    }
    _forget()
    monkeypatch.setattr(sys, "path", list(sys.path))
    table = small_models.table(small_models.OF_STAND_IN)
    monkeypatch.setattr(supported, "SUPPORTED", table)
    yield installation.find(STAND_IN)
    _forget()
    sys.modules.update(kept)


@pytest.fixture(scope="session")
def algoperf():
    """The real AlgoPerf as an Installation; skips where there is none, fails where one is named."""
    try:
        found = installation.find()
        found.workloads_module()
    except ImportError as error:
        if os.environ.get(installation.DIRECTORY_VARIABLE):
            raise
        pytest.skip(f"the real AlgoPerf is not installed: {error}")
    return found


@pytest.fixture(scope="session")
def reference(algoperf):
    """The real AlgoPerf ready to be compared with; skips as `algoperf`."""
    del algoperf
    return parity.prepared()
