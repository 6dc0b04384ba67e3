"""Tests of the plugin: against our stand-in everywhere, against AlgoPerf where it is installed."""

import os
import pathlib
import sys

import pytest

from tests.algoperf import small_models
from workloads import algoperf_specs
from workloads.algoperf import installation

STAND_IN = pathlib.Path(__file__).parent / "stand_in"


def _forget():
    """Drops and returns what was imported as AlgoPerf, of which a process can hold one alone."""
    packages = ("algoperf", "submission_runner", "algorithms")
    names = [name for name in sys.modules if name.split(".")[0] in packages]
    return {name: sys.modules.pop(name) for name in names}


@pytest.fixture
def stand_in(monkeypatch):
    """The stand-in as an Installation, active during the test."""
    imported = _forget()
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(
        algoperf_specs, "INJECTION_POINTS", small_models.table(small_models.OF_STAND_IN)
    )
    yield installation.find(STAND_IN)
    _forget()
    sys.modules.update(imported)


@pytest.fixture(scope="session")
def algoperf():
    """The real AlgoPerf as an Installation; skips where there is none, fails where one is named."""
    try:
        checkout = installation.find()
        checkout.module("algoperf.workloads.workloads")
    except ImportError as error:
        if os.environ.get(installation.DIRECTORY_VARIABLE):
            raise
        pytest.skip(f"the real AlgoPerf is not installed: {error}")
    return checkout


@pytest.fixture(scope="session")
def reference(algoperf):
    """The real AlgoPerf ready to be compared with; skips as `algoperf`."""
    installation.define_framework()
    return algoperf
