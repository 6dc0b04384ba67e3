"""Where init2winit is: a checkout that the user names. It is never changed."""

import dataclasses
import importlib
import os
import sys
import types
from pathlib import Path

from workloads.base import host_checkout
from workloads.init2winit import missing_symbols
from workloads.init2winit_specs import DIRECTORY_VARIABLE

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


@dataclasses.dataclass(frozen=True)
class Installation:
    """One checkout: `directory` holds `init2winit/` and `hessian/`.

    Made by `find`.
    """

    directory: Path
    revision: host_checkout.Revision

    def __str__(self) -> str:
        return f"init2winit {self.revision} in {self.directory}"

    @property
    def remark(self) -> str | None:
        """A sentence where this is not known to be the tested commit as it is, else None."""
        commit, changes = self.revision.commit, self.revision.changes
        if commit == TESTED_COMMIT and not changes:
            return None
        stands = f"is at commit {commit[:12]}{changes}" if commit else "tells no commit"
        return (
            f"init2winit in {self.directory} {stands}; attnperf was tested with "
            f"{TESTED_COMMIT[:7]}. It has the same gaps, but what it computes may have changed"
        )

    def record(self) -> dict[str, str]:
        """Returns what logs and studies record of it."""
        return host_checkout.record("init2winit", self.directory, self.revision)

    def main_module(self, data_dir: str | None) -> types.ModuleType:
        """Its `main.py` as a module, imported with JAX, TensorFlow and all that it imports, what
        the tree lacks filled in (`missing_symbols`).

        Raises MissingError naming the library that is not installed.
        """
        self.activate()
        if "init2winit.main" in sys.modules:
            return sys.modules["init2winit.main"]
        with host_checkout.missing_named(self.directory, _WHAT_TO_DO):
            missing_symbols.fill_modules(self.directory, data_dir)
            main = importlib.import_module("init2winit.main")
            missing_symbols.fill_names(main)
        return main

    def activate(self) -> None:
        """Puts the directory on sys.path, first.

        Raises MissingError where another init2winit has been imported already.
        """
        host_checkout.put_first(self.directory, "init2winit", "init2winit")


def find(directory: str | os.PathLike[str] | None = None) -> Installation:
    """Returns the init2winit in `directory`, else of ATTNPERF_INIT2WINIT_DIR.

    Imports nothing of it. Raises MissingError, saying what to do, where none is named or
    the directory is not init2winit, ValueError as `missing_symbols.check`.
    """
    named = directory or os.environ.get(DIRECTORY_VARIABLE)
    if not named:
        raise host_checkout.MissingError(f"no checkout of init2winit is named. {_WHAT_TO_DO}")
    path = host_checkout.check_files(named, FILES, "init2winit", _WHAT_TO_DO)
    missing_symbols.check(path)
    return Installation(path, host_checkout.revision(path))
