"""Refuses a mixture of checkouts: the rooms are plain top-level packages, and so are others'.

Another `analysis/` or W&B's `sweeps` in the user's folder must never be picked up silently.
"""

import importlib.util
import pathlib

ROOMS = ("attention", "workloads", "sweeps", "analysis")


def check() -> None:
    """Raises ValueError naming both paths where a room is found outside this checkout."""
    here = pathlib.Path(__file__).resolve().parents[1]
    for room in ROOMS:
        spec = importlib.util.find_spec(room)
        origin = pathlib.Path(spec.origin).resolve() if spec and spec.origin else None
        if origin is None or origin.parents[1] != here:
            raise ValueError(
                f"package {room!r} would be imported from {origin or 'nowhere'}, but this command "
                f"runs from {here}. Two checkouts, or a folder of that name, are on the path: run "
                f"from {here}, or remove the other from PYTHONPATH"
            )
