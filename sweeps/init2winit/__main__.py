"""One trial's process: `python -m sweeps.init2winit PARENT ARGUMENTS`, started by a job.

It is `python -m workloads init2winit ARGUMENTS`, but ends when the job PARENT (its process
number) does, whatever ended it: nobody would follow it, and another job may begin the trial.
Linux only, as jobs are.
"""

import ctypes
import os
import signal
import sys

from attention import checkout
from workloads import __main__ as workloads_command

_PR_SET_PDEATHSIG = 1  # prctl(2)


def main() -> int:
    """Returns the exit status: the command's, 0 to 2; 1 where the parent is gone."""
    checkout.start("sweeps.init2winit")
    parent, *arguments = sys.argv[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(parent):  # it ended before it could be watched
        return 1
    return workloads_command.main(["init2winit", *arguments])


if __name__ == "__main__":
    sys.exit(main())
