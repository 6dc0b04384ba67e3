"""The processes that train a trial together, and what they agree on.

The primary one (process 0) claims the trial and writes every file; the others train what it orders
(`sweeps.job.trainer`). All must launch the same programs in the same order, or a collective waits
for ever. So:

- an order to stop, whichever process gets it, takes effect at the same step on all: each tells the
  step it is at and waits until all have, and all stop after the furthest one's next. This is the
  protocol of `multihost_utils.reached_preemption_sync_point`. JAX's own is not used: it takes
  SIGTERM away from Python, knows no other reason to stop, and works once in a process's life;
- what the primary process alone does (`on_primary`) succeeds or fails for all;
- any other failure of one process ends all of them at once. One that dies without a word breaks
  the connections of the others, or is missed by JAX's heartbeats (`bootstrap.HEARTBEAT_S`).
"""

import contextlib
import json
import os
import queue
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sweeps.distributed import bootstrap
from sweeps.launchers.protocol import AGAIN

# What the failed process waits for the primary one to take down why.
_LAST_WORDS_S = 10.0
_LOOK_S = 0.5
# absl's status codes that a lost connection may have; not RESOURCE_EXHAUSTED, which is memory.
_STATUSES = "(UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED): "
# How long one read waits; only then is it asked again.
_WAIT_MS = 10_000


class PrimaryError(Exception):
    """The primary process could not do its part; the message says why."""


class PeerError(Exception):
    """Another process of the group failed or is gone."""


class Store(Protocol):
    """The part of JAX's distributed client that a log needs; both raise RuntimeError."""

    def key_value_set(self, key: str, value: str, /) -> None:
        """Sets a key once; ALREADY_EXISTS the second time."""

    def blocking_key_value_get(self, key: str, timeout_ms: int, /) -> str:
        """Returns a key's value once it is there; DEADLINE_EXCEEDED where it is not in time."""


class SharedLog:
    """A log that all processes of a trial append to and read in one order.

    Its entries lie by number in the key-value store of JAX's coordination service, which runs in
    process 0. An entry takes 0.5 ms on one host, and nothing of it touches the devices: a broadcast
    over them takes 4 ms there, waits for the steps in flight, and needs all processes at the same
    place.

    store: that key-value store. count: how many processes there are. rank: this one's number.
    """

    def __init__(self, store: Store, count: int, rank: int) -> None:
        self._store, self._count, self._rank = store, count, rank
        self._next = 0

    def post(self, **entry: Any) -> None:
        """Appends an entry. Raises JaxRuntimeError where the service is gone."""
        number, text = self._next, json.dumps(entry)
        while True:
            try:
                self._store.key_value_set(_key(number), text)
            except RuntimeError as error:
                if "ALREADY_EXISTS" not in str(error):
                    raise
                number += 1
            else:
                return

    def read(self) -> dict[str, Any]:
        """Returns the next entry, once it is there: for one thread. Raises as `post`."""
        text = self._wait_for(_key(self._next))
        self._next += 1
        entry: dict[str, Any] = json.loads(text)
        return entry

    def compare(self, value: int) -> list[int]:
        """Returns every process's value, once all have called it about the entry read last."""
        name = f"{_key(self._next - 1)}-of-"
        self._store.key_value_set(f"{name}{self._rank}", str(value))
        return [int(self._wait_for(f"{name}{rank}")) for rank in range(self._count)]

    def _wait_for(self, key: str) -> str:
        while True:
            try:
                return str(self._store.blocking_key_value_get(key, _WAIT_MS))
            except RuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise


def _key(number: int) -> str:
    return f"attnperf/{number}"


class SingleProcess:
    """One process that trains alone: the primary one, with nobody to tell."""

    is_primary, broken = True, False

    def __init__(self) -> None:
        self.on_stop: Callable[[], None] = lambda: None
        self.on_failure: Callable[[Exception], None] = lambda problem: None

    def order(self, **order: Any) -> None:
        """Does nothing."""

    def end(self, code: int = 0) -> None:
        """Does nothing."""

    def on_primary(self, work: Callable[[], Any]) -> Any:
        """Does the work; returns what it does."""
        return work()

    def stops(self, wanted: bool, step: int) -> bool:
        """Returns `wanted`."""
        return wanted

    def failed(self, problem: Exception) -> None:
        """Does nothing: nobody waits."""


