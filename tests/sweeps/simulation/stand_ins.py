"""What stands in the place of clocks, hosts and files while a simulation runs."""

import contextlib
import os
import pathlib
import socket
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from sweeps.launchers import table as launchers
from sweeps.records import clock, code_snapshot, lease
from tests.sweeps.simulation.counted_files import CountedFiles
from tests.sweeps.simulation.referee import Referee
from tests.sweeps.simulation.world import World

NAME = "simulated"  # of the launcher
_UTIME = os.utime  # not counted: the simulation's own


class SimulatedClock(clock.Clock):
    """The clocks of whoever acts; the driver's sleep is where the simulation happens."""

    def __init__(self, world: World) -> None:
        self._world = world

    def _skew(self) -> float:
        return self._world.actor.host.skew_s if self._world.actor else 0.0

    def monotonic(self) -> float:
        """Returns seconds since some moment on the host."""
        return self._world.now

    def time(self) -> float:
        """Returns the host's wall clock, off by up to ten minutes."""
        return 1.7e9 + self._world.now + self._skew()

    def sleep(self, seconds: float) -> None:
        """Lets the simulation go on."""
        self._world.advance(seconds)

    def touch(self, path: pathlib.Path) -> None:
        """Sets the mtime to the file server's clock, less what a client's cache may hide."""
        super().touch(path)
        seen = self._world.now - self._world.rng.uniform(0, self._world.cache_s)
        _UTIME(path, (0, self._world.server_offset_s + seen))

    def server_time(self, folder: pathlib.Path) -> float:
        """Returns the file server's clock, at the cost that it has."""
        super().server_time(folder)
        return self._world.server_offset_s + self._world.now


def identity_of(world: World) -> Callable[[], dict[str, Any]]:
    """Returns the stand-in for `lease.identity`."""

    def identity() -> dict[str, Any]:
        assert world.actor is not None
        return world.actor.identity()

    return identity


def process_start_of(world: World) -> Callable[[int], str | None]:
    """Returns the stand-in for `lease.process_start`: None for processes that are dead."""

    def process_start(pid: int) -> str | None:
        found = world.processes.get(pid)
        return None if found is None or found.dead else str(pid)

    return process_start


@contextlib.contextmanager
def simulated(world: World, referee: Referee, root: pathlib.Path) -> Iterator[None]:
    """Puts simulated time, hosts and files in the place of the real ones for a while."""
    stand_ins: list[tuple[Any, str, Any]] = [
        (clock, "clock", SimulatedClock(world)),
        (lease, "identity", identity_of(world)),
        (lease, "process_start", process_start_of(world)),
        (socket, "gethostname", lambda: world.actor.host.name if world.actor else "outside"),
        # Every start of a driver reads the whole code for it, whatever the study's size.
        (code_snapshot, "take", lambda directory: directory / code_snapshot.CODE),
        # Names decide the order in which batches are taken up: they must follow the seed.
        (uuid, "uuid4", lambda: uuid.UUID(int=world.rng.getrandbits(128))),
    ]
    saved = [(module, name, getattr(module, name)) for module, name, _ in stand_ins]
    launchers.CLASSES[NAME] = "tests.sweeps.simulation.engine:Simulated"
    try:
        for module, name, stand_in in stand_ins:
            setattr(module, name, stand_in)
        with CountedFiles(str(root), world.before, referee.renamed):
            yield
    finally:
        for module, name, own in saved:
            setattr(module, name, own)
        del launchers.CLASSES[NAME]
