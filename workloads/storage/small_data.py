"""Small data sets that this project writes: one life cycle of claim, write, check and repair."""

import abc
import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from workloads.base.errors import DataError, repair_commands
from workloads.storage import json_records, preparation


class Reference(msgspec.Struct, frozen=True):
    """`reference.json`, which says that all of a directory's data is there.

    rows: errors of simple methods, `constant` where one gives the same answer everywhere; sha256:
    of the content; made_by: the program that made the data, with its version; python: the release
    whose text the data are.
    """

    note: str
    rows: list[dict[str, Any]]
    sha256: str
    made_by: str = ""
    python: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallData(abc.ABC):
    """A small data set that this project writes, with the errors of simple methods on it.

    workload: whose data it is. note: the warning that tables print. is_downloaded: whether
    `prepare` needs files that a person downloaded.
    """

    workload: str
    note: str
    is_downloaded: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def names(self) -> Iterable[str]:
        """What is written below a data directory, beside its note and its reference."""

    @abc.abstractmethod
    def _write(self, data_dir: Path, content: Any) -> dict[str, Any]:
        """Writes all data; returns the fields of `Reference` but note and sha256.

        content: what `_read` returned.
        """

    @abc.abstractmethod
    def _examine(self, data_dir: Path) -> tuple[list[str], str]:
        """Reads all data; returns a line about each part, and the content's SHA-256.

        Raises DataError for anything that is damaged or missing.
        """

    def _read(self, source: Any, data_dir: Path) -> Any:
        """Returns the content of the downloaded files. Raises DataError if they are others."""
        return None

    def _comparison(self, reference: Reference) -> list[str]:
        """Returns a line that says with which results those on this data may be compared."""
        return []

    def repair(self, data_dir: str | os.PathLike[str]) -> str:
        """Returns the commands that make the data and check it."""
        return repair_commands(self.workload, data_dir)

    def prepare(self, data_dir: str | os.PathLike[str], source: Any = None) -> Path:
        """Writes the data below `data_dir` unless it is there and whole; returns `data_dir`.

        source: the downloaded files, which are read and checked first; None if the data are whole
        or need none. The same libraries give the same bytes. Two preparations at once wait for each
        other. Raises DataError for other files, and if the directory holds other data.
        """
        data_dir = Path(data_dir)
        if self.is_downloaded and source is None:
            self.check(data_dir)
            return data_dir
        content = self._read(source, data_dir)
        return preparation.prepare_once(
            data_dir, self.check, lambda folder: self._make(folder, content)
        )

    def _make(self, data_dir: Path, content: Any) -> None:
        preparation.claim(data_dir, self.note, [preparation.REFERENCE_FILE, *self.names])
        fields = self._write(data_dir, content)
        _, digest = self._examine(data_dir)
        json_records.write(
            data_dir / preparation.REFERENCE_FILE,
            Reference(note=self.note, sha256=digest, **fields),
        )

    def check(self, data_dir: str | os.PathLike[str], full: bool = True) -> list[str]:
        """Reads everything, whatever `full` says; returns lines about the data.

        Raises DataError at the first thing that is not as expected.
        """
        lines, digest = self._examine(Path(data_dir))
        reference = self.read_reference(data_dir)
        if digest != reference.sha256:
            raise DataError(
                f"{data_dir}: the content has SHA-256 {digest}, not {reference.sha256}",
                self.repair(data_dir),
            )
        return [*lines, f"SHA-256 of the content: {digest}", *self._comparison(reference)]

    def read_reference(self, data_dir: str | os.PathLike[str]) -> Reference:
        """Returns what `reference.json` says. Raises DataError if it cannot be read."""
        return json_records.read(
            Path(data_dir) / preparation.REFERENCE_FILE, Reference, self.repair(data_dir)
        )
