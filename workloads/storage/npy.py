"""NumPy's .npy files, whatever bytes they hold."""

import os

import numpy as np

from workloads.base.errors import DataError


def read(path: str | os.PathLike[str], repair: str = "", *, is_mapped: bool = False) -> np.ndarray:
    """Returns the array of a file; is_mapped: a view of the file, of which the head alone is read.

    Raises DataError, with `repair`, for a file that cannot be read: damaged, cut short, of Python
    objects, or an archive (.npz), which `np.load` would take.
    """
    try:
        if is_mapped:
            return np.lib.format.open_memmap(path, mode="r")
        with open(path, "rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except Exception as problem:  # NumPy raises many types for a damaged head
        raise DataError(f"{path} cannot be read: {problem}", repair) from problem
