"""The simulated engine as a launcher: `tests.sweeps.simulation.simulate` puts this module into the
table."""

import pathlib
from typing import Any

from tests.sweeps.simulation.engine import Engine

DEFAULTS: dict[str, Any] = {"poll_seconds": 15, "trials_per_job": 1}
# The engine of the simulation under way.
current: list[Engine] = []


def platform(settings: dict[str, Any]) -> str:
    """Returns where trials would compute."""
    del settings
    return "cpu"


def devices(settings: dict[str, Any]) -> int:
    """Returns how many devices a trial would see."""
    del settings
    return 1


def launcher(settings: dict[str, Any], study_directory: pathlib.Path) -> Engine:
    """Returns the engine of the simulation under way."""
    del settings, study_directory
    return current[-1]
