"""Every file operation below one directory, counted and announced before it happens.

The functions of `os` and `io` that pathlib, tempfile and shutil end in are replaced for a while, so
the code above them runs unchanged. An operation is what a network file system's client asks its
server: opening (reading and writing a small file travel with it), creating, looking up, listing,
renaming, removing, changing attributes, making durable.
"""

import builtins
import contextlib
import functools
import io
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

# Of `os`, with a path as their first argument.
_FUNCTIONS = (
    *("stat", "lstat", "listdir", "scandir", "mkdir", "unlink", "remove", "rmdir", "chmod"),
    *("utime", "open"),
)


@contextlib.contextmanager
def counted_files(
    root: str, before: Callable[[], None], renamed: Callable[[str], None]
) -> Iterator[None]:
    """While it is entered, calls `before()` ahead of each operation below `root`.

    `renamed(target)` is called after a rename. What `before` raises happens instead of the
    operation. fsync is announced, not done: what a crash of the machine keeps is not at issue.
    """

    def is_below(path: Any) -> bool:
        return not isinstance(path, int) and os.fspath(path).startswith(root)

    def counted(function: Any) -> Any:
        @functools.wraps(function)
        def call(path: Any = ".", *arguments: Any, **named: Any) -> Any:
            if is_below(path):
                before()
            return function(path, *arguments, **named)

        return call

    def counted_rename(function: Any) -> Any:
        def call(source: Any, target: Any, **named: Any) -> None:
            if is_below(target):
                before()
            function(source, target, **named)
            if is_below(target):
                renamed(os.fspath(target))

        return call

    opened = counted(io.open)
    replaced = [(os, name, counted(getattr(os, name))) for name in _FUNCTIONS]
    replaced += [(os, name, counted_rename(getattr(os, name))) for name in ("rename", "replace")]
    replaced += [(os, "fsync", lambda descriptor: before())]
    replaced += [(module, "open", opened) for module in (io, builtins)]
    with contextlib.ExitStack() as stack:
        for module, name, function in replaced:
            stack.enter_context(mock.patch.object(module, name, function))
        yield
