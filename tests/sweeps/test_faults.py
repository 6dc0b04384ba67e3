"""Jobs killed while they save, raced, frozen past their lease, moved to other cores."""

import os
import pathlib
import signal

import pytest

from attention.common import files
from sweeps.records import layout, lease, status
from tests.sweeps.chaos import equality, storm

pytestmark = pytest.mark.slow

# Relative to an undisturbed run, for a trial that went on with another number of cores. Measured
# with one and two cores: see the test.
MOVED_TOLERANCE = 1e-4


def _same(trial, undisturbed):
    """Raises where a trial of the `drivers` study is not as it is undisturbed."""
    other = undisturbed / trial.relative_to(trial.parents[3])
    assert equality.trial_problems(trial, other) == []


def test_killed_while_it_writes_a_checkpoint(drivers, undisturbed, worker, one_core, wait_until):
    """SIGKILL while orbax's temporary directory is there: back to the checkpoint before."""
    trial = drivers.materialise()
    for _ in range(10):  # the directory may become whole before the signal comes
        job = worker(trial, one_core)
        job.wait_for("eval")
        wait_until(lambda: storm.is_saving(trial), every=0)
        job.kill()
        if storm.is_saving(trial):
            break
    assert storm.is_saving(trial)
    assert status.read(trial)["state"] == "pending"
    assert worker(trial, one_core).end()[0] == "done"
    assert not storm.is_saving(trial)
    _same(trial, undisturbed)


def _contents(trial: pathlib.Path, without: str) -> dict[str, bytes]:
    """Returns every whole file of a trial except those of attempt `without`."""
    own = trial / layout.ATTEMPTS / without
    paths = (path for path in trial.rglob("*") if path.is_file() and own not in path.parents)
    return {
        str(path.relative_to(trial)): path.read_bytes()
        for path in paths
        if not path.name.endswith(files.SUFFIX)  # a draft, which its writer removes
    }


@pytest.mark.parametrize("moment", [pytest.param("training", marks=pytest.mark.nightly), "saving"])
def test_frozen_worker_wakes_after_its_lease_and_writes_nothing(
    drivers, undisturbed, worker, one_core, wait_until, monkeypatch, moment
):
    """SIGSTOP; the lease passes; another worker finishes the trial; SIGCONT."""
    monkeypatch.setattr(lease, "EXPIRES_AFTER_S", 3.0)
    trial = drivers.materialise()
    zombie = worker(trial, one_core, ATTNPERF_LEASE_S="3")
    zombie.wait_for("train")
    if moment == "saving":
        wait_until(lambda: storm.is_saving(trial), every=0)
    zombie.process.send_signal(signal.SIGSTOP)
    first = trial / layout.ATTEMPTS / "1"
    wait_until(lambda: not lease.is_alive(first))
    assert status.read(trial)["reason"].startswith("interrupted")
    assert worker(trial, one_core, ATTNPERF_LEASE_S="3").end()[0] == "done"
    _same(trial, undisturbed)
    before, own = _contents(trial, "1"), {path.name for path in first.iterdir()}
    zombie.process.send_signal(signal.SIGCONT)
    assert zombie.end()[0] == "lost"
    after = _contents(trial, "1")
    assert {name: after.get(name) for name in before} == before
    # Orbax's threads may finish the checkpoint that they were writing. It replaces nothing, and
    # counts only where the trial's rows lead up to it: see sweeps.training.checkpoints.
    added = after.keys() - before.keys()
    assert not added or moment == "saving"
    assert all(name.startswith(f"{layout.CHECKPOINTS}/4") for name in added)
    assert {path.name for path in first.iterdir()} - own == {lease.OUTCOME}
    assert layout.read_json(first / lease.OUTCOME)["outcome"] == "lost"
    _same(trial, undisturbed)
    assert status.read(trial)["state"] == "done"


@pytest.mark.nightly
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPU cores")
def test_moved_to_another_number_of_cores(drivers, undisturbed, worker, one_core):
    """Not bit for bit, but within the tolerance; the record says why."""
    trial = drivers.materialise()
    first = worker(trial, one_core)
    first.wait_for("eval", 2)
    first.kill()
    assert worker(trial).end()[0] == "done"
    cores = len(os.sched_getaffinity(0))
    own = one_core.count(",") + 1
    assert layout.read_json(trial / "meta_data_0.json")["cpu_count"] == own
    assert layout.read_json(trial / "meta_data_1.json")["cpu_count"] == cores
    worst = 0.0
    expected = equality.curves(undisturbed / trial.relative_to(drivers.study))
    for rows, expected_rows in zip(equality.curves(trial), expected, strict=True):
        for row, other in zip(rows, expected_rows, strict=True):
            assert row.keys() == other.keys()
            pairs = [(float(row[k]), float(other[k])) for k in row if row[k] or other[k]]
            worst = max([worst, *(abs(a - b) / max(abs(b), 1e-8) for a, b in pairs)])
    assert worst < MOVED_TOLERANCE
