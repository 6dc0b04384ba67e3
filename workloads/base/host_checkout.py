"""Somebody else's code in a directory that the user names: put on the path, asked for its commit.

It is never changed. Nothing of it is imported here.
"""

import contextlib
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path


class MissingError(ImportError):
    """It, or a library that it needs, is not there; the message says what to do."""


def commit(directory: Path) -> str | None:
    """Returns the commit that git has checked out there, None where git does not tell."""
    if not (directory / ".git").exists() or not shutil.which("git"):
        return None
    command = ["git", "-C", str(directory), "rev-parse", "HEAD"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None


def check_files(directory: Path, files: Sequence[str], name: str, what_to_do: str) -> None:
    """Raises MissingError where `directory` lacks one of the files that make it `name`."""
    if missing := [file for file in files if not (directory / file).is_file()]:
        lacking = ", ".join(missing)
        raise MissingError(f"{directory} is not {name}: it lacks {lacking}. {what_to_do}")


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
        own = [file for file in files if "site-packages" not in file.parts]
        if not own or not own[-1].is_relative_to(directory):
            raise
        raise MissingError(
            f"{own[-1]} needs {error.name}, which is not installed. {what_to_do}"
        ) from error
