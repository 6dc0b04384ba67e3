"""Engines whose nodes see the study's volume at another path: mapping of paths and variables."""

import dataclasses
import os
import pathlib
import re
import shlex
from typing import Any

from sweeps.launchers.config_keys import Text
from sweeps.launchers.protocol import Batch, EngineError

ABSOLUTE = Text("an absolute path", r"/[^:]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclasses.dataclass(frozen=True)
class Mapping:
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


def mapping(settings: dict[str, Any], own: dict[str, Any]) -> Mapping:
    """Returns the mapping of an engine's keys `own`.

    local_root is experiment_dir unless given; mount_path is the same path unless given.
    """
    local = own["local_root"] or settings["experiment_dir"]
    # The volume may be mounted through a link: batches name resolved paths.
    root = pathlib.PurePosixPath(pathlib.Path(local).resolve())
    return Mapping(root, pathlib.PurePosixPath(own["mount_path"] or root))


def command(batch: Batch, index: int, own: dict[str, Any], mapped: Mapping) -> list[str]:
    """Returns the command of a job on a node."""
    on_node = dataclasses.replace(batch, file=pathlib.Path(mapped.path(batch.file)))
    return on_node.command(index, own["python"])


def environment(batch: Batch, own: dict[str, Any], mapped: Mapping) -> dict[str, str]:
    """Returns a job's variables on a node: the batch's, mapped, then those of the config."""
    values = {name: mapped.value(value) for name, value in batch.environment.items()}
    code = batch.environment.get("PYTHONPATH")
    if code:  # must be on the volume; anything else may be a path of the node
        values["PYTHONPATH"] = os.pathsep.join(map(mapped.path, code.split(os.pathsep)))
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


def check_paths(engine: str, settings: dict[str, Any], own: dict[str, Any]) -> None:
    """Raises ValueError where the study is not on the volume."""
    try:
        mapping(settings, own).path(pathlib.Path(settings["experiment_dir"]).resolve())
    except EngineError as error:
        raise ValueError(f"{engine}.local_root: {error}") from error
