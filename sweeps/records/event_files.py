"""TensorBoard event files: the rows of measurements.csv as scalars, a tag for each column.

Every attempt writes a file of its own into <trial>/tensorboard, each row in one piece, on disk
before a checkpoint counts on it. An attempt that resumes after s updates begins with an order to
purge: TensorBoard then forgets the points from step s on that earlier files have, and the
evaluation after s updates, which stands, is written once more. So no point is shown twice. Needs
tensorboardX, which is the extra `tensorboard`.
"""

import importlib
import importlib.util
import time
from typing import Any

from sweeps.records import layout, lease, measurements

LIBRARY = "tensorboardX"


def check() -> None:
    """Raises ValueError, saying what to install, where the library is missing."""
    if importlib.util.find_spec(LIBRARY) is None:
        raise ValueError(
            f"tensorboard=True needs {LIBRARY}, which is not installed here: pip install "
            "'.[tensorboard]', or set --config.tensorboard=False"
        )


class EventFile:
    """The event file of an attempt that begins after `resumed` updates. Raises as `check`."""

    def __init__(self, attempt: lease.Attempt, resumed: int) -> None:
        check()
        writers = importlib.import_module(f"{LIBRARY}.event_file_writer")
        events = importlib.import_module(f"{LIBRARY}.proto.event_pb2")
        self._scalar = importlib.import_module(f"{LIBRARY}.summary").scalar
        self._event, self._session = events.Event, events.SessionLog
        folder = attempt.trial_directory / layout.TENSORBOARD
        folder.mkdir(exist_ok=True)
        # Names begin with the time in seconds: two attempts may begin in the same one.
        suffix = f".attempt_{attempt.number:06}"
        self._writer: Any = writers.EventsWriter(str(folder / "events"), suffix)
        start = self._session(status=self._session.START)
        self._put(step=resumed, session_log=start)
        curve = measurements.curve(attempt.trial_directory)
        self.append([row for row in curve if row["global_step"] >= resumed])

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Adds the numbers of rows of losses and evaluations, at once."""
        for row in rows:
            if row["kind"] == measurements.DIAGNOSTICS:
                continue
            for tag, value in row.items():
                if tag not in ("kind", "global_step") and value is not None:
                    self._put(step=row["global_step"], summary=self._scalar(tag, value))
        self._writer.flush()

    def _put(self, **content: Any) -> None:
        self._writer.write_event(self._event(wall_time=time.time(), **content))

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()
