"""Engines of this machine: whether they may be absent, and waiting for them."""

import os
import time

import pytest


def absent(engine, reason):
    """Skips a test for want of an engine; fails it where CI says that the engine is there."""
    is_required = engine in os.environ.get("ATTNPERF_REQUIRED_ENGINES", "").split(",")
    end = pytest.fail if is_required else pytest.skip
    end(f"no {engine} here: {reason}")


def wait(condition, what="", timeout_s=120.0, every=0.1):
    """Returns what `condition()` returns once that is true; fails after the timeout, 120 s."""
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(every)
    return answer


@pytest.fixture(scope="session")
def wait_for():
    """The function `wait`."""
    return wait
