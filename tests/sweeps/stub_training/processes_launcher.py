"""The launcher of test_job_scheduler.py: its keys; the engine is the test's own."""

from sweeps.launchers.config_keys import Key

KEYS = {"trials_per_job": Key(1, "trials of a job"), "workers": Key(0, "processes of a job")}


def check(settings):
    """Finds nothing wrong."""
    del settings
