"""init2winit: its checkout where one is named, and a stand-in that is always there."""

import importlib
import os
import pathlib
import shutil
import sys

import pytest

from workloads.init2winit import installation, missing_symbols

STAND_IN = pathlib.Path(__file__).parent / "stand_in"
# What stands in for TensorFlow.
LIBRARIES = pathlib.Path(__file__).parent / "libraries"


@pytest.fixture(scope="session")
def tree():
    """The checkout that ATTNPERF_INIT2WINIT_DIR names."""
    if not os.environ.get(installation.DIRECTORY_VARIABLE):
        pytest.skip(f"no checkout of init2winit: {installation.DIRECTORY_VARIABLE} is not set")
    return installation.find()


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A package of init2winit's layout with the same gaps, copied, so that a test may change it.

    What a test imports of it, and what stands in for other modules, is forgotten after it.
    """
    root = tmp_path / "checkout"
    shutil.copytree(STAND_IN, root)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in sys.modules if name.split(".")[0] == "init2winit"]:
        monkeypatch.delitem(sys.modules, name)
    yield installation.find(root)
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "init2winit" or isinstance(module, missing_symbols.RaisingModule):
            del sys.modules[name]


@pytest.fixture
def tensorflow(monkeypatch):
    """The few names of TensorFlow that init2winit's gaps have to do with."""

    def loaded():
        return [name for name in sys.modules if name.split(".")[0] == "tensorflow"]

    for name in loaded():
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(LIBRARIES)
    yield importlib.import_module("tensorflow")
    for name in loaded():
        del sys.modules[name]
