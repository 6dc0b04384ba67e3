"""What engines on other hosts share: keys, paths on a volume, variables, manifests, programs."""

import abc
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sweeps.launchers.config_keys import Key, Range, Text
from sweeps.launchers.protocol import EngineError, State
from sweeps.records import layout
from sweeps.records.submissions import JOBS, Batch

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What a terminal takes for colours, its window's title and the like (ECMA-48).
_CONTROLS = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[ -/]*[0-~])")

TRIALS_PER_JOB = Key(1, "trials that one job runs", Range(1, 1_000_000))
RETRIES = Key(3, "of a job that crashed; preemptions do not count", Range(0, 1_000_000))
ENVIRONMENT = Key("", "NAME=VALUE NAME=VALUE", Text())
_ABSOLUTE = Text("an absolute path below /, without ':'", r"/+[^:/][^:]*")


def workers(where: str) -> Key:
    """Returns the key for a job's worker processes; `where`: of what they are counted."""
    return Key(1, f"processes {where}", Range(1, 1024))


def max_jobs(default: int) -> Key:
    """Returns the key for the jobs at a time."""
    return Key(default, "queued or running at a time", Range(1, 1_000_000))


def poll_seconds(default: int, engine: str) -> Key:
    """Returns the key for the pause between two looks at an engine's jobs."""
    return Key(default, f"between questions to {engine}", Range(1, 3600))


def volume_keys(volume: str, nodes: str) -> dict[str, Key]:
    """Returns the keys of a volume that nodes may mount at another path than this host does."""
    here = f"where the {volume} is mounted here; empty: experiment_dir"
    there = f"where the {nodes} mount it; empty: local_root"
    return {"local_root": Key("", here, _ABSOLUTE), "mount_path": Key("", there, _ABSOLUTE)}


def check_workers(engine: str, own: Mapping[str, Any], devices: int) -> None:
    """Raises ValueError where a job's workers cannot have equal parts of its devices."""
    if devices % own["workers"]:
        raise ValueError(f"{engine}.workers={own['workers']} cannot share {devices} devices")


@dataclasses.dataclass(frozen=True)
class Volume:
    """Where the volume's root is: `local_root` for the driver, `mount_path` on a node."""

    local_root: pathlib.PurePosixPath
    mount_path: pathlib.PurePosixPath

    def path(self, local: str | os.PathLike[str]) -> str:
        """Returns a path as a node sees it. Raises EngineError for one outside of the volume."""
        given = pathlib.PurePosixPath(local)
        if not given.is_relative_to(self.local_root):
            raise EngineError(
                f"{given} is not below {self.local_root}, the part of this host's files that the "
                "nodes see: set local_root to where the volume is mounted here, and put "
                "experiment_dir on it"
            )
        return str(self.mount_path / given.relative_to(self.local_root))

    def value(self, text: str) -> str:
        """Returns a variable's value with every path of the volume as a node sees it."""
        return os.pathsep.join(
            self.path(part) if pathlib.PurePosixPath(part).is_relative_to(self.local_root) else part
            for part in text.split(os.pathsep)
        )


def volume(settings: dict[str, Any], own: dict[str, Any]) -> Volume:
    """Returns the volume of an engine's keys `own`.

    local_root is experiment_dir unless given; mount_path is the same path unless given.
    """
    local = own["local_root"] or settings["experiment_dir"]
    # The volume may be mounted through a link: batches name resolved paths.
    root = pathlib.PurePosixPath(pathlib.Path(local).resolve())
    return Volume(root, pathlib.PurePosixPath(own["mount_path"] or root))


def check_paths(engine: str, settings: dict[str, Any], own: dict[str, Any]) -> None:
    """Raises ValueError where the study is not on the volume."""
    try:
        volume(settings, own).path(pathlib.Path(settings["experiment_dir"]).resolve())
    except EngineError as error:
        raise ValueError(f"{engine}.local_root: {error}") from error


def command(batch: Batch, index: int, own: dict[str, Any], mounted: Volume) -> list[str]:
    """Returns the command of a job on a node."""
    on_node = dataclasses.replace(batch, file=pathlib.Path(mounted.path(batch.file)))
    return on_node.command(index, own["python"])


def environment(batch: Batch, own: dict[str, Any], mounted: Volume) -> dict[str, str]:
    """Returns a job's variables on a node: the batch's, mapped, then those of the config."""
    values = {name: mounted.value(value) for name, value in batch.environment.items()}
    code = batch.environment.get("PYTHONPATH")
    if code:  # must be on the volume; anything else may be a path of the node
        values["PYTHONPATH"] = os.pathsep.join(map(mounted.path, code.split(os.pathsep)))
    return {**values, **variables(own["environment"])}


