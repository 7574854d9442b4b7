"""Child processes that never outlive the tests, not even tests that are killed."""

import os
import subprocess
from functools import partial
from typing import Any

from relock._servers.starting import dying_with, launcher


def spawn(command: list[str], **options: Any) -> subprocess.Popen[Any]:
    """Start `command` (`subprocess.Popen`'s options apply); it gets SIGKILL when this process ends.

    It has a session of its own. Otherwise, when the shell that began the tests ends, the kernel lets go on whatever is
    stopped in the tests' process group: no process of the group has a parent in the session any more.

    `pid` is the id of the command itself. A ``preexec_fn`` would run Python code between fork and exec, which may
    deadlock in a process with threads.
    """
    start = partial(subprocess.Popen, dying_with(os.getpid(), command), start_new_session=True, **options)
    return launcher().submit(start).result()
