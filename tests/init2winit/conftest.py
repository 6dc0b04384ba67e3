"""init2winit: its checkout where one is named, and small models that are always there."""

import importlib
import os
import pathlib
import sys

import pytest

STAND_IN = pathlib.Path(__file__).parent / "stand_in"


@pytest.fixture(scope="session")
def tree():
    """The directory of the checkout that ATTNPERF_INIT2WINIT_DIR names."""
    directory = os.environ.get("ATTNPERF_INIT2WINIT_DIR")
    if not directory:
        pytest.skip("no checkout of init2winit: ATTNPERF_INIT2WINIT_DIR is not set")
    return pathlib.Path(directory)


@pytest.fixture
def models(monkeypatch):
    """A registry of models as init2winit's; forgotten after the test."""
    monkeypatch.syspath_prepend(STAND_IN)
    yield importlib.import_module("init2winit.model_lib.models")
    for name in [name for name in sys.modules if name.split(".")[0] == "init2winit"]:
        del sys.modules[name]
