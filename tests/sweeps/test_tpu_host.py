"""Several processes on a TPU host: the chips, grids and ports of each."""

import math

import pytest

from sweeps.compilers import hardware_check
from sweeps.launchers import local, tpu_host


def _chips(count):
    return [f"dev/accel{number}" for number in range(count)]


def _environments(workers):
    slots = local.Slots({"workers": workers, "pin": True})
    return [slots.environment(slots.share(slot)) for slot in range(workers)]


@pytest.mark.parametrize(
    ("count", "workers", "chips", "grid"),
    [
        (4, 4, ["0", "1", "2", "3"], "1,1,1"),
        (4, 3, ["0", "1", "2"], "1,1,1"),
        (4, 2, ["0,1", "2,3"], "1,2,1"),
        (8, 2, ["0,1,2,3", "4,5,6,7"], "2,2,1"),
    ],
)
def test_workers_have_neighbouring_chips(host, count, workers, chips, grid):
    """As JAX's own tests divide a host: none waits for another, or ends at libtpu's lock file."""
    host(*_chips(count))
    for environment, numbers in zip(_environments(workers), chips, strict=True):
        port = environment["TPU_PROCESS_PORT"]
        assert environment == {
            "TPU_VISIBLE_CHIPS": numbers,
            "TPU_CHIPS_PER_PROCESS_BOUNDS": grid,
            "TPU_PROCESS_BOUNDS": "1,1,1",
            "TPU_PROCESS_ADDRESSES": f"localhost:{port}",
            "TPU_PROCESS_PORT": port,
            "CLOUD_TPU_TASK_ID": "0",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }


def test_a_worker_alone_has_the_host_as_it_is(host):
    host(*_chips(4))
    assert _environments(1) == [{"TPU_VISIBLE_CHIPS": "0,1,2,3"}]


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
    layout, halves = tpu_host.halves([str(number) for number in range(count)], kind)
    assert layout == grid
    for index, half in enumerate(halves):
        variables = tpu_host.variables(half, [7001, 7002], index, grid)
        assert variables["TPU_PROCESS_ADDRESSES"] == "localhost:7001,localhost:7002"
        assert variables["TPU_PROCESS_PORT"] == f"700{index + 1}"
        assert variables["CLOUD_TPU_TASK_ID"] == str(index)
        sizes = [variables["TPU_PROCESS_BOUNDS"], variables["TPU_CHIPS_PER_PROCESS_BOUNDS"]]
        assert math.prod(int(size) for size in ",".join(sizes).split(",")) == count


@pytest.mark.parametrize("count", [1, 2])
def test_a_small_host_has_no_halves(host, count):
    host(*_chips(count))
    (result,) = hardware_check._processes({"platform": "tpu", "device_kind": "TPU v6 lite"})
    assert result.verdict == "not here"
    assert f"it has {count}" in result.summary
