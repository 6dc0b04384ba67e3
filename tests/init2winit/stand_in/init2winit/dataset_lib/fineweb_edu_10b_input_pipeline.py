"""Reads a name when it is called."""


def directory():
    return DATA_DIR  # noqa: F821
