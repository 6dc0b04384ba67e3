"""Somebody else's code in a directory that the user names: put on the path, asked for its commit.

It is never changed. Nothing of it is imported here.
"""

import contextlib
import dataclasses
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from workloads.base.errors import DataError


class MissingError(DataError, ImportError):
    """It, or a library that it needs, is not there; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Revision:
    """What is checked out: `commit` is None where nothing tells it.

    changed: the files that differ from the commit, of those that git tracks.
    """

    commit: str | None = None
    changed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (self.commit or "unknown") + ("-dirty" if self.changed else "")

    @property
    def changes(self) -> str:
        """Words behind a commit: ', with local changes to a.py, b.py', '' where nothing differs."""
        shown = ", ".join(self.changed[:5]) + (", …" if self.changed[5:] else "")
        return f", with local changes to {shown}" if self.changed else ""


def record(name: str, directory: Path, checkout: Revision) -> dict[str, str]:
    """Returns what logs and studies record of a checkout: `<name>_dir`, `_commit` and which files
    differ from that; and attnperf's own commit."""
    return {
        "attnperf_commit": str(revision(Path(__file__).resolve().parents[2])),
        f"{name}_dir": str(directory),
        f"{name}_commit": str(checkout),
        f"{name}_changed_files": ", ".join(checkout.changed),
    }


def revision(directory: Path) -> Revision:
    """Returns what git has checked out in `directory`, the top of a checkout."""
    if not (directory / ".git").exists():
        return Revision()
    # Inside a hook of git's, variables of its own name another repository.
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("GIT_")}

    def git(*arguments: str) -> str:
        # Without it git answers nothing about a directory of another user, as containers mount it.
        trusted = f"safe.directory={directory}"
        command = ["git", "-C", str(directory), "-c", trusted, *arguments]
        done = subprocess.run(command, capture_output=True, check=True, env=environment)
        return done.stdout.decode(errors="replace")

    try:
        # `diff` would write a refreshed index into the checkout. Between entries NUL: other names
        # are quoted.
        flags = ("--porcelain", "-z", "--untracked-files=no", "--no-renames")
        entries = git("--no-optional-locks", "status", *flags).split("\0")
        changed = tuple(entry[3:] for entry in entries if entry)
        return Revision(git("rev-parse", "HEAD").strip(), changed)
    except (OSError, subprocess.CalledProcessError):
        return Revision()


def check_files(
    named: str | os.PathLike[str], files: Sequence[str], name: str, what_to_do: str
) -> Path:
    """Returns the directory that a user names. Raises MissingError where there is none, or it lacks
    a file that makes it `name`."""
    # Unlike pathlib's, these take a loop of links, and a user without a home.
    directory = Path(os.path.realpath(os.path.expanduser(named)))
    if not directory.is_dir():
        raise MissingError(f"there is no directory {directory}. {what_to_do}")
    if missing := [file for file in files if not (directory / file).is_file()]:
        lacking = ", ".join(missing)
        raise MissingError(f"{directory} is not {name}: it lacks {lacking}. {what_to_do}")
    return directory


def put_first(directory: Path, package: str, name: str) -> None:
    """Puts the directory on sys.path, first, so that `import package` finds this one.

    Raises MissingError where another one has been imported already.
    """
    loaded = sys.modules.get(package)
    if loaded is not None and Path(str(loaded.__file__)).resolve().parents[1] != directory:
        raise MissingError(
            f"{package} was imported from {loaded.__file__} before {directory} was asked for; one "
            f"process can hold one {name}. Start another process"
        )
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


@contextlib.contextmanager
def missing_named(directory: Path, what_to_do: str) -> Iterator[None]:
    """Raises MissingError for a library that a file of the directory imports in vain, itself or
    through another library; what a user's own file imports is that file's."""
    try:
        yield
    except ModuleNotFoundError as error:
        names = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        files = [Path(name).resolve() for name in names if not name.startswith("<frozen ")]
        callers = [file for file in files if "site-packages" not in file.parts]
        if not callers or not callers[-1].is_relative_to(directory):
            raise
        raise MissingError(
            f"{callers[-1]} needs {error.name}, which is not installed. {what_to_do}"
        ) from error
