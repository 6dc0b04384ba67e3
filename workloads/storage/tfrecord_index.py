"""Offsets of the records of a TFRecord file, scanned once and kept in the user's cache.

The cache is `$ATTNPERF_CACHE`, else `$XDG_CACHE_HOME/attnperf`, else `~/.cache/attnperf`. An entry
is named by the file's absolute path, size and time of modification, so a changed file never meets
a stale index; an entry that does not fit the file is scanned anew.
"""

import hashlib
import logging
import os
from pathlib import Path

import numpy as np

from attention.files import replacing
from workloads.storage import tfrecord_frames

_warned_about: set[Path] = set()


def cache_directory() -> Path:
    """Where the indices are kept (the folder need not exist yet)."""
    if chosen := os.environ.get("ATTNPERF_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "attnperf"


def offsets(path: str, repair: str = tfrecord_frames.DEFAULT_REPAIR) -> np.ndarray:
    """What `tfrecord_frames.scan_offsets(path)` returns, from the cache where it has it.

    Raises DataError as the scan does. A cache that cannot be written costs a scan in every
    process; that is said once, by `logging.warning`.
    """
    status = os.stat(path)
    entry = _entry(path, status)
    cached = _load(entry, status.st_size)
    if cached is not None:
        return cached
    scanned = tfrecord_frames.scan_offsets(path, repair)
    _store(entry, scanned)
    return scanned


def _entry(path: str, status: os.stat_result) -> Path:
    identity = f"{os.path.abspath(path)}\0{status.st_size}\0{status.st_mtime_ns}"
    name = hashlib.sha256(identity.encode()).hexdigest()
    return cache_directory() / "tfrecord_index" / name[:2] / f"{name}.npy"


def _load(entry: Path, size: int) -> np.ndarray | None:
    try:
        found = np.load(entry, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return found if _fits(found, size) else None


def _fits(found: np.ndarray, size: int) -> bool:
    if found.dtype != np.int64 or found.ndim != 1 or found.size == 0:
        return False
    gaps_are_frames = bool(np.all(np.diff(found) >= tfrecord_frames.FRAME_BYTES))
    return found[0] == 0 and found[-1] == size and gaps_are_frames


def _store(entry: Path, scanned: np.ndarray) -> None:
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with replacing(entry) as new, new.open("wb") as file:
            np.save(file, scanned)
    except OSError as problem:
        _warn_once(cache_directory(), problem)


def _warn_once(directory: Path, problem: OSError) -> None:
    if directory in _warned_about:
        return
    _warned_about.add(directory)
    logging.warning(
        "The cache of record positions %s cannot be written (%s): every process scans the data "
        "files anew. Set ATTNPERF_CACHE to a folder that can be written.",
        directory,
        problem,
    )
