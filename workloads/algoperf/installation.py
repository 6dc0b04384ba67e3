"""Where AlgoPerf is: installed, or a checkout that the user names. It is never changed."""

import importlib
import importlib.util
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

from workloads.algoperf_specs import DIRECTORY_VARIABLE
from workloads.base import host_checkout
from workloads.base.errors import DataError

# github.com/mlcommons/algorithmic-efficiency, branch main of 5 September 2025 (0.6) and of 9 March
# 2026 (1.0).
TESTED_COMMITS = (
    "2c90454fc05d5bdf3598b0c7651e611f132a7060",
    "f364a0b521beac41294d7d49a621c6d7cb33a35c",
)
# What makes a directory AlgoPerf: the interface, its registry, and the runner.
FILES = ("submission_runner.py", "algoperf/spec.py", "algoperf/workloads/workloads.py")
_GUIDE = "https://github.com/mlcommons/algorithmic-efficiency (docs/GETTING_STARTED.md)"
_WHAT_TO_DO = (
    f"Install AlgoPerf by its own guide, {_GUIDE}, or clone it, run `git checkout "
    f"{TESTED_COMMITS[-1][:7]}` (a tested commit) there, and name the checkout: "
    f"--algoperf_dir=DIR or {DIRECTORY_VARIABLE}=DIR. Its Python dependencies: "
    "pip install '/path/to/attnperf[algoperf]'"
)


class Installation(host_checkout.Checkout):
    """One AlgoPerf: `directory` holds `submission_runner.py` and the package `algoperf`.

    Made by `find`.
    """

    name = "AlgoPerf"
    package = "algoperf"
    tested = TESTED_COMMITS
    what_to_do = _WHAT_TO_DO

    def activate(self) -> None:
        """Puts the directory on sys.path, first, so that `import algoperf` finds this one.

        A checkout that was never installed lacks `algoperf/_version.py`, which its build writes
        and its `__init__` imports: that module is then made in memory.

        Raises MissingError where another AlgoPerf has been imported already.
        """
        super().activate()
        if not (self.directory / "algoperf/_version.py").exists():
            version = types.ModuleType("algoperf._version")
            version.version = "0+unknown"  # type: ignore[attr-defined]
            sys.modules.setdefault("algoperf._version", version)

    def module(self, name: str) -> types.ModuleType:
        """A module of AlgoPerf, imported (JAX, torch and TensorFlow with most of them).

        Raises MissingError naming the library that is not installed.
        """
        self.activate()
        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise host_checkout.MissingError(
                f"{name} of {self.directory} cannot be imported: {str(error).rstrip('.')}. "
                f"{_WHAT_TO_DO}"
            ) from error

    def check_registered(self, name: str) -> None:
        """Raises DataError where its registry has no workload of that name; imports nothing."""
        text = (self.directory / "algoperf/workloads/workloads.py").read_text("utf-8")
        if not re.search(rf"""^\s*['"]{re.escape(name)}['"]\s*:""", text, re.MULTILINE):
            raise DataError(
                f"AlgoPerf in {self.directory} has no workload {name!r}",
                "use a version that has it (finewebedu_lm: 1.0, commit f364a0b)",
            )

    def make_workload(self, name: str, **init_kwargs: Any) -> Any:
        """A new JAX workload object, made as submission_runner.main makes it.

        `init_kwargs` go to its constructor (`tokenizer_vocab_path` for LibriSpeech). Raises
        DataError for a name that its registry lacks.
        """
        self.check_registered(name)
        module = self.module("algoperf.workloads.workloads")
        entry = module.WORKLOADS[name]
        return module.import_workload(
            workload_path=f"{module.BASE_WORKLOADS_DIR}{entry['workload_path']}_jax/workload.py",
            workload_class_name=entry["workload_class_name"],
            workload_init_kwargs=init_kwargs,
        )


def find(directory: str | os.PathLike[str] | None = None) -> Installation:
    """Returns the AlgoPerf in `directory`, else of ATTNPERF_ALGOPERF_DIR, else the installed one.

    Imports nothing of it. Raises MissingError, saying what to do, where there is none or
    the directory is not AlgoPerf.
    """
    named = directory or os.environ.get(DIRECTORY_VARIABLE) or _installed()
    path = host_checkout.check_files(named, FILES, "AlgoPerf", _WHAT_TO_DO)
    return Installation(path, _revision(path))


def define_framework() -> None:
    """Does for `algoperf.random_utils` what submission_runner.py does: absl's flag `framework`."""
    from absl import flags

    if "framework" not in flags.FLAGS:
        flags.DEFINE_string("framework", "jax", "as AlgoPerf's submission_runner.py")
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["attnperf", "--framework=jax"])


def _installed() -> Path:
    spec = importlib.util.find_spec("algoperf")
    if spec is None or spec.origin is None:
        raise host_checkout.MissingError(f"AlgoPerf is not installed. {_WHAT_TO_DO}")
    return Path(spec.origin).resolve().parents[1]


def _revision(directory: Path) -> host_checkout.Revision:
    """From git for a checkout, else from the version that its build wrote.

    The version is …+g2c90454; …+g2c90454.d20260101 where files were changed on the day of its
    build.
    """
    revision, version = host_checkout.revision(directory), directory / "algoperf/_version.py"
    if revision.commit or not version.is_file():
        return revision
    built = re.search(r"\+g([0-9a-f]{7,40})(\.d\d+)?'", version.read_text("utf-8"))
    if built is None:
        return revision
    changed = ("files that its version does not name",) if built[2] else ()
    return host_checkout.Revision(built[1], changed)
