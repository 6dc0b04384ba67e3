"""Simulated clocks, hosts and files in the place of the real ones."""

import contextlib
import os
import pathlib
import socket
import uuid
from collections.abc import Iterator
from typing import Any
from unittest import mock

from sweeps.launchers import table as launchers
from sweeps.records import clock, code_snapshot, lease
from sweeps.scheduling.places import Places
from tests.sweeps.simulation import referee
from tests.sweeps.simulation.counted_files import counted_files
from tests.sweeps.simulation.engine import Engine
from tests.sweeps.simulation.world import World

_UTIME = os.utime  # not counted: the simulation's own


class SimulatedClock(clock.Clock):
    """The clocks of whoever acts; the driver's sleep is where the simulation happens."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        """Returns seconds since some moment on the host."""
        return self._world.now

    def time(self) -> float:
        """Returns the host's wall clock, off by up to ten minutes."""
        skew_s = self._world.actor.host.skew_s if self._world.actor else 0.0
        return 1.7e9 + self._world.now + skew_s

    def sleep(self, seconds: float) -> None:
        """Lets the simulation go on."""
        self._world.advance(seconds)

    def touch(self, path: pathlib.Path) -> None:
        """Sets the mtime to the file server's clock, less what a client's cache may hide."""
        super().touch(path)
        visible = self._world.now - self._world.rng.uniform(0, self._world.cache_s)
        _UTIME(path, (0, self._world.server_offset_s + visible))

    def server_time(self, folder: pathlib.Path) -> float:
        """Returns the file server's clock, at the cost that it has."""
        super().server_time(folder)
        return self._world.server_offset_s + self._world.now


@contextlib.contextmanager
def simulated(engine: Engine, root: pathlib.Path) -> Iterator[None]:
    """Puts simulated time, hosts and files in the place of the real ones for a while."""
    world, real = engine.world, launchers.launcher_class
    is_busy = Places.is_busy.fget

    def judged(places: Places) -> bool:
        for path in referee.misplaced(places):
            engine.referee.violated(f"{path} is in no place of the scheduler, or in two")
        return is_busy(places)

    replaced: list[tuple[Any, str, Any]] = [
        (clock, "clock", SimulatedClock(world)),
        (lease, "identity", world.identity),
        (lease, "process_start", world.process_start),
        (socket, "gethostname", lambda: world.actor.host.name if world.actor else "outside"),
        (Places, "is_busy", property(judged)),
        # Every start of a driver reads the whole code for it, whatever the study's size.
        (code_snapshot, "take", lambda directory, modules: directory / code_snapshot.CODE),
        # Names decide the order in which batches are taken up: they must follow the seed.
        (uuid, "uuid4", lambda: uuid.UUID(int=world.rng.getrandbits(128))),
        # The engine of the simulation under way stands for its class, too.
        (launchers, "launcher_class", lambda name: engine if name == engine.NAME else real(name)),
    ]
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(launchers.CLASSES, {engine.NAME: ""}))
        for module, name, value in replaced:
            stack.enter_context(mock.patch.object(module, name, value))
        stack.enter_context(counted_files(str(root), world.before, engine.referee.renamed))
        yield
