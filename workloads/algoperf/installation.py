"""AlgoPerf's installation: a package, or a checkout that the user names. It is never changed."""

import contextlib
import dataclasses
import importlib
import importlib.util
import os
import re
import sys
import traceback
import types
from collections.abc import Iterator
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
_WHAT_TO_DO = (
    "Install AlgoPerf by its own guide, https://github.com/mlcommons/algorithmic-efficiency "
    "(docs/GETTING_STARTED.md), or clone it, run `git checkout "
    f"{TESTED_COMMITS[-1][:7]}` (a tested commit) there, and name the checkout: "
    f"--algoperf_dir=DIR or {DIRECTORY_VARIABLE}=DIR. Its Python dependencies: "
    "pip install '/path/to/attnperf[algoperf]'"
)


class MissingError(DataError, ImportError):
    """AlgoPerf, or a library that it needs, is not there; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Installation:
    """One AlgoPerf: `directory` holds `submission_runner.py` and the package `algoperf`, at
    `revision`.

    Made by `find`.
    """

    directory: Path
    revision: host_checkout.Revision

    def __str__(self) -> str:
        return f"AlgoPerf {self.revision} in {self.directory}"

    @property
    def remark(self) -> str | None:
        """A sentence for an AlgoPerf other than an unchanged tested commit, else None."""
        commit, changes = self.revision.commit, self.revision.changes
        if commit and not changes and any(tested.startswith(commit) for tested in TESTED_COMMITS):
            return None
        state = f"is at commit {commit[:12]}{changes}" if commit else "is at an unknown commit"
        return (
            f"AlgoPerf in {self.directory} {state}; attnperf was tested with "
            f"{' and '.join(tested[:7] for tested in TESTED_COMMITS)}, and what it computes may "
            "have changed"
        )

    def record(self) -> dict[str, str]:
        """Returns what logs and studies record of it, and attnperf's own commit."""
        return {
            "attnperf_commit": str(host_checkout.revision(Path(__file__).resolve().parents[2])),
            "algoperf_dir": str(self.directory),
            "algoperf_commit": str(self.revision),
            "algoperf_changed_files": ", ".join(self.revision.changed),
        }

    def activate(self) -> None:
        """Puts the directory on sys.path, first, so that `import algoperf` finds this one.

        A checkout that was never installed lacks `algoperf/_version.py`, which its build writes
        and its `__init__` imports: that module is then made in memory.

        Raises MissingError if another AlgoPerf has been imported already.
        """
        loaded = sys.modules.get("algoperf")
        if loaded and Path(str(loaded.__file__)).resolve().parents[1] != self.directory:
            raise MissingError(
                f"algoperf was imported from {loaded.__file__} before {self.directory} was asked "
                "for; one process can hold one AlgoPerf. Start another process"
            )
        if str(self.directory) not in sys.path:
            sys.path.insert(0, str(self.directory))
        if not (self.directory / "algoperf/_version.py").exists():
            version = types.ModuleType("algoperf._version")
            version.version = "0+unknown"  # type: ignore[attr-defined]
            sys.modules.setdefault("algoperf._version", version)

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
                f"{sources[-1]} needs {error.name}, which is not installed. {_WHAT_TO_DO}"
            ) from error

    def module(self, name: str) -> types.ModuleType:
        """A module of AlgoPerf, imported (JAX, torch and TensorFlow with most of them).

        Raises MissingError naming the library that is not installed.
        """
        self.activate()
        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise MissingError(
                f"{name} of {self.directory} cannot be imported: {str(error).rstrip('.')}. "
                f"{_WHAT_TO_DO}"
            ) from error

    def check_registered(self, name: str) -> None:
        """Raises DataError if its registry has no workload of that name; imports nothing."""
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

    Imports nothing of it. Raises MissingError, which says what to do, if there is none or the
    directory is not AlgoPerf.
    """
    named = directory or os.environ.get(DIRECTORY_VARIABLE) or _installed()
    # Unlike pathlib's, these take a loop of links, and a user without a home.
    path = Path(os.path.realpath(os.path.expanduser(named)))
    if not path.is_dir():
        raise MissingError(f"there is no directory {path}. {_WHAT_TO_DO}")
    if missing := [file for file in FILES if not (path / file).is_file()]:
        lacking = ", ".join(missing)
        raise MissingError(f"{path} is not AlgoPerf: it lacks {lacking}. {_WHAT_TO_DO}")
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
        raise MissingError(f"AlgoPerf is not installed. {_WHAT_TO_DO}")
    return Path(spec.origin).resolve().parents[1]


def _revision(directory: Path) -> host_checkout.Revision:
    """From git for a checkout, else from the version that its build wrote.

    The version is …+g2c90454, or …+g2c90454.d20260101 if files were changed on the day of its
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
