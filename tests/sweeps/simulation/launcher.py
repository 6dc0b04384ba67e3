"""The simulated engine as a launcher, which `tests.sweeps.simulation.simulate` puts into the
table."""

import pathlib
from typing import Any, ClassVar

from sweeps.launchers.config_keys import Key
from tests.sweeps.simulation.engine import Engine

DEFAULTS: dict[str, Any] = {"poll_seconds": 15, "trials_per_job": 1}
# The engine of the simulation under way.
current: list[Engine] = []


class Simulated:
    """An instance is the engine of the simulation under way."""

    KEYS: ClassVar = {name: Key(value, "") for name, value in DEFAULTS.items()}

    def __new__(cls, settings: dict[str, Any], study_directory: pathlib.Path) -> Engine:  # type: ignore[misc]
        """Returns that engine."""
        del settings, study_directory
        return current[-1]

    @classmethod
    def platform(cls, settings: dict[str, Any]) -> str:
        """Returns where trials would compute."""
        del settings
        return "cpu"

    @classmethod
    def devices(cls, settings: dict[str, Any]) -> int:
        """Returns how many devices a trial would see."""
        del settings
        return 1
