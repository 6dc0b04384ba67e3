"""Where init2winit is: a checkout that the user names. It is never changed."""

import importlib
import os
import sys
import types

from workloads.base import host_checkout
from workloads.init2winit import missing_symbols

DIRECTORY_VARIABLE = "ATTNPERF_INIT2WINIT_DIR"
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


class Installation(host_checkout.Checkout):
    """One checkout: `directory` holds `init2winit/` and `hessian/`.

    Made by `find`.
    """

    name = "init2winit"
    package = "init2winit"
    tested = (TESTED_COMMIT,)
    what_to_do = _WHAT_TO_DO

    def main_module(self, data_dir: str | None) -> types.ModuleType:
        """Its `main.py` as a module, imported with JAX, TensorFlow and all that it imports, what
        the tree lacks filled in (`missing_symbols`).

        Raises MissingError naming the library that is not installed.
        """
        self.activate()
        if "init2winit.main" in sys.modules:
            return sys.modules["init2winit.main"]
        with self.missing_named():
            missing_symbols.fill_modules(self.directory, data_dir)
            main = importlib.import_module("init2winit.main")
            missing_symbols.fill_names(main)
        return main


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
