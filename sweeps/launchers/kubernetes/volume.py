"""The shared volume of a study on Kubernetes: its paths here and in pods."""

import dataclasses
import os
import pathlib
from typing import Any


@dataclasses.dataclass(frozen=True)
class Volume:
    """A volume with its root at `local_root` for the driver, at `mount_path` in a pod."""

    local_root: pathlib.PurePosixPath
    mount_path: pathlib.PurePosixPath

    def path(self, local: str | os.PathLike[str]) -> str:
        """Returns a path as a pod sees it. Raises ValueError for one outside of the volume."""
        if not pathlib.PurePosixPath(local).is_relative_to(self.local_root):
            raise ValueError(
                f"{local} is not below {self.local_root}, the part of this host's files that the "
                "pods see: set kubernetes.local_root to where the volume is mounted here, and put "
                "experiment_dir on it"
            )
        return str(self.mount_path / pathlib.PurePosixPath(local).relative_to(self.local_root))

    def value(self, name: str, text: str) -> str:
        """Returns a variable's value with every path of the volume as a pod sees it.

        Raises ValueError where PYTHONPATH names anything else: the code must be on the volume.
        """
        return os.pathsep.join(
            self.path(part)
            if name == "PYTHONPATH" or pathlib.PurePosixPath(part).is_relative_to(self.local_root)
            else part
            for part in text.split(os.pathsep)
        )


def volume(settings: dict[str, Any]) -> Volume:
    """Returns a study's volume: local_root is experiment_dir by default, mount_path local_root."""
    own = settings["kubernetes"]
    local = own["local_root"] or settings["experiment_dir"]
    # The volume may be mounted through a link: batches name resolved paths.
    root = pathlib.PurePosixPath(pathlib.Path(local).resolve())
    return Volume(root, pathlib.PurePosixPath(own["mount_path"] or root))
