"""Child processes that never outlive the tests, not even tests that are killed."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

LAUNCHER = Path(__file__).parent / "launcher.py"

# The kernel takes the end of the *thread* that started a child for the end of its parent, so children are started by
# one thread that lives as long as this process does. A test may then restart a server in a thread of its own.
_starter = ThreadPoolExecutor(1, thread_name_prefix="spawn")


def spawn(command: list[str], **options: Any) -> subprocess.Popen[Any]:
    """Starts `command` (`subprocess.Popen`'s options apply); it gets SIGKILL when this process ends.

    It becomes its launcher's process by ``exec``, so that `pid` is that of the command itself. No ``preexec_fn``: that
    runs Python code between fork and exec, which may deadlock in a process with threads.
    """
    launcher = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid())]

    def start() -> subprocess.Popen[Any]:
        return subprocess.Popen([*launcher, *command], **options)

    return _starter.submit(start).result()


def freeze(pid: int) -> None:
    """Stops a child (SIGSTOP), and waits until it has: until then threads of its own may go on for some milliseconds.

    The kernel tells one of its threads, which tells the others only when it comes to run.
    """
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)