def variables(text: str) -> dict[str, str]:
    """Returns {"A": "1", "B": "2 3"} of "A=1 B='2 3'". Raises ValueError for anything else."""
    found = {}
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; give NAME=VALUE NAME='VALUE WITH SPACES'") from error
    for part in parts:
        name, separator, value = part.partition("=")
        if not separator or not _VARIABLE.fullmatch(name):
            raise ValueError(f"{part!r} is no variable; give NAME=VALUE NAME='VALUE WITH SPACES'")
        found[name] = value
    return found


class Engine(abc.ABC):
    """What launchers of engines on other hosts have alike, for an engine's keys `own`."""

    is_this_host = False

    def __init__(self, own: dict[str, Any]) -> None:
        self._own = own
        self.place: dict[str, str] = {}

    def status(self, handles: Sequence[str]) -> dict[str, State]:
        """Returns the state of every handle; UNKNOWN where the engine cannot be reached."""
        try:
            return self.states(handles) if handles else {}
        except EngineError:
            return dict.fromkeys(handles, State.UNKNOWN)

    @abc.abstractmethod
    def states(self, handles: Sequence[str]) -> dict[str, State]:
        """Returns what `status` does. Raises EngineError where the engine cannot be reached."""

    def capacity(self) -> int:
        """Returns config.<engine>.max_jobs."""
        return int(self._own["max_jobs"])

    def close(self) -> None:  # noqa: B027
        """Holds nothing."""


def job_name(batch: Batch, index: int) -> str:
    """Returns a job's name, which is also its handle: the same whenever it is submitted."""
    return f"{batch.name}-{index}"


def job_names(batch: Batch) -> list[str]:
    """Returns the names of a batch's jobs, in order."""
    return [job_name(batch, index) for index in range(batch.size)]


def sample(settings: dict[str, Any]) -> Batch:
    """Returns a batch of one job as the study of a config could have it: to see what it becomes."""
    study = os.path.join(settings["experiment_dir"], settings["name"])
    root = pathlib.Path(os.path.realpath(study))
    return Batch(root / JOBS / "sample.json", ((),), {"PYTHONPATH": str(root / "code")})


def filled(document: dict[str, Any]) -> dict[str, Any]:
    """Returns a document without the keys that say nothing: '', {} or []."""
    return {key: value for key, value in document.items() if value not in ("", {}, [])}


def to_yaml(document: Any) -> str:
    """Returns plain data as YAML, without anchors.

    Raises ValueError with the command to run where the library is not installed.
    """
    try:
        import yaml
    except ImportError as missing:
        install = "pip install -e '.[kubernetes]'"
        raise ValueError(f"writing manifests needs PyYAML: {install}") from missing
    return str(yaml.safe_dump(json.loads(json.dumps(document)), sort_keys=False))


Manifest = Callable[[Batch, int, dict[str, Any]], dict[str, Any]]


def write_manifests(
    batch: Batch, manifest: Manifest, settings: dict[str, Any]
) -> list[pathlib.Path]:
    """Writes the manifest of each job of a batch beside its record; returns the files."""
    files = [batch.file.with_name(f"{batch.name}.{index}.yaml") for index in range(batch.size)]
    for index, file in enumerate(files):
        layout.write_atomically(file, to_yaml(manifest(batch, index, settings)))
    return files


def run(
    command: list[str], absent: str, timeout_s: float, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Returns an engine's program when it has ended, with what it printed, in plain text.

    It cannot ask a person. Sites print greetings around an answer, also on standard output: read
    what has the answer's form, not the whole.

    Raises EngineError, saying `absent`, where this host does not have it, and where it does not
    answer.
    """
    program = shutil.which(command[0])
    if program is None:
        raise EngineError(absent)
    try:
        done = subprocess.run(
            [program, *command[1:]],
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",  # a script may hold paths that are not UTF-8
            timeout=timeout_s,
            **{"input": "", **options},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        words = " ".join(part for part in command[:3] if not part.startswith("-"))
        raise EngineError(f"{words} did not answer: {error}") from error
    done.stdout, done.stderr = _plain(done.stdout), _plain(done.stderr)
    return done


def _plain(text: str) -> str:
    return _CONTROLS.sub("", text.encode(errors="replace").decode())


def json_values(text: str) -> Iterator[Any]:
    """Yields the JSON objects and arrays that begin at the start of a line of a program's answer.

    Lines that are no JSON are passed over, and what is cut short is.
    """
    for start in re.finditer(r"^[\[{]", text, re.MULTILINE):
        with contextlib.suppress(ValueError):
            yield json.JSONDecoder().raw_decode(text, start.start())[0]


def last_line(text: str) -> str:
    """Returns the last line that says something, of what a program printed."""
    lines = [line for line in text.splitlines() if line.strip()]
    return re.sub(r"\s+", " ", lines[-1].strip()) if lines else "no message"
