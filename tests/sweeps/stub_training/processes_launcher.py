"""The launcher of test_job_scheduler.py: its keys; the engine is the test's own."""

from typing import ClassVar

from sweeps.launchers.config_keys import Key
from sweeps.launchers.protocol import Launcher


class Processes(Launcher):
    """Finds nothing wrong."""

    NAME = "processes"
    KEYS: ClassVar = {"trials_per_job": Key(1, "trials"), "workers": Key(0, "processes")}

    @classmethod
    def check(cls, settings):
        """Accepts everything."""
