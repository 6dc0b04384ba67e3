"""Launchers by name: adding one is a module (see sweeps/launchers/protocol.py) and a line here."""

import importlib
from types import ModuleType

MODULES = {
    "local": "sweeps.launchers.local",
    "slurm": "sweeps.launchers.slurm.launcher",
    "ray": "sweeps.launchers.ray.launcher",
    "kubernetes": "sweeps.launchers.kubernetes.launcher",
}
NAMES = tuple(MODULES)


def module(name: str) -> ModuleType:
    """Returns the launcher's module. Raises KeyError for a name that is not in the table."""
    return importlib.import_module(MODULES[name])
