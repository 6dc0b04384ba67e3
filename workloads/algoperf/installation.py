"""Where AlgoPerf is: installed, or a checkout that the user names. It is never changed."""

import contextlib
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

from workloads.algoperf_specs import DIRECTORY_VARIABLE
from workloads.base import host_checkout

# github.com/mlcommons/algorithmic-efficiency, branch main of 5 September 2025 (0.6) and of 9 March
# 2026 (1.0).
TESTED_COMMITS = (
    "2c90454fc05d5bdf3598b0c7651e611f132a7060",
    "f364a0b521beac41294d7d49a621c6d7cb33a35c",
)
TESTED = " or ".join(commit[:7] for commit in TESTED_COMMITS)
# What makes a directory AlgoPerf: the interface, its registry, and the runner.
FILES = ("submission_runner.py", "algoperf/spec.py", "algoperf/workloads/workloads.py")
_GUIDE = "https://github.com/mlcommons/algorithmic-efficiency (docs/GETTING_STARTED.md)"
_WHAT_TO_DO = (
    f"Install AlgoPerf by its own guide, {_GUIDE}, or clone it, run `git checkout "
    f"{TESTED_COMMITS[-1][:7]}` (a tested commit) there, and name the checkout: "
    f"--algoperf_dir=DIR or {DIRECTORY_VARIABLE}=DIR. Its Python dependencies: "
    "pip install '/path/to/attnperf[algoperf]'"
)


@dataclasses.dataclass(frozen=True)
class Installation:
    """One AlgoPerf: `directory` holds `submission_runner.py` and the package `algoperf`.

    `version` is None where nothing tells it. Made by `find`.
    """

    directory: Path
    version: str | None
    revision: host_checkout.Revision

    def __str__(self) -> str:
        version = f" (version {self.version})" if self.version else ""
        return f"AlgoPerf {self.revision}{version} in {self.directory}"

    @property
    def remark(self) -> str | None:
        """A sentence where this is not known to be a tested commit as it is, else None."""
        commit, changed = self.revision.commit, self.revision.changed
        if commit is None:
            return (
                f"the commit of AlgoPerf {self.version or '(no version)'} in {self.directory} is "
                f"not known; attnperf was tested with {TESTED}"
            )
        if not changed and any(tested.startswith(commit) for tested in TESTED_COMMITS):
            return None
        return (
            f"AlgoPerf in {self.directory} is at commit {commit[:12]}{self.revision.changes}; "
            f"attnperf was tested with {TESTED}, and what it compares may have changed"
        )

    def record(self) -> dict[str, str]:
        """Returns what logs and studies record of it."""
        return host_checkout.record("algoperf", self.directory, self.revision)

    def activate(self) -> None:
        """Puts the directory on sys.path, first, so that `import algoperf` finds this one.

        A checkout that was never installed lacks `algoperf/_version.py`, which its build writes
        and its `__init__` imports: that module is then made in memory.

        Raises MissingError where another AlgoPerf has been imported already.
        """
        host_checkout.put_first(self.directory, "algoperf", "AlgoPerf")
        if not (self.directory / "algoperf/_version.py").exists():
            made = types.ModuleType("algoperf._version")
            made.version = self.version or "0+unknown"  # type: ignore[attr-defined]
            sys.modules.setdefault("algoperf._version", made)

    def workloads_module(self) -> types.ModuleType:
        """Its `algoperf.workloads.workloads`, imported (JAX, torch and TensorFlow with it).

        Raises MissingError naming the library that is not installed.
        """
        return self.module("algoperf.workloads.workloads")

    def module(self, name: str) -> types.ModuleType:
        """A module of AlgoPerf, imported. Raises MissingError as `workloads_module`."""
        self.activate()
        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise host_checkout.MissingError(
                f"{name} of {self.directory} cannot be imported: {str(error).rstrip('.')}. "
                f"{_WHAT_TO_DO}"
            ) from error

    def registers(self, name: str) -> bool:
        """Whether its registry has a workload of that name; reads the file and imports nothing."""
        text = (self.directory / "algoperf/workloads/workloads.py").read_text("utf-8")
        return re.search(rf"""^\s*['"]{re.escape(name)}['"]\s*:""", text, re.MULTILINE) is not None

    def missing_named(self) -> contextlib.AbstractContextManager[None]:
        """Raises MissingError for a library that a file of the directory imports in vain.

        Its runner needs more libraries than its workloads do.
        """
        return host_checkout.missing_named(self.directory, _WHAT_TO_DO)

    def make_workload(self, name: str, **init_kwargs: Any) -> Any:
        """A new JAX workload object, made as submission_runner.main makes it.

        `init_kwargs` go to its constructor (`tokenizer_vocab_path` for LibriSpeech). Raises
        ValueError for a name that its registry lacks.
        """
        module = self.workloads_module()
        if name not in module.WORKLOADS:
            raise ValueError(
                f"AlgoPerf in {self.directory} has no workload {name!r}; it has "
                f"{', '.join(module.WORKLOADS)}"
            )
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
    named = directory or os.environ.get(DIRECTORY_VARIABLE)
    found = host_checkout.check_files(named or _installed(), FILES, "AlgoPerf", _WHAT_TO_DO)
    version = _version(found)
    return Installation(found, version, _revision(found, version))


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


def _version(directory: Path) -> str | None:
    """What its build wrote into algoperf/_version.py, None for a checkout never installed."""
    path = directory / "algoperf/_version.py"
    found = path.is_file() and re.search(r"version = '([^']+)'", path.read_text("utf-8"))
    return found[1] if found else None


def _revision(directory: Path, version: str | None) -> host_checkout.Revision:
    """From git for a checkout, else from pip's record, else from the version.

    The version is …+g2c90454; …+g2c90454.d20260101 where files were changed on the day of its
    build.
    """
    found = host_checkout.revision(directory)
    if found.commit:
        return found
    if recorded := _recorded_commit(directory):
        return host_checkout.Revision(recorded)
    told = re.search(r"\+g([0-9a-f]{7,40})(\.d\d+)?", version or "")
    if told is None:
        return found
    return host_checkout.Revision(
        told[1], (f"files that version {version} does not name",) if told[2] else ()
    )


def _recorded_commit(directory: Path) -> str | None:
    """The commit that `pip install git+https://…` recorded (PEP 610), for this directory only."""
    try:
        record = importlib.metadata.distribution("algoperf")
    except importlib.metadata.PackageNotFoundError:
        return None
    if Path(str(record.locate_file(""))).resolve() != directory:
        return None
    url = json.loads(record.read_text("direct_url.json") or "{}")
    commit = url.get("vcs_info", {}).get("commit_id")
    return str(commit) if commit else None
