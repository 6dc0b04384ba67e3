"""Waiting for engines: up to 120 s unless a test says otherwise."""

import time

import pytest


def wait(condition, what, timeout_s=120.0):
    """Returns what `condition()` returns once that is true; fails after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.1)
    return answer


@pytest.fixture(scope="session")
def wait_for():
    """The function `wait`."""
    return wait
