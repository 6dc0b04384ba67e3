"""A log that all processes of a trial append to and read in one order.

It lies in the key-value store of JAX's coordination service, which runs in process 0. An entry
takes 0.5 ms on one host, and nothing of it touches the devices: a broadcast over them takes 4 ms
there, waits for the steps in flight, and needs all processes at the same place.
"""

import json
from typing import Any, Protocol

# How long one read waits; only then is it asked again.
_WAIT_MS = 10_000


class Store(Protocol):
    """The part of JAX's distributed client that a log needs; both raise RuntimeError."""

    def key_value_set(self, key: str, value: str, /) -> None:
        """Sets a key once; ALREADY_EXISTS the second time."""

    def blocking_key_value_get(self, key: str, timeout_ms: int, /) -> str:
        """Returns a key's value once it is there; DEADLINE_EXCEEDED where it is not in time."""


class SharedLog:
    """Entries by number, of `count` processes, of which this is number `rank`."""

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
