"""Whole studies through a real Ray, with faults: nothing lost, nothing counted twice, bit-equal."""

import os
import signal

import pytest

from sweeps.records import layout, lease, measurements
from tests.sweeps.chaos import equality

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow]
POINTS = range(4)
ACTIVE = {"PENDING", "RUNNING"}


def _training(drivers, point):
    """Returns the lease of a trial whose first attempt has begun to train, else None."""
    attempt = drivers.trial(point) / layout.ATTEMPTS / "1"
    outcomes = equality.outcomes(drivers.trial(point))
    if not (attempt / measurements.RESUMED).exists() or outcomes != ["killed"]:
        return None
    record = layout.read_json(attempt / lease.LEASE)
    return record if lease.process_start(record["pid"]) == record["pid_start"] else None


def test_job_node_and_driver_killed(drivers, undisturbed, cluster, second_node, share, wait_until):
    """One fault per trial while it trains, and the driver's end in between."""
    keys = {"ray.address": cluster.address, "ray.cpus": share, "ray.poll_seconds": 1}
    changes = {"launcher": "ray", **keys}
    raylet = second_node("second-host", jobs=1)
    api = cluster.cluster()
    wait_until(lambda: len(api.resources()) == 2, every=0.1)
    first = drivers.run(**changes)
    faults = {"job": None, "node": None}

    def strike():
        """Strikes what has begun to train; returns whether every fault has been."""
        for point in set(POINTS) - set(faults.values()):
            if (holder := _training(drivers, point)) is None:
                continue
            # It must not end between the blow and its effect: a job's processes outlive it by 1 s.
            os.kill(holder["pid"], signal.SIGSTOP)
            if _training(drivers, point) is None:
                os.kill(holder["pid"], signal.SIGCONT)
                continue
            if holder["host"] == "second-host":
                os.kill(raylet, signal.SIGKILL)
                faults["node"] = point
            elif faults["job"] is None:
                os.kill(holder["pid"], signal.SIGKILL)
                faults["job"] = point
            else:
                os.kill(holder["pid"], signal.SIGCONT)
        return None not in faults.values()

    wait_until(strike)
    first.kill()
    first.wait()
    drivers.finish(drivers.run(**changes))
    assert equality.problems(drivers.study, undisturbed) == []
    for point in faults.values():
        assert equality.outcomes(drivers.trial(point)) == ["killed", "done"]
    handles = drivers.handles()
    assert min(len(handles[drivers.trial(point)]) for point in faults.values()) >= 2
    others = set(POINTS) - set(faults.values())
    assert {len(handles[drivers.trial(point)]) for point in others} == {1}  # they were taken up
    wait_until(lambda: not {j.status for j in api.jobs().values()} & ACTIVE)
