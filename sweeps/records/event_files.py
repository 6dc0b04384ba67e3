"""TensorBoard event files: the rows of measurements.csv as scalars, a tag for each column.

Every attempt writes a file of its own into <trial>/tensorboard, each row in one piece, on disk
before a checkpoint counts on it. An attempt that resumes after s updates begins with an order to
purge: TensorBoard then forgets the points from step s on that earlier files have, and the
evaluation after s updates, which stands, is written once more. So no point is shown twice.

`tensorboardX.SummaryWriter(purge_step=)` would write the same order. It queues events for a thread,
and its `flush` does not wait for the queue: after five flushed points and SIGKILL none was on disk.
So events go to the library's file writer directly. Needs tensorboardX, the extra `tensorboard`.
"""

import time
from typing import Any

from sweeps.records import layout, lease, measurements

LIBRARY = "tensorboardX"


class EventFile:
    """The event file of an attempt that begins after `resumed` updates."""

    def __init__(self, attempt: lease.Attempt, resumed: int) -> None:
        from tensorboardX.event_file_writer import EventsWriter

        folder = attempt.trial_directory / layout.TENSORBOARD
        folder.mkdir(exist_ok=True)
        # Names begin with the time in seconds: two attempts may begin in the same one.
        self._writer = EventsWriter(str(folder / "events"), f".attempt_{attempt.number:06}")
        self._put(resumed, session_log={"status": "START"})
        curve = measurements.curve(attempt.trial_directory)
        self.append([row for row in curve if row["global_step"] >= resumed])

    def append(self, rows: list[measurements.Row]) -> None:
        """Adds the numbers of rows of losses and evaluations; they are in the file on return."""
        for row in rows:
            if row["kind"] != measurements.DIAGNOSTICS:
                values = [
                    {"tag": tag, "simple_value": value}
                    for tag, value in row.items()
                    if tag not in ("kind", "global_step") and value is not None
                ]
                self._put(row["global_step"], summary={"value": values})
        self._writer.flush()

    def _put(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._writer.write_event(Event(wall_time=time.time(), step=step, **content))

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()
