"""Becomes another program, which dies with its parent: ``launcher.py PARENT_PID PROGRAM ARGUMENTS…``."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Asks the kernel, and becomes the program."""
    parent_pid, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it ended before the kernel was asked
        sys.exit("the tests have ended")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
