"""Local files; one that is missing is TensorFlow's own error."""

import os
import pathlib


class NotFoundError(Exception):
    pass


class GFile:
    def __init__(self, path, mode="r"):
        self._path, self._mode = pathlib.Path(path), mode

    def __enter__(self):
        if self._mode == "r" and not self._path.is_file():
            raise NotFoundError(str(self._path))
        self._file = self._path.open(self._mode)
        return self._file

    def __exit__(self, *_):
        self._file.close()


def makedirs(path):
    os.makedirs(path, exist_ok=True)
