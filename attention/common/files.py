"""Files that appear whole or not at all, and paths as people type them."""

import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import re
import shlex
import uuid
from collections.abc import Iterator
from typing import Any

# What a name ends with until its file is whole; it begins with a dot.
SUFFIX = ".tmp"


def temporary(name: str) -> str:
    """Returns the name of something that nobody needs once its process is gone."""
    return f".{name}{SUFFIX}"


def loads(content: str | bytes) -> Any:
    """Returns what a JSON text says. Raises ValueError for what is no JSON, and for an object that
    names a key twice, of which JSON readers take the last."""
    return json.loads(content, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = max(names, key=names.count)
        raise ValueError(f"an object names {twice} more than once; keep one of them")
    return dict(pairs)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Gives the name of a file beside `path` to write, which takes its place when the block ends.

    A reader sees the old file or the new one, also after a crash of the host: both the file and
    its name are on disk then. Its permissions are those of any new file, by the umask. Where the
    block raises, the old file stays and the new one is removed; an OSError names the file.
    """
    target = pathlib.Path(path)
    # A name may have 255 bytes.
    new = target.with_name(temporary(f"{target.name[:50]}.{uuid.uuid4().hex}"))
    try:
        yield new
        _sync(new)
        os.replace(new, target)
    except BaseException as problem:
        if isinstance(problem, OSError) and problem.errno:
            # A full disk names no file.
            problem.filename = problem.filename or str(target)
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # the file is whole; some file systems sync no directory
        _sync(target.parent)


class PathError(argparse.ArgumentTypeError, ValueError):
    """A path that cannot be meant as it was typed."""


def typed_path(text: str) -> pathlib.Path:
    """Returns a path as a person typed it, with `~` expanded; a type for argparse, too.

    Shells leave `~` alone behind `--option=`, and `$NAME` in single quotes. Raises PathError for a
    path that would silently become a folder of an odd name: `~` of an unknown user, a variable, an
    address, blanks or quotation marks around it. A path that exists may have `$` in its name.
    """
    path = os.path.expanduser(text)
    variable = re.search(r"\$\{?[A-Za-z_][^/]*", path)
    problems = {
        "is empty; give a path, or leave the option out": not text,
        "begins or ends with a blank or a line break; leave that out": text != text.strip(),
        "has quotation marks around it, which are part of the name here; leave them out": (
            text[:1] in ("'", '"') and text[:1] == text[-1:]
        ),
        "names a user whose home directory is not known; give the whole path": path[:1] == "~",
        "is an address; give a path, for a store such as gs:// or s3:// the one where it is "
        "mounted": re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text),
        "has a variable in it, which shells do not expand in single quotes; give the path itself": (
            variable is not None and not os.path.lexists(path[: variable.end()])
        ),
    }
    for problem, applies in problems.items():
        if applies:
            raise PathError(f"path {text!r} {problem}")
    return pathlib.Path(path)


def quoted(path: str | os.PathLike[str]) -> str:
    """Returns a path as it stands in a command that a person may paste."""
    text = os.fspath(path)
    # Not an option's name, nor the home directory.
    return shlex.quote(f"./{text}" if text.startswith(("-", "~")) else text)


def check_output(path: pathlib.Path, option: str = "--out") -> None:
    """Raises ValueError where no file can be written at `path`, the value of `option`.

    A file is made beside it and removed: permissions alone say nothing of read-only or special
    file systems, nor to root.
    """
    setting = f"{option}={path}"
    if os.path.isdir(path):
        raise ValueError(f"{setting}: that is a directory; name a file in it")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{setting}: {path.parent} is no directory; make it first")
    _try_to_write(path.parent, path, setting)


def check_output_directory(path: pathlib.Path, option: str) -> None:
    """Raises ValueError where no directory can be made at `path`, the value of `option`, or
    nothing be written in the one that is there. Nothing is left behind."""
    setting, folder = f"{option}={path}", path
    while not os.path.lexists(folder):
        folder = folder.parent
    if not os.path.isdir(folder):
        raise ValueError(f"{setting}: {folder} is no directory; give another path")
    _try_to_write(folder, path, setting)


def _try_to_write(folder: pathlib.Path, path: pathlib.Path, setting: str) -> None:
    probe = folder / temporary(uuid.uuid4().hex)
    try:
        probe.touch()
        probe.unlink()
        path.is_file()  # a name may be too long
    except OSError as error:
        raise ValueError(
            f"{setting}: {folder} cannot be written ({error.strerror}); give a path elsewhere"
        ) from error


def write(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Writes a file that appears whole or not at all; text as UTF-8."""
    with replacing(path) as new:
        new.write_bytes(content.encode() if isinstance(content, str) else content)


def sha256(path: pathlib.Path) -> str:
    """Returns the SHA-256 of a file's content, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
