"""What a machine or a bare container gives: CPU cores and a cache folder."""

from pathlib import Path

import pytest

from attention.common import machine
from workloads import catalog

CORES = 96


def _limits(group, quota):
    """Returns the files of a group of version 1, by name."""
    return {f"{group}/cpu.cfs_quota_us": f"{quota}\n", f"{group}/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/", {"cpu.max": "250000 100000"}, 3),
        ("0::/", {"cpu.max": "max 100000"}, CORES),
        ("0::/", {"cpu.max": "100000000 100000"}, CORES),
        ("0::/", {}, CORES),
        ("0::/", {"cpu.max": "nonsense"}, CORES),
        ("0::/a/b", {"a/cpu.max": "400000 100000", "a/b/cpu.max": "max 100000"}, 4),
        ("0::/a/b", {"a/cpu.max": "400000 100000", "a/b/cpu.max": "200000 100000"}, 2),
        ("0::/../other", {"cpu.max": "200000 100000"}, 2),
        ("4:memory:/\n3:cpu,cpuacct:/a", _limits("cpu,cpuacct/a", 150_000), 2),
        ("3:cpu:/docker/x\n0::/", _limits("cpu", 400_000), 4),
        ("3:cpu:/a", _limits("cpu/a", -1), CORES),
        ("3:cpuset:/a", _limits("cpuset/a", 100_000), CORES),
        (None, {"cpu.max": "50000 100000"}, CORES),
    ],
)
def test_the_cpu_quota_of_a_container_is_seen(tmp_path, monkeypatch, groups, files, expected):
    for name, limit in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(limit)
    if groups is not None:
        (tmp_path / "own").write_text(f"{groups}\n")
    monkeypatch.setattr(machine, "CONTROL_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda process: set(range(CORES)))
    assert machine.cpu_count() == expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"ATTNPERF_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"ATTNPERF_CACHE": "~/a", "HOME": "/c"}, "/c/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/attnperf"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/c"}, "/c/.cache/attnperf"),
        ({"XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/attnperf"),
        ({"HOME": "/"}, "/.cache/attnperf"),
        ({"HOME": ""}, "/.cache/attnperf"),
        ({}, "/.cache/attnperf"),
    ],
)
def test_one_cache_folder_whatever_the_environment_lacks(monkeypatch, variables, expected):
    """Without HOME: a user whom no passwd entry knows."""
    for name in ("ATTNPERF_CACHE", "ATTNPERF_DATA", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    assert machine.cache_folder() == Path(expected)
    assert catalog.default_data_dir("digits_vit") == Path(expected) / "data" / "digits_vit"
