"""Preparing a directory: one at a time, where the data is not whole, never over other data."""

import concurrent.futures
import contextlib
import fcntl
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from attention.common import files, machine
from workloads.base.errors import DataError

# Of embedded data: written last, so that it says that all of it is there.
REFERENCE_FILE = "reference.json"
# Says what a directory holds: written first, so that a preparation that was killed is known.
NOTE_FILE = "NOTE"
LOCK_FILE = ".prepare.lock"
Job = TypeVar("Job")
Result = TypeVar("Result")


@contextlib.contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Makes the directory and holds its lock: two preparations at once wait for each other.

    Raises DataError where the file system has no locks, as some network file systems.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    path = data_dir / LOCK_FILE
    with path.open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as problem:
            raise DataError(
                f"{path} cannot be locked ({problem.strerror}), so that two preparations of "
                f"{data_dir} at once could damage the data",
                "prepare the data in a folder on a local disk, and copy that folder here",
            ) from problem
        yield


def prepare_once(
    data_dir: str | os.PathLike[str],
    check: Callable[[Path], Any],
    write: Callable[[Path], None],
) -> Path:
    """Has `write` make the data below `data_dir` unless it is there and whole; returns `data_dir`.

    `check` raises DataError where something is amiss; where data were whole before, standard error
    says so. Raises DataError as `write` does, and as `check` does of what was written.
    """
    data_dir = Path(data_dir)
    with contextlib.suppress(DataError):
        check(data_dir)
        return data_dir
    with locked(data_dir):
        try:  # another process may have written it meanwhile
            check(data_dir)
            return data_dir
        except DataError as problem:
            if (data_dir / REFERENCE_FILE).is_file():
                print(
                    f"warning: the data are made anew: {str(problem).splitlines()[0]}",
                    file=sys.stderr,
                    flush=True,
                )
        write(data_dir)
        check(data_dir)
    return data_dir


def check_place(data_dir: Path, option: str) -> None:
    """Raises ValueError where small data are absent from `data_dir` and cannot be made there.

    Whole data may lie where nothing can be written.
    """
    if not (data_dir / REFERENCE_FILE).is_file():
        files.check_output_directory(data_dir, option)


def visible(folder: Path, pattern: str = "*") -> list[Path]:
    """What matches the pattern in a folder, sorted, without what systems lay beside people's files.

    Its names begin with `.` or `@`: AppleDouble's `._x.flac`, `.nfs0012`, Synology's `@eaDir`.
    """
    return sorted(path for path in folder.glob(pattern) if not path.name.startswith((".", "@")))


def claim(directory: Path, note: str, names: Iterable[str] | None = None) -> None:
    """Makes the directory and writes `note`, which says what it holds, into its file NOTE; a
    reference of data that were whole goes.

    names: what is going to be written below it; None: anything. Raises DataError where some of that
    is there, unless every file that says what the directory holds says `note`, which is not empty.
    """
    if names is None:
        paths = visible(directory)
    else:
        paths = [directory / name for name in (*names, NOTE_FILE)]
    occupied = [path for path in paths if path.is_file() or visible(path)]
    statements = _statements(directory)
    is_own = note and statements and all(json.dumps(note) in text for text in statements)
    if occupied and not is_own:
        raise DataError(
            f"{occupied[0]} is there, and is of other data; it is not replaced",
            "choose another folder; or, if nothing in it is needed, remove "
            f"{files.quoted(occupied[0])}",
        )
    directory.mkdir(parents=True, exist_ok=True)
    files.write(directory / NOTE_FILE, f"{note}\n")
    (directory / REFERENCE_FILE).unlink(missing_ok=True)


def _statements(directory: Path) -> list[str]:
    """What files say that the directory holds, as JSON of one spelling. A file that was cut short
    says nothing."""
    statements = []
    for name in (NOTE_FILE, REFERENCE_FILE, "dataset_info.json", "tokens.json"):
        with contextlib.suppress(OSError, ValueError):
            text = (directory / name).read_text("utf-8")
            content = text.removesuffix("\n") if name == NOTE_FILE else json.loads(text)
            statements.append(json.dumps(content))
    return statements


def in_processes(
    function: Callable[[Job], Result], jobs: Sequence[Job], processes: int
) -> Iterator[Result]:
    """What a picklable function returns for each job, in their order.

    With fewer than two processes or jobs it runs in this one. Raises OSError where a process was
    killed, and what the function raises.
    """
    if min(processes, len(jobs)) < 2:
        yield from map(function, jobs)
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        min(processes, len(jobs)),
        multiprocessing.get_context("spawn"),  # forked threads of the libraries could hang
        initializer=machine.end_with_parent,
    )
    with pool:
        try:
            yield from pool.map(function, jobs)
        except concurrent.futures.process.BrokenProcessPool as problem:
            raise OSError(
                "a process of this preparation was killed, perhaps for lack of memory; run the "
                "same command again, what is whole is kept"
            ) from problem
