"""What every test needs."""

import ctypes
import fcntl
import gc
import importlib.metadata
import os
import pathlib
import shutil
import signal
import sys
import types
from typing import Any

import hypothesis
import pytest

# No example has a deadline: on two cores that three processes share, any may wait.
hypothesis.settings.register_profile("shared cores", deadline=None)
hypothesis.settings.load_profile("shared cores")
# Before JAX loads: tests of data-parallel sharding want several devices, and must not see a GPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling is most of the tests' time, and most of that are LLVM's passes and setting up what emits
# fusions, 30 ms a program: without both the fast tests take 23 CPU-min instead of 35. The programs
# are the same; test_numerics.py asks `attention check` for the limits as users compile them. `make
# test-slow` has flags of its own. From jaxlib 0.11.2 on the second flag is unknown, and an unknown
# flag ends a process.
_FLAGS = "--xla_backend_optimization_level=0"
if tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) < (0, 11):
    _FLAGS += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", _FLAGS)
REPOSITORY = pathlib.Path(__file__).resolve().parents[1]


def pytest_configure(config):
    """One compilation cache for all processes of all runs: compiling is most of the tests' time.

    Its key holds the program and the libraries' versions; `make clean` removes it.
    """
    # Tests neither wait for the devices of a real study nor for those of another process of tests.
    os.environ["ATTNPERF_LOCK_NAMESPACE"] = f"test-{os.getpid()}"
    # A shell has jobs in its background ignore Ctrl-C, which processes that tests start inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput") and hasattr(config, "cache"):
        folder = config.cache.mkdir("xla")
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
        # The default of 1 s would leave out nearly every program of a test.
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def pytest_collection_modifyitems(items):
    """A nightly test is a slow one, too: `-m "not slow"` leaves it out."""
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def shared() -> pathlib.Path:
    """The folder of shared reference material beside the checkout; skips where it is absent."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no {folder}: reference logs and parameter lists are not part of the project")
    return folder


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> str:
    """A mixer that only our core can compute: relu(QKᵀ/√D)·V."""
    import jax

    from attention import entries, records, table
    from attention.functions import Weighting
    from attention.mixers import standard

    module: Any = types.ModuleType("attention.mixers.toy")
    weighting = Weighting(lambda logits, s: jax.nn.relu(logits))
    module.MIXER = records.Mixer(_toy, standard.weighted_mean, weighting)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    line = entries.MixerEntry("Toy", "relu(QKᵀ/√D)·V", "a test", needs=("weighting", "inside"))
    monkeypatch.setitem(table.MIXERS, "toy", line)
    return "toy"


def _toy(call: Any, leaves: Any, logits: Any) -> Any:
    import jax.numpy as jnp

    weights = jnp.where(call.mask, jnp.maximum(logits(call.query, call.key), 0), 0)
    return jnp.einsum("hts,shd->thd", weights, call.value)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """Returns a function that has a folder filled once for all processes of this run.

    `made_once(name, fill)` calls `fill(folder)` in the process that comes first, while the others
    wait for it, and returns the folder. Tests only read there.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent

    def made(name, fill):
        folder, complete = root / name, root / f"{name}.complete"
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not complete.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                fill(folder)
                complete.touch()
        return folder

    return made


# Compiled programs stay in memory as long as JAX's caches hold them: without a limit a process of
# the tests grows to 4.4 GB. The caches are emptied above this many bytes, and not again before the
# process has grown by _GROWTH_LIMIT: part of what it holds (libraries, allocators) stays.
_LIMIT = 1_600_000_000
_GROWTH_LIMIT = 300_000_000
_limit_now = [_LIMIT]


def _resident_bytes() -> int:
    pages = pathlib.Path("/proc/self/statm").read_text("ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def bounded_memory():
    """Frees compiled programs after a test when this process has grown too large."""
    yield
    if "jax" not in sys.modules or _resident_bytes() < _limit_now[0]:
        return
    import jax

    jax.clear_caches()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    _limit_now[0] = max(_LIMIT, _resident_bytes() + _GROWTH_LIMIT)
