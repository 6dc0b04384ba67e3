"""init2winit: its checkout where one is named, and a stand-in that is always there."""

import os
import pathlib
import shutil
import sys
import types

import pytest

from workloads.init2winit import gaps, installation

STAND_IN = pathlib.Path(__file__).parent / "stand_in"


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
    before = dict(sys.modules)
    for name in [name for name in before if name.split(".")[0] == "init2winit"]:
        del sys.modules[name]
    yield installation.find(root)
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "init2winit" or isinstance(module, gaps.StandIn):
            del sys.modules[name]
    sys.modules.update(
        {name: module for name, module in before.items() if name.split(".")[0] == "init2winit"}
    )


class _GFile:
    """tf.io.gfile.GFile of local files, of which one that is missing is TensorFlow's error."""

    def __init__(self, path, mode="r"):
        self._path, self._mode = pathlib.Path(path), mode

    def __enter__(self):
        if self._mode == "r" and not self._path.is_file():
            raise sys.modules["tensorflow"].errors.NotFoundError(str(self._path))
        self._file = self._path.open(self._mode)
        return self._file

    def __exit__(self, *_):
        self._file.close()


@pytest.fixture
def tensorflow(monkeypatch):
    """The few names of TensorFlow that init2winit's gaps have to do with."""
    found, io, gfile = (
        types.ModuleType(name) for name in ("tensorflow", "tensorflow.io", "tensorflow.io.gfile")
    )
    found.__path__ = io.__path__ = []
    gfile.GFile, gfile.makedirs = _GFile, lambda path: os.makedirs(path, exist_ok=True)
    found.io, io.gfile = io, gfile
    found.errors = types.SimpleNamespace(NotFoundError=type("NotFoundError", (Exception,), {}))
    for module in (found, io, gfile):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return found
