"""Time, as one object that a simulation can replace: this host's clocks and the file server's."""

import os
import pathlib
import time
import uuid

from sweeps.records import layout


class Clock:
    """The real clocks; seconds.

    monotonic: since some moment on this host. time: this host's wall clock, which may be wrong.
    touch: sets a file's mtime to the file server's clock, making the file if needed.
    """

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    touch = staticmethod(pathlib.Path.touch)
    time = staticmethod(time.time)  # last: from here on the name is the method's

    def server_time(self, folder: pathlib.Path) -> float:
        """Returns the file server's clock: the mtime that it gives to a new file in `folder`."""
        probe = folder / layout.temporary(f"clock-{uuid.uuid4().hex}")
        try:
            probe.touch()
            return os.stat(probe).st_mtime
        finally:
            probe.unlink(missing_ok=True)


clock = Clock()
