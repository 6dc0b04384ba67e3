"""Files that appear whole or not at all: the one way in which every room writes."""

import contextlib
import os
import pathlib
import uuid
from collections.abc import Iterator

# What a name ends with until its file is whole; it begins with a dot.
SUFFIX = ".tmp"


def temporary(name: str) -> str:
    """Returns the name of something that nobody needs once its process is gone."""
    return f".{name}{SUFFIX}"


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Gives the name of a file beside `path` to write, which takes its place when the block ends.

    A reader sees the old file or the new one, also after a crash of the host: both the file and
    its name are on disk then. Its permissions are those of any new file, by the umask. Where the
    block raises, the old file stays and the new one is removed.
    """
    target = pathlib.Path(path)
    # A name may have 255 bytes.
    new = target.with_name(temporary(f"{target.name[:50]}.{uuid.uuid4().hex}"))
    try:
        yield new
        _sync(new)
        os.replace(new, target)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # the file is whole; some file systems sync no directory
        _sync(target.parent)


def check_output(path: pathlib.Path, option: str = "--out") -> None:
    """Raises ValueError where no file can be written at `path`, the value of `option`.

    A file is made beside it and removed: permissions alone say nothing of read-only or special
    file systems, nor to root.
    """
    given = f"{option}={path}"
    try:
        if path.is_dir():
            raise ValueError(f"{given}: that is a directory; name a file in it")
        if not path.absolute().parent.is_dir():
            raise ValueError(f"{given}: {path.parent} is no directory; make it first")
        probe = path.with_name(temporary(uuid.uuid4().hex))
        probe.touch()
        probe.unlink()
        path.is_file()  # a name may be too long
    except OSError as error:
        raise ValueError(
            f"{given}: {path.parent} cannot be written ({error.strerror}); give a file elsewhere"
        ) from error


def write(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Writes a file that appears whole or not at all; text as UTF-8."""
    with replacing(path) as new:
        new.write_bytes(content.encode() if isinstance(content, str) else content)


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
