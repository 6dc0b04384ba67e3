"""File systems that fail for a while: one rule for drivers, and one for jobs.

A driver reports the first OSError of a turn and goes on. It ends after an hour without QUIET_S free
of errors. One turn without an error is no proof: most turns touch no file. No such turn counts
against a trial. A job that cannot claim a trial asks again for half a minute; then the failure of
the trial is counted and reported. At the start and the end of a stage only errors of a file server
are retried. Any other error ends the driver.
"""

import errno
from collections.abc import Callable
from typing import TypeVar

from sweeps.records import clock

PATIENCE_S = 3600.0
# Above twice the longest pause between a driver's looks at files, 60 s after a failed submission.
QUIET_S = 150.0
# What a file server says that restarts or fails over; anything else is as true the second time.
TRANSIENT = frozenset(
    {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EBUSY}
    | {errno.EREMOTEIO, errno.ECONNRESET, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH}
)
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)

Result = TypeVar("Result")


class Outage:
    """What a driver knows of the file system's failures.

    `say` prints a line; `stop_if_ordered` raises where the driver is to end.
    """

    def __init__(
        self, say: Callable[[str], None], stop_if_ordered: Callable[[], None] = lambda: None
    ) -> None:
        self._say, self._stop_if_ordered = say, stop_if_ordered
        self._printed: int | None = None
        self._last: float | None = None
        self._lasted_s = 0.0

    def note_error(self, error: OSError) -> None:
        """A turn failed. Raises OSError if the outage has lasted for more than PATIENCE_S.

        An outage is forgotten after QUIET_S: longer gaps are a driver that was stopped.
        """
        now = clock.clock.monotonic()
        self._lasted_s += 0.0 if self._last is None else min(now - self._last, QUIET_S)
        self._last = now
        if self._lasted_s > PATIENCE_S:
            # Without a number: `wait_out` does not take it for another transient error.
            raise OSError(
                f"{error}, and nothing else for {PATIENCE_S / 60:.0f} minutes; what is done is "
                "kept, `resume` goes on"
            ) from error
        if error.errno != self._printed:  # the path may be another one each time
            self._printed = error.errno
            self._say(f"{error}; the driver waits")

    def wait_out(self, work: Callable[[], Result]) -> Result:
        """Returns what `work`, which may be repeated, returns once the file server answers.

        Raises what is no transient OSError, and what `note_error` and `stop_if_ordered` raise.
        """
        while True:
            try:
                return work()
            except OSError as error:
                if error.errno not in TRANSIENT:
                    raise
                self.note_error(error)
            self._stop_if_ordered()
            clock.clock.sleep(PAUSES_S[-1])

    def note_success(self) -> None:
        """A turn was good; after QUIET_S of them the outage is forgotten."""
        if self._last is not None and clock.clock.monotonic() - self._last > QUIET_S:
            self._last = self._printed = None
            self._lasted_s = 0.0


def retry_transient(work: Callable[[], Result], stop_requested: Callable[[], bool]) -> Result:
    """Returns what `work` returns, asked again after a transient OSError; raises the last one."""
    for pause in PAUSES_S:
        try:
            return work()
        except OSError as error:
            if error.errno not in TRANSIENT or stop_requested():
                raise
            clock.clock.sleep(pause)
    return work()
