"""Program that becomes another program, which the kernel (of Linux only) ends when its parent dies.

    python -I -S -c TEXT-OF-THIS-FILE PARENT PROGRAM ARGUMENT...

`PARENT` is the pid of the process that starts it. A ``preexec_fn`` would save this small program, but `subprocess`
calls it unsafe beside threads, and a server is started again while its parent has some.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Execute the program; end with one line on stderr if that can't be done."""
    parent, *command = sys.argv[1:]
    if sys.platform.startswith("linux"):
        prctl = ctypes.CDLL(None).prctl
        prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != int(parent):  # the parent died before prctl was called
            sys.exit(1)
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.exit(error.strerror)


if __name__ == "__main__":
    main()