class ProcessGroup:
    """This process's part in a group. `on_stop` is called when any process was told to stop.

    `on_failure(problem)` is called on the primary one when another process failed, before this one
    ends: both by a thread. `broken` is True where the process must end because the group has.
    `exit_process(code)` and `disconnect()` are how this process ends and leaves.
    """

    def __init__(
        self,
        found: bootstrap.Processes,
        store: Store,
        disconnect: Callable[[], None],
        exit_process: Callable[[int], Any] = os._exit,
    ) -> None:
        self._found, self.is_primary = found, found.is_primary
        self._disconnect, self._exit = disconnect, exit_process
        self.broken = False
        self.on_stop: Callable[[], None] = lambda: None
        self.on_failure: Callable[[Exception], None] = lambda problem: None
        self._log = SharedLog(store, found.count, found.id)
        self._orders: queue.Queue[dict[str, Any]] = queue.Queue()
        self._of_primary: queue.Queue[dict[str, Any]] = queue.Queue()
        self._lock, self._breaking = threading.Lock(), threading.Lock()
        self._step, self._goal, self._asked = -1, sys.maxsize, False
        self._known: Exception | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def order(self, **order: Any) -> None:
        """On the primary process: has the others do what it is about to do itself."""
        self._log.post(kind="order", **order)
        self._orders.get()

    def next_order(self, stop_requested: Callable[[], bool]) -> dict[str, Any]:
        """On the others: returns the next order; its `kind` is 'end' for the last."""
        while True:
            self._ask(stop_requested())
            try:
                return self._orders.get(timeout=_LOOK_S)
            except queue.Empty:
                continue

    def end(self, code: int = 0) -> None:
        """On the primary process: has the others end with an exit code, and disconnects."""
        self._log.post(kind="end", code=code)
        self._orders.get()
        self.leave()

    def leave(self) -> None:
        """Disconnects, once all processes do."""
        self._reader.join()
        self._disconnect()

    def on_primary(self, work: Callable[[], Any]) -> Any:
        """Has the primary process do what it alone may; returns everywhere what that returned,
        plain data. What it raises there, PrimaryError is elsewhere."""
        if not self.is_primary:
            entry = self._of_primary.get()
            if entry["error"] is not None:
                self._known = PrimaryError(entry["error"])
                raise self._known
            return entry["found"]
        try:
            found = work()
        except Exception as problem:
            self._known = problem
            self._log.post(kind="primary", error=_named(problem))
            raise
        self._log.post(kind="primary", error=None, found=found)
        return found

    def stops(self, wanted: bool, step: int) -> bool:
        """Whether to stop after this step: the same on all processes, asked after each step.

        `wanted` says that this process was told to stop.
        """
        self._ask(wanted)
        with self._lock:  # held while the processes compare their steps
            self._step = step
            return step >= self._goal

    def _ask(self, wanted: bool) -> None:
        if wanted and not self._asked:
            self._asked = True
            self._log.post(kind="stop")

    def failed(self, problem: Exception) -> None:
        """Tells the others of a failure that they do not know of; the process is to end then.

        Raises PeerError in place of a failed collective.
        """
        if problem is self._known:
            return
        self._break()
        reason = _named(problem)
        retry = not isinstance(problem, ValueError) or _of_xla(problem)
        who = f"process {self._found.id} of {self._found.count} ({socket.gethostname()})"
        with contextlib.suppress(RuntimeError):  # the primary process is gone already
            entry = {"rank": self._found.id, "error": f"{who}: {reason}", "retry": retry}
            self._log.post(kind="failed", **entry)
        if not self.is_primary:
            time.sleep(_LAST_WORDS_S)
        if _of_xla(problem):
            raise PeerError(f"{who} lost another one: {reason}") from problem

    def _break(self) -> None:
        """Marks the group as broken; never returns where another thread has and ends the
        process."""
        self._breaking.acquire()
        self.broken = True

    def _read(self) -> None:
        try:
            while self._handle(self._log.read()):
                pass
        except Exception as problem:  # the primary process, and with it the service, is gone
            self._end(PeerError(f"the primary process cannot be reached: {problem}"))

    def _handle(self, entry: dict[str, Any]) -> bool:
        kind = entry["kind"]
        if kind == "order":
            with self._lock:
                self._step, self._goal, self._asked = -1, sys.maxsize, False
        if kind in ("order", "end"):
            self._orders.put(entry)
        elif kind == "primary" and not self.is_primary:
            self._of_primary.put(entry)
        elif kind == "stop":
            if self._goal == sys.maxsize:
                with self._lock:
                    self._goal = max(self._log.compare(self._step)) + 1
            self.on_stop()
        elif kind == "failed" and entry["rank"] != self._found.id:
            self._end((PeerError if entry["retry"] else ValueError)(entry["error"]))
        return bool(kind != "end")

    def _end(self, problem: Exception) -> None:
        self._break()
        print(f"{self._found}: {problem}", file=sys.stderr, flush=True)
        if self.is_primary:
            self.on_failure(problem)
        self._exit(AGAIN)


def join(
    environment: Mapping[str, str] = os.environ, **limits: Any
) -> ProcessGroup | SingleProcess:
    """Connects this process to its group; a SingleProcess where it is alone. Before JAX is used
    otherwise.

    `limits` as `bootstrap.initialize` takes them. Raises what that and `bootstrap.detect` raise.
    """
    found = bootstrap.detect(environment)
    if found is None:
        return SingleProcess()
    bootstrap.initialize(found, **limits)
    import jax
    from jax._src import distributed  # the store has no public name; orbax takes it there too

    client: Any = distributed.global_state.client
    return ProcessGroup(found, client, jax.distributed.shutdown)


def _of_xla(problem: Exception) -> bool:
    """Whether a collective failed: XLA raises 'UNKNOWN: Gloo all-reduce failed' as a ValueError."""
    return re.match(_STATUSES, str(problem)) is not None


def _named(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"
