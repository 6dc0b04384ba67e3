"""Somebody else's code in a directory that the user names: put on the path, asked for its commit.

It is never changed. Nothing of it is imported here.
"""

import contextlib
import dataclasses
import importlib.util
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

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


@dataclasses.dataclass(frozen=True)
class Checkout:
    """One project of somebody else's: its files, in `directory`, and what is checked out there.

    A subclass says what it is: its name, its package, the tested commits, the oldest first, and
    what a user does who lacks it.
    """

    directory: Path
    revision: Revision
    name: ClassVar[str]
    package: ClassVar[str]
    tested: ClassVar[tuple[str, ...]]
    what_to_do: ClassVar[str]

    def __str__(self) -> str:
        return f"{self.name} {self.revision} in {self.directory}"

    @property
    def remark(self) -> str | None:
        """A sentence where this is not known to be a tested commit as it is, else None."""
        commit, changes = self.revision.commit, self.revision.changes
        if commit and not changes and any(tested.startswith(commit) for tested in self.tested):
            return None
        state = f"is at commit {commit[:12]}{changes}" if commit else "is at an unknown commit"
        return (
            f"{self.name} in {self.directory} {state}; attnperf was tested with "
            f"{' and '.join(tested[:7] for tested in self.tested)}, and what it computes may have "
            "changed"
        )

    def record(self) -> dict[str, str]:
        """Returns what logs and studies record of it, and attnperf's own commit."""
        return {
            "attnperf_commit": str(revision(Path(__file__).resolve().parents[2])),
            f"{self.package}_dir": str(self.directory),
            f"{self.package}_commit": str(self.revision),
            f"{self.package}_changed_files": ", ".join(self.revision.changed),
        }

    def activate(self) -> None:
        """Puts the directory on sys.path, first, so that its package is the one that is imported.

        Raises MissingError where another one has been imported already.
        """
        loaded = sys.modules.get(self.package)
        if loaded and Path(str(loaded.__file__)).resolve().parents[1] != self.directory:
            raise MissingError(
                f"{self.package} was imported from {loaded.__file__} before {self.directory} was "
                f"asked for; one process can hold one {self.name}. Start another process"
            )
        if str(self.directory) not in sys.path:
            sys.path.insert(0, str(self.directory))

    @contextlib.contextmanager
    def missing_named(self) -> Iterator[None]:
        """Raises MissingError for a library that a file of the directory imports in vain.

        The file may import it through another library. A user's own file that lacks one keeps
        Python's error.
        """
        try:
            yield
        except ModuleNotFoundError as error:
            names = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
            files = [Path(name).resolve() for name in names if not name.startswith("<frozen ")]
            sources = [file for file in files if "site-packages" not in file.parts]
            if not sources or not sources[-1].is_relative_to(self.directory):
                raise
            raise MissingError(
                f"{sources[-1]} needs {error.name}, which is not installed. {self.what_to_do}"
            ) from error


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


def check_libraries(libraries: Sequence[str], who: str, what_to_do: str) -> None:
    """Raises DataError where a library that `who` needs is not installed; imports none."""
    missing = [name for name in libraries if importlib.util.find_spec(name) is None]
    if missing:
        raise DataError(f"{who} needs {', '.join(missing)}, not installed here", what_to_do)


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
