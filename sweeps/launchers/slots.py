"""Slots of a host: names that one process at a time has, for as long as it lives.

A name is an abstract address of the kernel's: no file that somebody tidies up, no home directory
that hosts share, and free as soon as the last process that holds it has ended. Standard library.
"""

import errno
import hashlib
import os
import socket


def claim(name: str) -> socket.socket | None:
    """Returns what stands for a name of this user on this host, None where it is taken.

    The name is held until the last copy of the socket is closed, in whichever process.
    """
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    slot = socket.socket(socket.AF_UNIX)
    try:
        slot.bind(f"\0attnperf-{os.getuid()}-{digest}")
    except OSError as error:
        slot.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return slot
