"""Child processes that never outlive the tests, not even tests that are killed."""

import os
import subprocess
from functools import partial
from typing import Any

from relock._servers.starting import dying_with, launcher


def spawn(command: list[str], **options: Any) -> subprocess.Popen[Any]:
    """Starts `command` (`subprocess.Popen`'s options apply); it gets SIGKILL when this process ends.

    `pid` is that of the command itself. No ``preexec_fn``: that runs Python code between fork and exec, which may
    deadlock in a process with threads.
    """
    start = partial(subprocess.Popen, dying_with(os.getpid(), command), **options)
    return launcher().submit(start).result()
