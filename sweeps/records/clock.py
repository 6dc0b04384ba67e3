"""Time, as one object that a simulation can replace: this host's clocks and the file server's."""

import os
import pathlib
import time
import uuid

from sweeps.records import layout


class Clock:
    """The real clocks; seconds."""

    def monotonic(self) -> float:
        """Returns seconds since some moment on this host."""
        return time.monotonic()

    def time(self) -> float:
        """Returns this host's wall clock, which may be wrong."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Waits."""
        time.sleep(seconds)

    def touch(self, path: pathlib.Path) -> None:
        """Sets a file's mtime to the file server's clock, making the file if needed."""
        path.touch()

    def server_time(self, folder: pathlib.Path) -> float:
        """Returns the file server's clock: the mtime that it gives to a new file in `folder`."""
        probe = folder / layout.temporary(f"clock-{uuid.uuid4().hex}")
        try:
            probe.touch()
            return os.stat(probe).st_mtime
        finally:
            probe.unlink(missing_ok=True)


clock = Clock()
