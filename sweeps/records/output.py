"""What a process prints, sent to a file."""

import contextlib
import os
import pathlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def redirected(path: pathlib.Path, descriptors: tuple[int, ...] = (1, 2)) -> Iterator[None]:
    """Appends what the process prints, from C++ too, to a file; 1: standard output, 2: error."""
    with path.open("ab") as log:
        saved = {descriptor: os.dup(descriptor) for descriptor in descriptors}
        try:
            for descriptor in saved:
                os.dup2(log.fileno(), descriptor)
            yield
        finally:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            for descriptor, old in saved.items():
                os.dup2(old, descriptor)
                os.close(old)
