"""Every file operation below one directory, counted and announced before it happens.

The functions of `os` and `io` that pathlib, tempfile and shutil end in are replaced for a while, so
the code above them runs unchanged. An operation is what a network file system's client asks its
server: opening (reading and writing a small file travel with it), creating, looking up, listing,
renaming, removing, changing attributes, making durable.
"""

import builtins
import io
import os
from collections.abc import Callable
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# Name in `os`: kind of operation.
_KINDS = {
    "stat": "look up",
    "lstat": "look up",
    "listdir": "list",
    "scandir": "list",
    "mkdir": "create",
    "unlink": "remove",
    "remove": "remove",
    "rmdir": "remove",
    "chmod": "attributes",
    "utime": "attributes",
}
KINDS = ("look up", "list", "read", "create", "rename", "remove", "attributes", "sync")


class CountedFiles:
    """While it is entered, calls `before(kind)` ahead of each operation below `root`.

    `renamed(target)` is called after a rename. What `before` raises happens instead of the
    operation. fsync is announced, not done: what a crash of the machine keeps is not at issue.
    """

    def __init__(
        self, root: str, before: Callable[[str], None], renamed: Callable[[str], None]
    ) -> None:
        self._root, self._before, self._renamed = root, before, renamed
        self._saved: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> "CountedFiles":
        for name, kind in _KINDS.items():
            self._replace(os, name, self._counted(getattr(os, name), kind))
        for name in ("rename", "replace"):
            self._replace(os, name, self._counted_rename(getattr(os, name)))
        self._replace(os, "open", self._counted_os_open(os.open))
        self._replace(os, "fsync", lambda descriptor: self._before("sync"))
        opened = self._counted_open(io.open)
        self._replace(io, "open", opened)
        self._replace(builtins, "open", opened)
        return self

    def __exit__(self, *exception: object) -> None:
        for module, name, function in reversed(self._saved):
            setattr(module, name, function)
        self._saved.clear()

    def _replace(self, module: Any, name: str, function: Any) -> None:
        self._saved.append((module, name, getattr(module, name)))
        setattr(module, name, function)

    def _is_below(self, path: Any) -> bool:
        if isinstance(path, int):
            return False
        return os.fspath(path).startswith(self._root)

    def _counted(self, function: Any, kind: str) -> Any:
        def counted(path: Any = ".", *arguments: Any, **named: Any) -> Any:
            if self._is_below(path):
                self._before(kind)
            return function(path, *arguments, **named)

        return counted

    def _counted_rename(self, function: Any) -> Any:
        def counted(source: Any, target: Any, **named: Any) -> None:
            if not self._is_below(target):
                function(source, target, **named)
                return
            self._before("rename")
            function(source, target, **named)
            self._renamed(os.fspath(target))

        return counted

    def _counted_os_open(self, function: Any) -> Any:
        def counted(path: Any, flags: int, *arguments: Any, **named: Any) -> int:
            if self._is_below(path):
                self._before("create" if flags & _WRITES else "read")
            return int(function(path, flags, *arguments, **named))

        return counted

    def _counted_open(self, function: Any) -> Any:
        def counted(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
            if self._is_below(file):
                self._before("read" if mode[0] == "r" and "+" not in mode else "create")
            return function(file, mode, *arguments, **named)

        return counted
