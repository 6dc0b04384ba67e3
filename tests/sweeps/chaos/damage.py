"""Ways in which crashes and disks damage a file."""

import pathlib

# From a file's content to what is left of it; 'missing' leaves no file.
CHANGES = {
    "cut": lambda content: content[:-7],
    "garbled": lambda content: content[:-7] + b"\xff\xfe\x00\x00\xff\n",
    "emptied": lambda content: b"",
    "flipped": lambda content: bytes(
        byte ^ (index == len(content) // 2) for index, byte in enumerate(content)
    ),
}


def damage(path: pathlib.Path, kind: str) -> None:
    """Damages a file; kind: a key of CHANGES, or 'missing'."""
    if kind == "missing":
        path.unlink()
    else:
        path.write_bytes(CHANGES[kind](path.read_bytes()))
