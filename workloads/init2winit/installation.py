"""Where init2winit is: a checkout that the user names. It is never changed."""

import contextlib
import dataclasses
import importlib
import os
import shutil
import subprocess
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path

from workloads.init2winit import gaps
from workloads.init2winit.specs import DIRECTORY_VARIABLE

# github.com/google/init2winit, branch master of 2 July 2026.
TESTED_COMMIT = "afd5a84dbb865f41bf8d6b75181d5b421d73806b"
# What makes a directory init2winit: its main file, its trainer, its models.
FILES = (
    "init2winit/main.py",
    "init2winit/trainer_lib/base_trainer.py",
    "init2winit/model_lib/models.py",
)
_WHAT_TO_DO = (
    "Clone https://github.com/google/init2winit, run `git checkout "
    f"{TESTED_COMMIT[:7]}` there, and name the checkout: --init2winit_dir=DIR or "
    f"{DIRECTORY_VARIABLE}=DIR. Its Python dependencies: "
    "pip install '/path/to/attnperf[init2winit]'"
)


class Init2winitMissingError(ImportError):
    """init2winit, or a library it needs, is not there; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Installation:
    """One checkout: `directory` holds `init2winit/` and `hessian/`.

    `commit` is None where git does not tell it. Made by `find`.
    """

    directory: Path
    commit: str | None

    @property
    def remark(self) -> str | None:
        """A sentence where this is not known to be the tested commit, else None."""
        if self.commit == TESTED_COMMIT:
            return None
        stands = f"is at commit {self.commit[:12]}" if self.commit else "tells no commit"
        return (
            f"init2winit in {self.directory} {stands}, attnperf was tested with "
            f"{TESTED_COMMIT[:7]}; it lacks the same names, but what it computes may have changed"
        )

    def main_module(self, data_dir: str | None) -> types.ModuleType:
        """Its `main.py` as a module, imported with JAX, TensorFlow and all that it imports, what
        the tree lacks filled in (`gaps`).

        Raises Init2winitMissingError naming the library that is not installed, ValueError where
        the tree lacks other names than those that are filled in.
        """
        self.activate()
        if "init2winit.main" in sys.modules:
            return sys.modules["init2winit.main"]
        gaps.check(self.directory)
        with self.missing_named():
            gaps.fill_modules(self.directory, data_dir)
            main = importlib.import_module("init2winit.main")
            gaps.fill_names(main)
        return main

    def activate(self) -> None:
        """Puts the directory on sys.path, first.

        Raises Init2winitMissingError where another init2winit has been imported already.
        """
        loaded = sys.modules.get("init2winit")
        if loaded is not None and Path(str(loaded.__file__)).resolve().parents[1] != self.directory:
            raise Init2winitMissingError(
                f"init2winit was imported from {loaded.__file__} before {self.directory} was asked "
                "for; one process can hold one init2winit. Start another process"
            )
        if str(self.directory) not in sys.path:
            sys.path.insert(0, str(self.directory))

    @contextlib.contextmanager
    def missing_named(self) -> Iterator[None]:
        """Raises Init2winitMissingError for a library that a file of the tree imports in vain."""
        try:
            yield
        except ModuleNotFoundError as error:
            files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
            inside = [file for file in files if file.resolve().is_relative_to(self.directory)]
            if not inside:
                raise
            raise Init2winitMissingError(
                f"{inside[-1]} needs {error.name}, which is not installed. {_WHAT_TO_DO}"
            ) from error


def find(directory: str | os.PathLike[str] | None = None) -> Installation:
    """Returns the init2winit in `directory`, else of ATTNPERF_INIT2WINIT_DIR.

    Imports nothing of it. Raises Init2winitMissingError, saying what to do, where none is named or
    the directory is not init2winit.
    """
    named = directory or os.environ.get(DIRECTORY_VARIABLE)
    if not named:
        raise Init2winitMissingError(f"no checkout of init2winit is named. {_WHAT_TO_DO}")
    found = Path(named).expanduser().resolve()
    missing = [name for name in FILES if not (found / name).is_file()]
    if missing:
        raise Init2winitMissingError(
            f"{found} is not init2winit: it lacks {', '.join(missing)}. {_WHAT_TO_DO}"
        )
    return Installation(found, _commit(found))


def _commit(directory: Path) -> str | None:
    if not (directory / ".git").exists() or not shutil.which("git"):
        return None
    command = ["git", "-C", str(directory), "rev-parse", "HEAD"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None
