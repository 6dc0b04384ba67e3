"""Several processes on a TPU host: the chips, grids and ports of each."""

import importlib.util
import math
import os
import subprocess
import sys

import pytest

from sweeps.launchers import local, tpu_host
from sweeps.monitoring import hardware_check

_LOADS = """
import sys
from jax.experimental import topologies
topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
print("loaded", flush=True)
sys.stdin.read()
"""


def _chips(count):
    return [f"dev/accel{number}" for number in range(count)]


def _environments(workers):
    slots = local.Slots({"workers": workers, "pin": True})
    return [slots.environment(slot) for slot in range(workers)]


@pytest.mark.parametrize(
    ("count", "workers", "own", "grid"),
    [
        (4, 4, ["0", "1", "2", "3"], "1,1,1"),
        (4, 3, ["0", "1", "2"], "1,1,1"),
        (4, 2, ["0,1", "2,3"], "1,2,1"),
        (8, 2, ["0,1,2,3", "4,5,6,7"], "2,2,1"),
    ],
)
def test_workers_have_neighbouring_chips(host, count, workers, own, grid):
    """As JAX's own tests divide a host: none waits for another, or ends at libtpu's lock file."""
    host(*_chips(count))
    found = _environments(workers)
    assert [one["TPU_VISIBLE_CHIPS"] for one in found] == own
    for one in found:
        assert one["TPU_CHIPS_PER_PROCESS_BOUNDS"] == grid
        assert one["TPU_PROCESS_BOUNDS"] == "1,1,1"
        assert one["TPU_PROCESS_ADDRESSES"] == f"localhost:{one['TPU_PROCESS_PORT']}"
        assert one["CLOUD_TPU_TASK_ID"] == "0"
        assert one["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "1"


def test_a_worker_alone_has_the_host_as_it_is(host):
    host(*_chips(4))
    (found,) = _environments(1)
    assert found["TPU_VISIBLE_CHIPS"] == "0,1,2,3"
    assert "TPU_PROCESS_BOUNDS" not in found


def test_chips_that_cannot_be_divided_are_refused(host):
    host(*_chips(6))
    with pytest.raises(
        ValueError, match=r"3 TPU chips for each worker; 1, 2, 4, 8 can be .*local\.w"
    ):
        local.Slots({"workers": 2, "pin": True})


@pytest.mark.parametrize(
    ("count", "kind", "grid"),
    [
        (4, "TPU v4", "2,1,1"),
        (4, "TPU v5 lite", "2,1,1"),
        (8, "TPU v5 lite", "2,1,1"),
        (8, "TPU v6 lite", "1,2,1"),
    ],
)
def test_two_processes_have_a_half_each(count, kind, grid):
    found, halves = tpu_host.halves([str(number) for number in range(count)], kind)
    assert found == grid
    first, second = (
        tpu_host.variables(own, [7001, 7002], index, grid) for index, own in enumerate(halves)
    )
    assert first["TPU_PROCESS_ADDRESSES"] == "localhost:7001,localhost:7002"
    assert (first["TPU_PROCESS_PORT"], second["TPU_PROCESS_PORT"]) == ("7001", "7002")
    assert (first["CLOUD_TPU_TASK_ID"], second["CLOUD_TPU_TASK_ID"]) == ("0", "1")
    sizes = (first["TPU_PROCESS_BOUNDS"], first["TPU_CHIPS_PER_PROCESS_BOUNDS"])
    assert math.prod(int(one) for size in sizes for one in size.split(",")) == count


@pytest.mark.parametrize("count", [1, 2])
def test_a_small_host_has_no_halves(host, count):
    host(*_chips(count))
    here = {"platform": "tpu", "kind": "TPU v6 lite", "count": count}
    (result,) = hardware_check._processes(here)
    assert result.verdict == "not here"
    assert f"it has {count}" in result.summary


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu is not installed: pip install -e '.[compile-tpu]'",
)
def test_libtpu_lets_both_in():
    """Two processes that have it loaded at once, by the real library, without a TPU."""
    halves = [[str(number) for number in range(first, first + 4)] for first in (0, 4)]
    ours = [tpu_host.variables(half, local.free_ports(1)) for half in halves]
    without = [{k: v for k, v in one.items() if not k.startswith("ALLOW")} for one in ours]
    assert _loaded(ours) == ["loaded", "loaded"]
    assert sorted(_loaded(without)) == ["", "loaded"]  # that is what the variable is for


def _loaded(environments):
    common = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ALLOW")},
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_LOG_DIR": "disabled",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _LOADS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**common, **environment},
        )
        for environment in environments
    ]
    said = [process.stdout.readline().strip() for process in processes]
    for process in processes:
        process.communicate()
    return said
