"""Launchers by name. A new one is a class (see sweeps/launchers/protocol.py) and a line here."""

import importlib

from sweeps.launchers.protocol import Launcher

CLASSES = {
    "local": "sweeps.launchers.local:LocalLauncher",
    "slurm": "sweeps.launchers.slurm.launcher:Slurm",
    "ray": "sweeps.launchers.ray.launcher:Ray",
    "kubernetes": "sweeps.launchers.kubernetes.launcher:Kubernetes",
}


def launcher_class(name: str) -> type[Launcher]:
    """Returns the launcher's class. Raises KeyError for a name that is not in the table."""
    module, _, attribute = CLASSES[name].partition(":")
    launcher: type[Launcher] = getattr(importlib.import_module(module), attribute)
    return launcher
